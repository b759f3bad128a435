"""Waiting longer and longer between tries, never in step with others."""

from __future__ import annotations

from cometmq.environment import Random

BASE_S = 0.05
CAP_S = 5.0


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
