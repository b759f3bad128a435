"""When to ask the broker for a sign of life, and to give one: whoever asks and is answered does."""

from __future__ import annotations

import math

HEARTBEAT_MIN_S = 0.1
"""A broker may ask for signs of life, not for all of a core."""


class SignsOfLife:
    """Those of one connection; all times are on the clock of its owner."""

    __slots__ = ("_every_s", "due_s", "now_s", "received_s", "sent_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        """When its owner was told the time last: sending is not told any."""
        self.sent_s = 0.0
        self.received_s = 0.0
        self.due_s = math.inf
        """When to look at this again."""
        self._every_s = math.inf

    def begin(self, now_s: float, every_s: float) -> None:
        """There is a session whose broker wants to hear of us so often."""
        self._every_s = max(HEARTBEAT_MIN_S, every_s)
        self.due_s = now_s + self._every_s

    def end(self) -> None:
        """There is none."""
        self.due_s = math.inf

    def sent(self) -> None:
        """Something was sent."""
        self.sent_s = self.now_s

    def received(self, now_s: float) -> None:
        """Something came."""
        self.now_s = self.received_s = now_s

    def wanted(self, now_s: float) -> bool:
        """Whether a heartbeat is due: one of the two has been silent for so long."""
        if now_s < self.due_s:
            return False
        since_s = min(self.sent_s, self.received_s)
        wanted = since_s + self._every_s <= now_s
        self.due_s = (now_s if wanted else since_s) + self._every_s
        return wanted
