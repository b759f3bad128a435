"""The wall time by which ages count: one that no step of the clock makes jump ahead.

A clock that is suddenly a year ahead would make the whole log too old at once. So a step forward
is believed only after the clock has gone on evenly for a while; until then time passes at the pace
of the monotonic clock, from where it was. A step back makes everything younger: it is followed.
"""

from __future__ import annotations

from cometmq.environment import Clock

STEP_MS = 60_000
"""A clock that moved by no more against the monotonic one was corrected, not stepped."""


class TrustedTime:
    """Look at it often: what happens between two looks is one step."""

    def __init__(self, clock: Clock, last_use_ms: int, confirm_ms: float) -> None:
        """`last_use_ms`: when this log was last in use, by its own word (0: never). A clock that is
        ahead of it by more than `confirm_ms` is in doubt from the beginning."""
        self._clock = clock
        self._confirm_ms = confirm_ms
        self._seen_ms = self._offset_ms()
        """Wall time minus monotonic time, at the last look."""
        self._believed_ms = self._seen_ms
        self._even_since_ms: float | None = None
        wall_ms = clock.wall_ms()
        if last_use_ms and wall_ms - last_use_ms > max(confirm_ms, STEP_MS):
            self._believed_ms -= wall_ms - last_use_ms
            self._even_since_ms = self._monotonic_ms()

    @property
    def in_doubt_ms(self) -> int:
        """How far the wall clock is ahead of what is believed; 0 when it is not in doubt."""
        return 0 if self._even_since_ms is None else round(self._seen_ms - self._believed_ms)

    @property
    def confirmed_in_ms(self) -> int:
        """How long it has to go on evenly until it is believed."""
        if self._even_since_ms is None:
            return 0
        return round(self._even_since_ms + self._confirm_ms - self._monotonic_ms())

    def now_ms(self) -> int:
        """Milliseconds since 1970, as far as they can be believed."""
        self._look()
        return round(self._monotonic_ms() + self._believed_ms)

    def confirm(self) -> None:
        """Somebody who can read a clock says that this one is right."""
        self._look()
        self._believed_ms = self._seen_ms
        self._even_since_ms = None

    def _look(self) -> None:
        offset_ms, now_ms = self._offset_ms(), self._monotonic_ms()
        moved_ms, self._seen_ms = offset_ms - self._seen_ms, offset_ms
        if offset_ms <= self._believed_ms:
            self._believed_ms, self._even_since_ms = offset_ms, None
        elif abs(moved_ms) > STEP_MS:
            self._even_since_ms = now_ms
        elif self._even_since_ms is None:
            self._believed_ms = offset_ms
        elif now_ms - self._even_since_ms >= self._confirm_ms:
            self._believed_ms, self._even_since_ms = offset_ms, None

    def _monotonic_ms(self) -> float:
        return self._clock.monotonic_s() * 1000

    def _offset_ms(self) -> float:
        return self._clock.wall_ms() - self._monotonic_ms()
