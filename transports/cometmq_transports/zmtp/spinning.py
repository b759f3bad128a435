"""Looking for what comes next instead of sleeping, for as long as that pays.

Who sleeps has to be woken, which takes as long as much of a small request. Who keeps looking takes
a core, which is well spent only while nobody else wants it and the next request waits for the last
one's answer. Neither can be known, so it is measured: of requests that come one by one in quick
succession some are awaited asleep, then as many awake, and only if the second come quicker it goes
on. Where they don't (they come by a clock, or the cores are wanted) the next trial comes later each
time, so that all of them together take next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SPIN_US = 200
"""At most so long for each wait: the other end's part of a small request, and its wake-up."""
ANSWER_SPIN_US = 400
"""A client's: what it waits for may be the sync of a quick disk besides."""
SMALL_BYTES = 32 << 10
"""Larger requests are no matter of wake-ups."""
QUICK_S = 0.001
"""Requests that follow one another more slowly are no succession."""
TRIAL = 48
"""Requests of each kind that are compared."""
WORTH = 0.92
"""It pays if those awaited awake take at most so much of the others' time."""
VALID_S = 1.0
"""Then it is measured again."""
REST_MIN_S, REST_MAX_S = 0.1, 10.0
"""After a trial in vain; each rest is twice the one before."""
LOST_S = 0.00025
"""From one look to the next: in between somebody else had the core."""
LOSSES_MAX = 3
"""While a trial is valid; more, and it is no longer."""
MISS = 8
"""So many finds a wait in which nothing was found costs."""
LOOKS = 64
"""In a row, before who called may look after other things."""
ALONE = 8
"""Of these at one socket only, before one at everybody else's: they wait no longer."""
LOOKS_MAX = 16 * LOOKS
"""In one wait, on a clock that stands still too."""

_let_others = getattr(os, "sched_yield", lambda: None)


class Spin:
    """When to look for what comes next, and how long. It knows no clock: it is told the time."""

    __slots__ = (
        "_awake",
        "_budget_s",
        "_credit",
        "_last_s",
        "_longest_s",
        "_looks_left",
        "_losses",
        "_pays_until_s",
        "_rest_s",
        "_rest_until_s",
        "_slept_s",
        "_times",
        "_until_s",
        "wanted",
    )

    def __init__(self, longest_s: float) -> None:
        """`longest_s` is the most that one wait is spent awake; with 0 none is."""
        self.wanted = False
        """Whether to look, or to look on."""
        self._longest_s = longest_s
        self._last_s = float("-inf")
        self._times: list[float] = []
        """From one request to the next, in this half of a trial."""
        self._awake = False
        """Which half it is."""
        self._slept_s = 0.0
        """The median of the first half."""
        self._budget_s = 0.0
        """What is left of the first half's whole time: the second may not take more."""
        self._pays_until_s = self._last_s
        self._losses = 0
        self._credit = 0
        """Finds that are not used up by misses, up to a trial's."""
        self._rest_until_s = self._last_s
        self._rest_s = REST_MIN_S
        self._until_s = self._last_s
        self._looks_left = 0

    def passed(self, now_s: float) -> bool:
        """A small request has passed, alone. Returns `wanted`: then look for the next one."""
        since_s = now_s - self._last_s
        self._last_s = now_s
        if since_s > QUICK_S:
            self._begin_trial()
            self.wanted = False
        elif now_s < self._rest_until_s or not self._longest_s:
            self.wanted = False
        else:
            self.wanted = now_s < self._pays_until_s or self._try(since_s, now_s)
        if self.wanted:
            self._until_s = now_s + self._longest_s
            self._looks_left = LOOKS_MAX
        return self.wanted

    def look(
        self, poll: Callable[[], T], now_s: Callable[[], float], looks: int = LOOKS
    ) -> T | None:
        """What `poll` finds, if it finds something in so many looks."""
        last_s = now_s()
        for _ in range(looks):
            found = poll()
            look_s = now_s()
            if look_s - last_s > LOST_S:
                self._lost(look_s)
            if found:
                self.wanted = False
                self._credit = min(self._credit + 1, TRIAL)
                return found
            if not self.wanted:
                return None
            if look_s >= self._until_s:
                self._missed(look_s)
                return None
            last_s = look_s
            _let_others()
        self._looks_left -= looks
        if self._looks_left <= 0:
            self._missed(last_s)
        return None

    def _begin_trial(self) -> None:
        self._times.clear()
        self._awake = False
        self._budget_s = 0.0

    def _try(self, since_s: float, now_s: float) -> bool:
        """One more request of a trial; whether the next one is awaited awake."""
        times = self._times
        times.append(since_s)
        self._budget_s += -since_s if self._awake else since_s
        if self._awake and self._budget_s < 0:
            self._rest(now_s)
            return False
        if len(times) <= TRIAL:
            return self._awake
        median_s = sorted(times[1:])[TRIAL // 2]  # the first one came as in the half before
        if not self._awake:
            times.clear()
            self._slept_s, self._awake, self._losses, self._credit = median_s, True, 0, TRIAL
            return True
        self._begin_trial()
        if median_s > WORTH * self._slept_s:
            self._rest(now_s)
            return False
        self._pays_until_s, self._losses, self._rest_s = now_s + VALID_S, 0, REST_MIN_S
        return True

    def _missed(self, now_s: float) -> None:
        """Nothing came while we looked: it comes later, or no more."""
        self.wanted = False
        self._credit -= MISS
        if self._credit < 0:
            self._rest(now_s)

    def _lost(self, now_s: float) -> None:
        """Others want this core."""
        self._losses += 1
        if self._losses > LOSSES_MAX:
            self._rest(now_s)

    def _rest(self, now_s: float) -> None:
        self._begin_trial()
        self.wanted = False
        self._pays_until_s = now_s
        self._rest_until_s = now_s + self._rest_s
        self._rest_s = min(2 * self._rest_s, REST_MAX_S)
