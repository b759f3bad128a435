"""Waiting longer and longer between tries, never in step with others."""

from __future__ import annotations

from cometmq.environment import Random

BASE_S = 0.05
CAP_S = 5.0
PACE_S = 1.0
PACE_MAX = 10
PACE_PAUSE_S = 0.1


def pause_s(tries: int, random: Random) -> float:
    """Seconds to wait behind so many tries: doubles from 50 ms to 5 s, shortened at random by up
    to a half."""
    return min(CAP_S, BASE_S * (1 << min(tries, 10))) * random.uniform(0.5, 1.0)


class Backoff:
    """Counts the tries of something that goes on until it works."""

    __slots__ = ("_random", "tries")

    def __init__(self, random: Random) -> None:
        self._random = random
        self.tries = 0

    def next_s(self) -> float:
        """Seconds to wait before the next try."""
        self.tries += 1
        return pause_s(self.tries - 1, self._random)

    def reset(self) -> None:
        """Something worked: start from the beginning."""
        self.tries = 0


class Pace:
    """For what is done again at once, as often as it takes: but not for ever."""

    __slots__ = ("_count", "_from_s")

    def __init__(self) -> None:
        self._count = 0
        self._from_s = 0.0

    def pause_s(self, now_s: float) -> float:
        """Seconds to wait before it is done once more: 0 for the first ten of a second."""
        if now_s - self._from_s >= PACE_S:
            self._from_s, self._count = now_s, 0
        self._count += 1
        return 0.0 if self._count <= PACE_MAX else PACE_PAUSE_S
