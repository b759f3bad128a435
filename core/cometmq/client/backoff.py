"""Waiting longer and longer between tries, never in step with others."""

from __future__ import annotations

from cometmq.environment import Random

BASE_S = 0.05
CAP_S = 5.0


class Backoff:
    """Doubles from 50 ms to 5 s; each wait is shortened at random by up to a half."""

    __slots__ = ("_random", "tries")

    def __init__(self, random: Random) -> None:
        self._random = random
        self.tries = 0

    def next_s(self) -> float:
        """Seconds to wait before the next try."""
        whole = min(CAP_S, BASE_S * (1 << min(self.tries, 10)))
        self.tries += 1
        return whole * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Something worked: start from the beginning."""
        self.tries = 0
