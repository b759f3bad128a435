"""Counting what a piece of code does: nothing here looks at a clock.

What drives a path doesn't count: this package, the test kit, the event loop.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import selectors
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec
from crc32c import crc32c

import benchmarks
import cometmq.testing

Measure = Callable[[Callable[[], object]], None]
"""How a path counts the part of it that matters: `measure(action)`."""

_DRIVERS = (
    *(str(Path(inspect.getfile(one)).parent) for one in (benchmarks, cometmq.testing, asyncio)),
    inspect.getfile(selectors),
)


class Costs(msgspec.Struct, frozen=True):
    """What one path costs."""

    steps: int
    """Instructions of bytecode."""
    calls: int
    """Functions that were entered, in Python or in C."""
    peak_bytes: int
    """The most memory held at once, above what was held at the beginning."""
    outside: int
    """Operations on files, or messages handed to a channel."""
    crc_bytes: int
    """Bytes that a CRC was taken of: what C does with a batch as a whole."""


class Counters:
    """What counts while it is told to; `outside` is counted by whoever stands outside."""

    def __init__(self) -> None:
        self.steps = 0
        self.calls = 0
        self.peak_bytes = 0
        self.outside = 0
        self.crc_bytes = 0

    @contextmanager
    def steps_counted(self) -> Iterator[None]:
        """Count bytecode in this thread."""

        def local(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "opcode":
                self.steps += 1
            return local

        def entered(frame: FrameType, event: str, argument: Any) -> Any:
            if not _counts(frame.f_code):
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            return local

        before = sys.gettrace()
        sys.settrace(entered)
        try:
            yield
        finally:
            sys.settrace(before)

    @contextmanager
    def calls_counted(self) -> Iterator[None]:
        """Count calls in this thread."""

        def entered(frame: FrameType, event: str, argument: Any) -> None:
            if event in ("call", "c_call"):
                self.calls += _counts(frame.f_code)

        before = sys.getprofile()
        sys.setprofile(entered)
        try:
            yield
        finally:
            sys.setprofile(before)

    @contextmanager
    def peak_counted(self) -> Iterator[None]:
        """Find the most memory that is held at once."""
        running = tracemalloc.is_tracing()
        if not running:
            tracemalloc.start()
        tracemalloc.reset_peak()
        held, _ = tracemalloc.get_traced_memory()
        try:
            yield
        finally:
            _, peak = tracemalloc.get_traced_memory()
            self.peak_bytes += peak - held
            if not running:
                tracemalloc.stop()

    @contextmanager
    def crc_counted(self) -> Iterator[None]:
        """Count bytes that go into CRCs."""

        def counted(data: bytes, start: int = 0) -> int:
            self.crc_bytes += len(data)
            return crc32c(data, start)

        users = [
            module
            for name, module in sys.modules.items()
            if name.startswith("cometmq") and vars(module).get("crc32c") is crc32c
        ]
        for module in users:
            vars(module)["crc32c"] = counted
        try:
            yield
        finally:
            for module in users:
                vars(module)["crc32c"] = crc32c


_known: dict[CodeType, bool] = {}


def _counts(code: CodeType) -> bool:
    known = _known.get(code)
    if known is None:
        known = _known[code] = not code.co_filename.startswith(_DRIVERS)
    return known


def costs_of(path: Callable[[Counters, Measure], None]) -> Costs:
    """Run a path once for each thing that is counted; it has to do the same each time."""
    found = Counters()
    for begin in (
        Counters.steps_counted,
        Counters.calls_counted,
        Counters.peak_counted,
        Counters.crc_counted,
    ):
        counters = Counters()

        def measure(
            action: Callable[[], object],
            counters: Counters = counters,
            begin: Callable[[Counters], Any] = begin,
        ) -> None:
            outside = counters.outside
            collects = gc.isenabled()
            gc.disable()
            try:
                with begin(counters):
                    action()
            finally:
                if collects:
                    gc.enable()
            found.outside = counters.outside - outside

        path(counters, measure)
        found.steps += counters.steps
        found.calls += counters.calls
        found.peak_bytes += counters.peak_bytes
        found.crc_bytes += counters.crc_bytes
    return Costs(found.steps, found.calls, found.peak_bytes, found.outside, found.crc_bytes)
