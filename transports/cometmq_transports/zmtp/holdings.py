"""What all connections of a listener hold together, and who has to go when that is too much.

One connection is bounded by its credit; a thousand of them, each within its own, would take all
memory there is. Counted are unfinished messages and unread replies, whenever a connection does
something while it has any: who has none costs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from cometmq.environment import Clock

ROOM_SHARE = 16
"""When somebody has to go, so does who is next, until this part of the bound is free: to look who
holds most takes a while."""


class Holder(Protocol):
    """A connection."""

    counted_bytes: int
    """What it held when it was counted last."""
    moved_s: float
    """When that changed last, if it holds anything."""

    @property
    def held_bytes(self) -> int:
        """What it holds now."""


class Holdings:
    """The sum, and its bound."""

    def __init__(self, clock: Clock, most_bytes: int) -> None:
        self._clock = clock
        self._most_bytes = most_bytes
        self._holders: dict[Holder, None] = {}
        self.total_bytes = 0

    @property
    def too_much(self) -> bool:
        """Whether somebody has to go."""
        return self.total_bytes > self._most_bytes

    def count(self, holder: Holder) -> None:
        """Take down what it holds now."""
        held = holder.held_bytes
        if held == holder.counted_bytes:
            return
        self.total_bytes += held - holder.counted_bytes
        holder.counted_bytes = held
        if held:
            holder.moved_s = self._clock.monotonic_s()
            self._holders[holder] = None
        else:
            self._holders.pop(holder, None)

    def forget(self, holder: Holder) -> None:
        """It is gone, with all that it held."""
        if self._holders.pop(holder, 0) is None:
            self.total_bytes -= holder.counted_bytes
            holder.counted_bytes = 0

    def excess(self) -> Iterator[Holder]:
        """Who has to go, one after the other: whoever holds much and for long without moving. The
        caller drops each before it asks for the next one."""
        now_s = self._clock.monotonic_s()
        enough_bytes = self._most_bytes - self._most_bytes // ROOM_SHARE
        for holder in sorted(self._holders, key=lambda holder: _weight(holder, now_s)):
            if self.total_bytes <= enough_bytes:
                return
            yield holder


def _weight(holder: Holder, now_s: float) -> float:
    """Whoever moves is given up only for what is a lot by itself."""
    return -holder.counted_bytes * (1.0 + now_s - holder.moved_s)
