"""The machine's clock, which a test may push: time passes by itself, and jumps when told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from cometmq.environment import Clock, Timer
from cometmq.real_environment import RealClock
from cometmq.testing.clock import check_forward


class _PushedTimer:
    """A timer that is set again on the real clock whenever the clock is pushed."""

    def __init__(self, clock: MovableClock, due_s: float, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._due_s = due_s
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._timer: Timer | None = None
        self._over = False
        self._set()

    def cancel(self) -> None:
        self._over = True
        self._clock.forget(self)
        if self._timer is not None:
            self._timer.cancel()

    def pushed(self) -> None:
        """Time jumped; called from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if self._over:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.real.call_at(self._clock.to_real_s(self._due_s), self._fire)

    def _fire(self) -> None:
        self._over = True
        self._clock.forget(self)
        self._callback()


class MovableClock:
    """For an embedded broker: `advance` lets time pass at once, `step_wall` lets the wall clock
    jump while no time passes. Both may be called from any thread."""

    def __init__(self, real: Clock | None = None) -> None:
        self.real: Clock = real or RealClock()
        self._ahead_s = 0.0
        self._wall_ahead_ms = 0
        self._timers: set[_PushedTimer] = set()
        self._lock = threading.Lock()

    def wall_ms(self) -> int:
        return self.real.wall_ms() + self._wall_ahead_ms + int(self._ahead_s * 1000)

    def monotonic_s(self) -> float:
        return self.real.monotonic_s() + self._ahead_s

    def uptime_s(self) -> float:
        return self.real.uptime_s() + self._ahead_s

    def call_at(self, monotonic_s: float, callback: Callable[[], None]) -> Timer:
        timer = _PushedTimer(self, monotonic_s, callback)
        with self._lock:
            self._timers.add(timer)
        return timer

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        timer = self.call_at(self.monotonic_s() + seconds, lambda: woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass now; timers that became due fire on their own loops. Raises
        ValueError for less than none."""
        check_forward(seconds)
        with self._lock:
            self._ahead_s += seconds
            timers = list(self._timers)
        for timer in timers:
            timer.pushed()

    def step_wall(self, milliseconds: int) -> None:
        """Let the wall clock jump, forwards or back."""
        self._wall_ahead_ms += milliseconds

    def to_real_s(self, monotonic_s: float) -> float:
        """What the real clock shows when this one shows `monotonic_s`."""
        return monotonic_s - self._ahead_s

    def forget(self, timer: _PushedTimer) -> None:
        """It fired or was cancelled."""
        with self._lock:
            self._timers.discard(timer)
