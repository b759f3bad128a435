"""How late the event loop runs: a timer that looks at its own lateness."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable

from cometmq.broker.ticks import next_tick_s
from cometmq.environment import Clock, Timer

INTERVAL_S = 0.1
SAMPLES = 6_000
"""Ten minutes of them."""
STALL_S = 0.25
"""A loop that was this late could not read what its peers had sent in time."""


class LoopLag:
    """Measures lateness, and tells `on_stall(seconds)` of stalls, so that no peer pays for them.
    `beat` hears that the loop lives, each time."""

    def __init__(
        self, clock: Clock, on_stall: Callable[[float], None], beat: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._on_stall = on_stall
        self._beat = beat
        self._samples: deque[float] = deque()
        self._ordered: list[float] = []
        """The same, sorted: anybody may ask for percentiles, and to sort takes a millisecond."""
        self._expected_s = 0.0
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to measure, on the running loop."""
        self._arm()

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def observe(self) -> None:
        """Look now. Whoever is about to judge peers by time calls this first: after a stall it
        may be its turn before the timer's."""
        if self._timer is None:
            return
        late_s = self._clock.monotonic_s() - self._expected_s
        if late_s >= STALL_S:
            self._timer.cancel()
            self._tick()

    def percentile_ms(self, percent: float) -> float:
        """The lateness that `percent` % of the last ten minutes' samples don't exceed, in ms."""
        ordered = self._ordered
        if not ordered:
            return 0.0
        place = min(len(ordered) - 1, int(len(ordered) * percent / 100))
        return ordered[place] * 1000

    def _arm(self) -> None:
        self._expected_s = next_tick_s(self._clock.monotonic_s(), INTERVAL_S)
        self._timer = self._clock.call_at(self._expected_s, self._tick)

    def _tick(self) -> None:
        self._beat()
        late_s = max(self._clock.monotonic_s() - self._expected_s, 0.0)
        self._take(late_s)
        if late_s >= STALL_S:
            self._on_stall(late_s)
        self._arm()

    def _take(self, late_s: float) -> None:
        if len(self._samples) == SAMPLES:
            del self._ordered[bisect_left(self._ordered, self._samples.popleft())]
        self._samples.append(late_s)
        insort(self._ordered, late_s)
