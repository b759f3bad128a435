"""The line of a key in a TOML file. No TOML reader tells it, so a scan for tables and keys does.

A scan can't be fooled into a wrong value, only into a wrong line: the values come from `tomllib`.
"""

from __future__ import annotations

import re

_PART = r"""(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)"""
_PATH = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE = re.compile(rf"\s*\[\[?\s*({_PATH})\s*\]")
_KEY = re.compile(rf"\s*({_PATH})\s*=")
_PARTS = re.compile(_PART)

Path = tuple[str, ...]


def scan(text: str) -> dict[Path, int]:
    """The line (from 1) of every table and key, by its full path."""
    lines: dict[Path, int] = {}
    table: Path = ()
    quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        if quote:
            quote = _quote_after(line, quote)
            continue
        if found := _TABLE.match(line):
            table = _split(found[1])
            lines.setdefault(table, number)
        elif found := _KEY.match(line):
            lines.setdefault(table + _split(found[1]), number)
            quote = _quote_after(line, "")
    return lines


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """The line of `path`, else of the nearest table or key that holds it."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


def _split(path: str) -> Path:
    return tuple(part.strip("\"'") for part in _PARTS.findall(path))


def _quote_after(line: str, quote: str) -> str:
    """Which kind of multi-line string is open at the end of a line, given what was at its start."""
    for mark in re.findall(r'"""|\'\'\'', line):
        if not quote:
            quote = mark
        elif quote == mark:
            quote = ""
    return quote
