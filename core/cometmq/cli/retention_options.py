"""How long a topic keeps its messages, as options and as words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
import msgspec

from cometmq.protocol import Retention

F = TypeVar("F", bound=Callable[..., Any])

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)")
_TIMES_MS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}


class _Quantity(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """A number with a unit, or `none` for 0."""

    def __init__(self, name: str, units: Mapping[str, int], example: str) -> None:
        self.name = name
        self._units = units
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value == "none":
            return 0
        match = _NUMBER.fullmatch(value)
        unit = None if match is None else self._units.get(match[2])
        if match is None or unit is None or not float(match[1]) * unit >= 1:
            units = ", ".join(self._units)
            self.fail(
                f"{value!r} is no {self.name}: give a number and one of {units}, as in "
                f"{self._example}, or none",
                param,
                ctx,
            )
        return int(float(match[1]) * unit)


_TIME = _Quantity("time", _TIMES_MS, "7d")
_SIZE = _Quantity("size", _SIZES, "10GiB")


def retention_options(function: F) -> F:
    """The options of `mq topic alter`; the arguments have the names of `Retention`'s fields, each
    None unless given."""
    for field, option, kind, text in (
        ("cap_bytes", "--retention-cap-bytes", _SIZE, "At most so much is kept for GROUP."),
        ("cap_ms", "--retention-cap", _TIME, "At most so long something is kept for GROUP."),
        ("group", "--retention-group", None, "Keep what GROUP has not consumed; none: no group."),
        ("size_bytes", "--retention-bytes", _SIZE, "Messages beyond expire, oldest first."),
        ("time_ms", "--retention-time", _TIME, "Older messages expire, as in 7d; none: no limit."),
    ):
        metavar = "GROUP" if kind is None else "SIZE" if kind is _SIZE else "TIME"
        function = click.option(option, field, type=kind, metavar=metavar, help=text)(function)
    return function


def changed(old: Retention, given: Mapping[str, int | str | None]) -> Retention | None:
    """The retention with what was given in it; None if nothing was."""
    values = {name: value for name, value in given.items() if value is not None}
    if values.get("group") == "none":
        values |= {"group": "", "cap_ms": 0, "cap_bytes": 0}
    return msgspec.structs.replace(old, **values) if values else None


def in_words(retention: Retention) -> str:
    """For people: `7d, 10GiB`, or `none of its own`."""
    words = []
    if retention.time_ms:
        words.append(_shown(retention.time_ms, _TIMES_MS))
    if retention.size_bytes:
        words.append(_shown(retention.size_bytes, _SIZES))
    if retention.group:
        caps = [
            _shown(value, units)
            for value, units in ((retention.cap_ms, _TIMES_MS), (retention.cap_bytes, _SIZES))
            if value
        ]
        words.append(f"until {retention.group} has consumed it, at most {' or '.join(caps)}")
    return ", ".join(words) or "none of its own"


def _shown(value: int, units: Mapping[str, int]) -> str:
    """In the largest unit that gives a whole number."""
    unit = max((unit for unit in units if value % units[unit] == 0), key=lambda u: units[u])
    return f"{value // units[unit]}{unit}"
