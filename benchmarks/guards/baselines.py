"""The costs that were agreed on, in `baselines.toml`, for each version of Python by itself, with
and without the module in C."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from benchmarks.guards.counting import Costs
from cometmq import native

FILE = Path(__file__).with_name("baselines.toml")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}" + native.loaded * " with C"
RENEW = "python -m benchmarks.guards --renew"
_HEAD = f"""\
# What each guarded path may cost, by version of Python, with `cometmq.native` and, by
# `COMETMQ_NATIVE=0`, without. Written by `{RENEW}`:
# a commit that raises a number says what for. docs/performance.md has what is counted, and how.
"""
_TOLERANCES: Mapping[str, tuple[float, int]] = {
    "steps": (0.03, 0),
    "calls": (0.03, 0),
    # Objects of the interpreter's own come and go.
    "peak_bytes": (0.05, 2048),
    "outside": (0.0, 0),
    "crc_bytes": (0.01, 0),
}
"""How far above a baseline is still the same: as a part of it, and in whole numbers."""

Table = dict[str, dict[str, Costs]]
"""Version of Python to path to costs."""


def read() -> Table:
    """All baselines."""
    return msgspec.convert(tomllib.loads(FILE.read_text()), Table)


def write(table: Table) -> None:
    """Put them where `read` finds them."""
    lines = [_HEAD]
    for python, paths in sorted(table.items()):
        lines.append(f'["{python}"]')
        for path, costs in paths.items():
            row = ", ".join(
                f"{name} = {value}" for name, value in msgspec.structs.asdict(costs).items()
            )
            lines.append(f"{path} = {{ {row} }}")
        lines.append("")
    FILE.write_text("\n".join(lines))


def risen(path: str, agreed: Costs, found: Costs) -> list[str]:
    """A sentence for each cost that is above what was agreed on by more than chance explains."""
    sentences = []
    for name, (part, whole) in _TOLERANCES.items():
        before, now = getattr(agreed, name), getattr(found, name)
        if now > before + max(part * before, whole):
            more = f"{100 * (now - before) / before:+.1f} %" if before else f"{now - before:+}"
            sentences.append(f"{path}: {now:,} {name}, {before:,} were agreed on ({more})")
    return sentences
