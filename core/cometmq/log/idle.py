"""Marks: when a log has been quiet for a moment after a sync, one batch says so.

Its stamp proves that everything before it was on disk. Without it the last batches before a quiet
night could not be told from a torn tail when a bit of them flips.
"""

from __future__ import annotations

from collections.abc import Callable

from cometmq.environment import Clock, Timer


class IdleMarks:
    """Calls `mark` once nothing was appended for `idle_ms` after a sync of everything."""

    def __init__(
        self, clock: Clock, idle_ms: int, place: Callable[[], int], mark: Callable[[], None]
    ) -> None:
        """`place`: the end of the log if all of it is synced and no mark is its last batch,
        else -1."""
        self._clock = clock
        self._idle_s = idle_ms / 1000
        self._place = place
        self._mark = mark
        self._timer: Timer | None = None
        self._seen = -1

    def synced(self) -> None:
        """A sync ended."""
        if self._timer is None:
            self._arm()

    def stop(self) -> None:
        """No more marks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._seen = self._place()
        if self._seen >= 0:
            due = self._clock.monotonic_s() + self._idle_s
            self._timer = self._clock.call_at(due, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._place() == self._seen:
            self._mark()
        else:
            self._arm()
