"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable

_TURNS = 20
"""Turns of the loop that `run_for` gives to what a timer has woken."""


def check_forward(seconds: float) -> None:
    """Raises ValueError where monotonic time is to go back."""
    if not isinstance(seconds, int | float) or not seconds >= 0:
        raise ValueError(
            f"{seconds!r} seconds can't pass: time only goes on, by a number of seconds from 0 up; "
            "`step_wall` sets the wall clock"
        )


class VirtualTimer:
    """A timer on a virtual clock."""

    def __init__(self, callback: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self._callback: Callable[[], None] | None = callback
        self._loop = loop

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        """Call the callback, in its own loop's thread."""
        callback, self._callback = self._callback, None
        if callback is None:
            return
        if asyncio._get_running_loop() is self._loop:
            callback()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)


class VirtualClock:
    """Time to move: `advance` and `run_for` go on, `step_wall` lets the wall clock jump,
    `suspend` lets the machine sleep.

    It may be moved from another thread than the loop's (an embedded broker in a test).
    """

    def __init__(self, wall_ms: int = 1_750_000_000_000, monotonic_s: float = 1_000.0) -> None:
        self._wall_ms = float(wall_ms)
        self._monotonic_s = monotonic_s
        self._slept_s = 0.0
        self._timers: list[tuple[float, int, VirtualTimer]] = []
        self._made = 0
        self._lock = threading.Lock()

    def wall_ms(self) -> int:
        return int(self._wall_ms)

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def uptime_s(self) -> float:
        return self._monotonic_s + self._slept_s

    def call_at(self, monotonic_s: float, callback: Callable[[], None]) -> VirtualTimer:
        """As the real one, but a time that is already reached waits for the next move."""
        timer = VirtualTimer(callback, asyncio.get_running_loop())
        with self._lock:
            self._made += 1
            heapq.heappush(self._timers, (monotonic_s, self._made, timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self.call_at(self._monotonic_s + seconds, wake)
        try:
            await woken
        finally:
            timer.cancel()

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass; timers fire in order, each at its own time. Raises ValueError for
        less than none."""
        check_forward(seconds)
        end = self._monotonic_s + seconds
        while (timer := self._next(end)) is not None:
            timer.fire()
        self._set(end)

    async def run_for(self, seconds: float) -> None:
        """The same from within the loop: what a timer wakes runs before time goes on."""
        check_forward(seconds)
        end = self._monotonic_s + seconds
        await self._settle()
        while (timer := self._next(end)) is not None:
            timer.fire()
            await self._settle()
        self._set(end)
        await self._settle()

    def step_wall(self, milliseconds: int) -> None:
        """Let the wall clock jump, forwards or back; no monotonic time passes."""
        self._wall_ms += milliseconds

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep: the wall clock goes on, timers and monotonic time don't."""
        self._wall_ms += seconds * 1000
        self._slept_s += seconds

    def _next(self, end: float) -> VirtualTimer | None:
        with self._lock:
            if not self._timers or self._timers[0][0] > end:
                return None
            due, _, timer = heapq.heappop(self._timers)
        self._set(max(due, self._monotonic_s))
        return timer

    def _set(self, monotonic_s: float) -> None:
        self._wall_ms += (monotonic_s - self._monotonic_s) * 1000
        self._monotonic_s = monotonic_s

    async def _settle(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
