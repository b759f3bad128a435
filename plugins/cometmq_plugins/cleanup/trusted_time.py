"""The wall time by which ages count: one that no step of the clock makes jump ahead.

A clock that is suddenly a year ahead would make the whole log too old at once. That it stepped,
the log sees and keeps, also over restarts. What is made of it, here: a step forward is believed
only after the clock has gone on evenly for a while. A step back makes everything younger: it is
followed.
"""

from __future__ import annotations

from cometmq.environment import Clock
from cometmq.log import Log, RecoveryReport
from cometmq.log.clock_ahead import STEP_MS
from cometmq.log.records import ClockAhead
from cometmq_plugins.cleanup.rules import HOUR_MS

TELL_MS = HOUR_MS
"""How often the log is told that a clock in doubt still goes on evenly; so much is lost by a crash.
"""


class TrustedTime:
    """Look at it often: what happens between two looks is one step. With a log that can't be told
    anything, being in doubt itself or stopped, it stays as it is."""

    def __init__(self, log: Log, clock: Clock, report: RecoveryReport, confirm_ms: float) -> None:
        """`report` is that of the log's start. The log doubts all of the time since its last use;
        here that is believed, unless it is more than `confirm_ms`, or the clock went back."""
        self._log = log
        self._clock = clock
        self._confirm_ms = confirm_ms
        self._heard = log.state.clock_ahead.now
        """What the log knows."""
        self._off_ms = 0
        """How much of that is believed all the same, which the log is still to be told."""
        even_ms = self._heard.even_ms
        passed_ms = clock.wall_ms() - report.store_time if report.store_time else 0
        if 0 <= passed_ms <= max(confirm_ms, STEP_MS):
            self._off_ms = max(0, self._heard.ahead_ms - report.clock.ahead_ms)
            even_ms = report.clock.even_ms
        self._even_since_ms = self._machine_ms() - even_ms

    @property
    def known(self) -> ClockAhead:
        """What the log is to know."""
        ahead_ms = self._heard.ahead_ms - self._off_ms
        if ahead_ms <= 0:
            return ClockAhead()
        return ClockAhead(ahead_ms, round(self._machine_ms() - self._even_since_ms))

    @property
    def in_doubt_ms(self) -> int:
        """How far the wall clock is ahead of what is believed; 0 when it is not in doubt."""
        return self.known.ahead_ms

    @property
    def confirmed_in_ms(self) -> int:
        """How long it has to go on evenly until it is believed."""
        known = self.known
        return max(0, round(self._confirm_ms - known.even_ms)) if known.ahead_ms else 0

    def now_ms(self) -> int:
        """Milliseconds since 1970, as far as they can be believed. Raises NoSpace, DiskRefused if
        the log has to be told something, and can't be."""
        self._look()
        return self._clock.wall_ms() - self.in_doubt_ms

    def confirm(self) -> None:
        """Somebody who can read a clock says that this one is right. Raises as `now_ms`."""
        self._look()
        self._tell(ClockAhead())

    def keep(self) -> None:
        """Tell the log all, before a stop. Raises as `now_ms`."""
        self._look()
        self._tell(self.known)

    def _look(self) -> None:
        if self._log.in_doubt or self._log.stopped:
            return
        heard = self._log.look_at_clock()
        if heard != self._heard:
            self._hear(heard)
        known = self.known
        if known.even_ms >= self._confirm_ms:
            known = ClockAhead()
        if known.ahead_ms != heard.ahead_ms or known.even_ms - heard.even_ms >= TELL_MS:
            self._tell(known)

    def _tell(self, known: ClockAhead) -> None:
        log = self._log
        if known == self._heard or log.in_doubt or log.stopped:
            return
        log.append_control("clock-ahead", [known])
        log.write()
        self._off_ms = 0
        self._hear(known)

    def _hear(self, known: ClockAhead) -> None:
        self._heard = known
        self._even_since_ms = self._machine_ms() - known.even_ms

    def _machine_ms(self) -> float:
        return self._clock.uptime_s() * 1000
