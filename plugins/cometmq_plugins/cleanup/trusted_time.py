"""The wall time by which ages count: one that no step of the clock makes jump ahead.

A clock that is suddenly a year ahead would make the whole log too old at once. So a step forward
is believed only after the clock has gone on evenly for a while; until then time passes at the pace
of the machine's own clock (that goes on while it sleeps), from where it was. A step back makes
everything younger: it is followed.
"""

from __future__ import annotations

from cometmq.environment import Clock
from cometmq.log.clock_ahead import STEP_MS
from cometmq.log.records import ClockAhead

NO_DOUBT = ClockAhead()


class TrustedTime:
    """Look at it often: what happens between two looks is one step."""

    def __init__(
        self,
        clock: Clock,
        last_use_ms: int,
        confirm_ms: float,
        known: ClockAhead = NO_DOUBT,
    ) -> None:
        """`last_use_ms`: when this log was last in use, by its own word (0: never); `known`: what
        was known of the clock then. One that went on by more than `confirm_ms` since, or went
        back, did not go on evenly, and nothing of that is believed."""
        self._clock = clock
        self._confirm_ms = confirm_ms
        self._seen_ms = self._offset_ms()
        """Wall time minus the machine's, at the last look."""
        self._believed_ms = self._seen_ms
        self._even_since_ms: float | None = None
        passed_ms = clock.wall_ms() - last_use_ms if last_use_ms else 0
        ahead_ms, even_ms = known.ahead_ms, known.even_ms
        if not 0 <= passed_ms <= max(confirm_ms, STEP_MS):
            ahead_ms += passed_ms
            even_ms = even_ms if abs(passed_ms) <= STEP_MS else 0
        if ahead_ms > 0:
            self._believed_ms -= ahead_ms
            self._even_since_ms = self._machine_ms() - even_ms

    @property
    def in_doubt_ms(self) -> int:
        """How far the wall clock is ahead of what is believed; 0 when it is not in doubt."""
        return 0 if self._even_since_ms is None else round(self._seen_ms - self._believed_ms)

    @property
    def confirmed_in_ms(self) -> int:
        """How long it has to go on evenly until it is believed."""
        if self._even_since_ms is None:
            return 0
        return max(0, round(self._even_since_ms + self._confirm_ms - self._machine_ms()))

    @property
    def known(self) -> ClockAhead:
        """What is to be known after a restart."""
        if self._even_since_ms is None:
            return ClockAhead()
        return ClockAhead(self.in_doubt_ms, round(self._machine_ms() - self._even_since_ms))

    def now_ms(self) -> int:
        """Milliseconds since 1970, as far as they can be believed."""
        self._look()
        return round(self._machine_ms() + self._believed_ms)

    def confirm(self) -> None:
        """Somebody who can read a clock says that this one is right."""
        self._look()
        self._believed_ms = self._seen_ms
        self._even_since_ms = None

    def _look(self) -> None:
        offset_ms, now_ms = self._offset_ms(), self._machine_ms()
        moved_ms, self._seen_ms = offset_ms - self._seen_ms, offset_ms
        if offset_ms <= self._believed_ms:
            self._believed_ms, self._even_since_ms = offset_ms, None
        elif abs(moved_ms) > STEP_MS:
            self._even_since_ms = now_ms
        elif self._even_since_ms is None:
            self._believed_ms = offset_ms
        elif now_ms - self._even_since_ms >= self._confirm_ms:
            self._believed_ms, self._even_since_ms = offset_ms, None

    def _machine_ms(self) -> float:
        return self._clock.uptime_s() * 1000

    def _offset_ms(self) -> float:
        return self._clock.wall_ms() - self._machine_ms()
