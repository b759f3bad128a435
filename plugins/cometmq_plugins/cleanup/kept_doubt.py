"""What is doubted of the clock is kept in the log: a restart must not begin to believe it."""

from __future__ import annotations

from cometmq.log import Log
from cometmq.log.clock_ahead import STEP_MS
from cometmq.log.records import ClockAhead
from cometmq_plugins.cleanup.rules import HOUR_MS
from cometmq_plugins.cleanup.trusted_time import TrustedTime

TELL_MS = HOUR_MS
"""How often the log is told that a clock in doubt still goes on evenly; so much is lost by a crash.
"""


class KeptDoubt:
    """Tells the log. That the clock steps, the log sees itself, in time; what is made of it, here:
    how much of the time since the last use is believed, how long it was even, and the end."""

    def __init__(self, log: Log, trusted: TrustedTime) -> None:
        self._log = log
        self._trusted = trusted

    def keep(self, *, exactly: bool = False) -> None:
        """Tell the log if it knows something else (`exactly`: also if it is nearly the same).
        Raises NoSpace, DiskRefused, LogStopped."""
        log, knows, known = self._log, self._log.state.clock_ahead.now, self._trusted.known
        same = knows == known if exactly else _alike(knows, known)
        if not (same or log.in_doubt or log.stopped):
            log.append_control("clock-ahead", [known])
            log.write()


def _alike(one: ClockAhead, other: ClockAhead) -> bool:
    if 0 in (one.ahead_ms, other.ahead_ms):
        return one.ahead_ms == other.ahead_ms
    near = abs(one.ahead_ms - other.ahead_ms) <= STEP_MS
    return near and abs(one.even_ms - other.even_ms) < TELL_MS
