"""The four positions of the log and who waits for them.

`appended` >= `synced` >= `settled`; `readable` is one of them, that of the default level. Each
only grows, but for a cut. Callbacks are called in the order of their positions, within the step
that moved the position.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable
from typing import Literal

from cometmq.interfaces import Level
from cometmq.log.segment_index import QueueKey

logger = logging.getLogger(__name__)

PositionName = Literal["appended", "synced", "settled", "readable"]


class Outcome(enum.Enum):
    """How a wait ended."""

    REACHED = "reached"
    NOT_WRITTEN = "not written"
    """The write of this batch failed and nothing of it is in the log: it may be tried again."""
    DROPPED = "dropped"
    """Cut away, or the log stopped: the outcome is unknown."""


Callback = Callable[[Outcome], None]
OnReadable = Callable[[int, int, set[QueueKey]], None]

POSITION_OF: dict[Level, PositionName] = {
    "memory": "appended",
    "disk": "synced",
    "quorum": "settled",
}


def _call(callback: Callback, outcome: Outcome) -> None:
    # One waiter's mistake must not leave the others without an answer.
    try:
        callback(outcome)
    except Exception:
        _tell_failure()


def _tell_failure() -> None:
    logger.exception("a waiter for a log position failed; the log goes on")


class Waiters(deque[tuple[int, Callback]]):
    """Callbacks by position, lowest first."""

    __slots__ = ()

    def add(self, position: int, callback: Callback) -> None:
        """Keep a callback, behind those for the same position."""
        if not self or self[-1][0] <= position:
            self.append((position, callback))
            return
        at = len(self) - 1
        # Nearly always one of the highest: looked for from the end.
        while at and self[at - 1][0] > position:
            at -= 1
        self.insert(at, (position, callback))

    def any_up_to(self, position: int) -> bool:
        """Whether somebody waits for `position` or a place before it."""
        return bool(self) and self[0][0] <= position

    def reach(self, position: int) -> None:
        """Everybody up to `position` has what they waited for."""
        reached = Outcome.REACHED
        while self and self[0][0] <= position:
            _, callback = self.popleft()
            try:
                callback(reached)
            except Exception:
                _tell_failure()

    def cut(self, position: int, outcome: Outcome) -> None:
        """Everybody beyond `position` waits in vain."""
        gone: list[Callback] = []
        while self and self[-1][0] > position:
            gone.append(self.pop()[1])
        for callback in reversed(gone):
            _call(callback, outcome)


class Positions:
    """How far the log is appended, synced, settled and readable: bytes from its very start."""

    def __init__(self, readable_level: Level, max_unsynced_bytes: int) -> None:
        self.appended = 0
        self.synced = 0
        self.settled = 0
        self.readable = 0
        self.on_readable: OnReadable | None = None
        self._readable_is = POSITION_OF[readable_level]
        self._max_unsynced = max_unsynced_bytes
        self._appended = Waiters()
        self._synced = Waiters()
        self._settled = Waiters()
        self._readable = Waiters()
        self.waiters: dict[PositionName, Waiters] = {
            "appended": self._appended,
            "synced": self._synced,
            "settled": self._settled,
            "readable": self._readable,
        }
        """Nothing beyond `appended` is reached: who waits for that goes straight there."""
        self._await_sync = [self._synced, self._settled]
        if self._readable_is != "appended":
            self._await_sync.append(self._readable)
        self._unread: deque[tuple[int, QueueKey]] = deque()

    @property
    def excess(self) -> bool:
        """Whether so much is unsynced that even senders who trust memory wait."""
        return self.appended - self.synced > self._max_unsynced

    def start_at(self, position: int) -> None:
        """All that the log holds is on disk and settled: a start found `position` as its end."""
        self.appended = self.synced = self.settled = self.readable = position

    def note_messages(self, end: int, key: QueueKey) -> None:
        """A batch that ends at `end` will become readable in this queue."""
        unread = self._unread
        # Batches of one drain become readable together.
        if unread and unread[-1][1] == key and unread[-1][0] > self.appended:
            unread.pop()
        unread.append((end, key))

    def wait(self, name: PositionName, position: int, callback: Callback) -> bool:
        """Call back once `name` reaches `position`; at once (and True) if it has."""
        if position <= self._reached(name):
            _call(callback, Outcome.REACHED)
            return True
        self.waiters[name].add(position, callback)
        return False

    def awaits_sync(self) -> bool:
        """Whether somebody waits for the disk at a place that is appended."""
        appended = self.appended
        for waiters in self._await_sync:
            if waiters and waiters.any_up_to(appended):
                return True
        waiters = self._appended
        if not waiters:
            return False
        return self.excess and waiters.any_up_to(appended)

    def waiting(self) -> int:
        """How many wait in all."""
        return sum(map(len, self.waiters.values()))

    def move_appended(self, position: int) -> None:
        """Bytes up to `position` are in the page cache."""
        self.appended = position
        waiters = self._appended
        if waiters:
            trusted = self.synced + self._max_unsynced
            waiters.reach(position if position < trusted else trusted)
        if self._readable_is == "appended":
            self._move_readable(position)

    def move_synced(self, position: int) -> None:
        """Bytes up to `position` are on disk; without replication that settles them."""
        if position <= self.synced:
            return
        self.synced = self.settled = position
        self._appended.reach(self._reached("appended"))
        self._synced.reach(position)
        self._settled.reach(position)
        if self._readable_is != "appended":
            self._move_readable(position)

    def cut(self, position: int, outcome: Outcome) -> None:
        """The log ends at `position` now; whoever waits for more gets `outcome`."""
        self.appended = min(self.appended, position)
        self.synced = min(self.synced, position)
        self.settled = min(self.settled, position)
        self.readable = min(self.readable, position)
        unread = self._unread
        cut_keys: set[QueueKey] = set()
        while unread and unread[-1][0] > position:
            cut_keys.add(unread.pop()[1])
        # An entry may stand for several batches, some of them before the cut.
        unread.extend((position, key) for key in cut_keys if position > self.readable)
        for waiters in self.waiters.values():
            waiters.cut(position, outcome)

    def drop_all(self) -> None:
        """The log stopped: nobody will ever know more."""
        for waiters in self.waiters.values():
            waiters.cut(-1, Outcome.DROPPED)

    def _reached(self, name: PositionName) -> int:
        if name == "appended":
            return min(self.appended, self.synced + self._max_unsynced)
        return int(getattr(self, name))

    def _move_readable(self, position: int) -> None:
        start, self.readable = self.readable, position
        unread = self._unread
        if unread and unread[0][0] <= position:
            queues = {unread.popleft()[1]}
            while unread and unread[0][0] <= position:
                queues.add(unread.popleft()[1])
            if self.on_readable is not None:
                self.on_readable(start, position, queues)
        if self._readable:
            self._readable.reach(position)
