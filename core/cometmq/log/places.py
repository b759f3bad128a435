"""What can be asked of a log: its positions, its epochs, and places in its queues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from cometmq.environment import Environment
from cometmq.errors import NotAvailable
from cometmq.interfaces import FlushPolicy, Level, Segment, StateView, Storage
from cometmq.log.positions import POSITION_OF, PositionName, Positions
from cometmq.log.queue_index import QueueIndex
from cometmq.log.reader import Reader, ReadResult
from cometmq.log.settings import LogSettings
from cometmq.log.state import State
from cometmq.log.writer import LogWriter

logger = logging.getLogger(__name__)

T = TypeVar("T")

LEVELS_HERE: tuple[Level, ...] = ("memory", "disk")
"""Levels that a log without replication can give."""


_REACHABLE: dict[str | None, PositionName] = {
    **{level: POSITION_OF[level] for level in LEVELS_HERE},
    "appended": "appended",
    "synced": "synced",
    "settled": "settled",
    "readable": "readable",
}


def position_of(level: Level | PositionName) -> PositionName:
    """The position that a level waits for. Raises NotAvailable for a level that needs more than
    this log has."""
    name = _REACHABLE.get(level)
    if name is not None:
        return name
    if level == "quorum":
        raise NotAvailable(
            "level quorum needs replication, and no enabled plugin brings it; use disk, or enable"
            " one",
            "LEVEL_NOT_AVAILABLE",
        )
    raise ValueError(f"no level and no position is called {level!r}")


class LogPlaces:
    """The asking half of a `Log`; nothing here changes it."""

    def __init__(
        self,
        storage: Storage,
        flush_policy: FlushPolicy,
        environment: Environment,
        *,
        views: Sequence[StateView] = (),
        settings: LogSettings | None = None,
    ) -> None:
        """`views`: the state views of the broker and its plugins. Raises NotAvailable for a default
        level that this log can't give, ValueError for two views of one name."""
        self._storage = storage
        self._policy = flush_policy
        self._environment = environment
        self._settings = settings = settings or LogSettings()
        self.default_level: Level = settings.level or flush_policy.default_level
        self._waited_for: dict[str | None, PositionName] = {**_REACHABLE}
        self._waited_for[None] = position_of(self.default_level)
        """The position of each level, and of no level."""
        self.state = State(views)
        self._positions = Positions(self.default_level, settings.max_unsynced_bytes)
        self._writer = LogWriter(storage, self.state, self._positions, environment.clock, settings)
        self.index: QueueIndex
        self.reader: Reader
        self.start = 0
        """Position of the first byte that counts; moves with a settled trim."""
        self.in_doubt = ""
        """Why the log is read-only, and what to do; empty when it is not."""
        self.stopped = ""
        """Why the log takes nothing more; empty while it does."""

    # --- facts --------------------------------------------------------------------------------

    @property
    def log_id(self) -> bytes:
        """8 bytes, the same for the life of this log and in all its copies."""
        return self._writer.log_id

    @property
    def node(self) -> str:
        """Id of this data folder's node, in hex."""
        return self._writer.node

    @property
    def epoch(self) -> int:
        """The current epoch. It is valid for every offset that this log answers now."""
        return self._writer.epoch

    @property
    def appended(self) -> int:
        """Bytes up to here are in the page cache."""
        return self._positions.appended

    @property
    def synced(self) -> int:
        """Bytes up to here are on disk."""
        return self._positions.synced

    @property
    def settled(self) -> int:
        """Bytes up to here can be taken back by no failover."""
        return self._positions.settled

    @property
    def readable(self) -> int:
        """Batches that end at or below this are given to readers."""
        return self._positions.readable

    def positions(self) -> dict[str, int]:
        """start, appended, synced, settled, readable."""
        names = ("start", "appended", "synced", "settled", "readable")
        return {name: int(getattr(self, name)) for name in names}

    def stats(self) -> dict[str, int]:
        """Numbers for people and machines: segments, waiters, bytes not yet synced; space, unless
        the file system can't say."""
        try:
            space = self._storage.usage()
        except OSError as error:
            logger.warning("the space on the log's disk is not known: %s", error)
            space = {}
        return {
            "segments": len(self._storage.segments()),
            "waiting": self._positions.waiting(),
            "unsynced_bytes": self.appended - self.synced,
            **space,
        }

    @property
    def persistent(self) -> bool:
        """Whether the log outlives this process."""
        return self._storage.persistent

    def segments(self) -> Sequence[Segment]:
        """The files of the log, oldest first; the last one is written to."""
        return self._storage.segments()

    def space(self) -> tuple[int, int]:
        """(bytes in all, bytes free) of the file system that holds the log."""
        usage = self._storage.usage()
        return usage["bytes_total"], usage["bytes_free"]

    @property
    def head_end(self) -> int | None:
        """Where the head checkpoint of the segment that is written to ends; None until it does."""
        return self._writer.checkpoints.get(self._writer.base)

    async def newest_time(self, base: int) -> int | None:
        """The newest store time (ms since 1970) of a message in the segment at `base`; None if it
        has no messages, or is not there any more."""
        return await self.when_loaded(lambda: self.index.newest_time(base))

    def could_lose(self) -> str:
        """What a power cut could take, in a sentence."""
        if not self._storage.persistent:
            return "nothing survives the end of this process: the storage is memory"
        weak = (
            f"up to {self._policy.interval_ms} ms and one sync, at most"
            f" {self._settings.max_unsynced_bytes >> 20} MiB"
        )
        if self.default_level == "memory":
            return f"a power cut could take acknowledged messages of {weak}"
        return (
            "a power cut takes nothing that was acknowledged at level"
            f" {self.default_level}; of messages sent at level memory {weak}"
        )

    # --- places in queues ---------------------------------------------------------------------

    def next_offset(self, incarnation: int, queue: int) -> int:
        """The offset that the queue's next message gets."""
        return self.state.next_offsets.get(incarnation, queue)

    def min_offset(self, incarnation: int, queue: int) -> int:
        """The first offset that may still be there. May raise NotLoaded, see `when_loaded`."""
        return self.index.min_offset(incarnation, queue)

    def max_offset(self, incarnation: int, queue: int) -> int:
        """The next offset of the queue, counting only what is readable. May raise NotLoaded."""
        if self.readable == self._writer.end:
            return self.next_offset(incarnation, queue)
        return self.index.next_offset_before(incarnation, queue, self.readable)

    def judge(self, incarnation: int, queue: int, offset: int, epoch: int) -> int | None:
        """Is what a reader holds of a queue still a part of this log?

        `offset` is where it wants to go on, `epoch` the one it got with that place (0: typed by a
        person, believed). None: yes. Else it was cut: the offset to go on from. May raise
        NotLoaded.
        """
        current = self.epoch
        if epoch in (0, current):
            return None
        epochs = self.state.epochs
        # Above our own: somebody else's future, of which we share at most what was there when our
        # epoch began.
        border = epochs.end_of(epoch) if epoch < current else epochs.start_of(current)
        if border is None:
            return None
        common = self.index.next_offset_before(incarnation, queue, border)
        return common if offset > common else None

    def is_end(self, incarnation: int, queue: int, offset: int, epoch: int) -> bool:
        """Whether `offset`, got with `epoch`, is surely where the queue ends and so good to go on
        from: what every reader who keeps up asks, answered in the quickest way. False: look."""
        return (
            offset == self.state.next_offsets.get(incarnation, queue)
            and self.readable == self._writer.end
            and epoch in (0, self.epoch)
        )

    async def when_loaded(self, look_up: Callable[[], T]) -> T:
        """What `look_up` returns, once the indexes that it needs are in memory."""
        return await self.index.when_loaded(look_up)

    def read_now(
        self,
        incarnation: int,
        queue: int,
        offset: int,
        max_bytes: int,
        *,
        at_least_one: bool = True,
    ) -> ReadResult | None:
        """Readable batches of a queue if they are at hand, else None; see `Reader.read_now`."""
        readable = self.readable
        return self.reader.read_now(
            incarnation, queue, offset, max_bytes, readable, at_least_one=at_least_one
        )

    async def read(
        self,
        incarnation: int,
        queue: int,
        offset: int,
        max_bytes: int,
        *,
        at_least_one: bool = True,
    ) -> ReadResult:
        """The same, waiting for the disk."""
        readable = self.readable
        return await self.reader.read(
            incarnation, queue, offset, max_bytes, readable, at_least_one=at_least_one
        )
