"""The log: every fact that must survive is a batch in here, all else is derived from it.

One drain: `append` per batch, `write` once at its end, and callbacks as positions move. A batch
acts on state and index when it is appended, on readers when it is readable, and is answered when
the position of its level is reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from cometmq.batch import Kind, seed
from cometmq.environment import Environment, Timer
from cometmq.errors import LogError, LogInDoubt, LogStopped, NoSpace, NotAvailable
from cometmq.interfaces import FlushPolicy, Level, StateView, Storage
from cometmq.log.cutting import check_border, reload_state
from cometmq.log.idle import IdleMarks
from cometmq.log.opening import START_STEP_BYTES, check_absent, register_kinds, settle_tail
from cometmq.log.positions import (
    POSITION_OF,
    Callback,
    OnReadable,
    Outcome,
    PositionName,
    Positions,
)
from cometmq.log.queue_index import QueueIndex
from cometmq.log.reader import Reader, ReadResult
from cometmq.log.records import Mark, Trim
from cometmq.log.recovery import Recovered, recover
from cometmq.log.settings import Cut, LogSettings, RecoveryReport
from cometmq.log.state import State
from cometmq.log.syncing import LogSyncer
from cometmq.log.trimming import trim_target
from cometmq.log.writer import LogWriter

logger = logging.getLogger(__name__)

T = TypeVar("T")

LEVELS_HERE: tuple[Level, ...] = ("memory", "disk")
"""Levels that a log without replication can give."""


class Log:
    """The commit log of one broker. All methods are called on the loop's thread.

    Besides its methods: `append` (see `LogWriter.append`), `append_control` (see
    `LogWriter.append_control`), `index` and `reader` (from `open` on), `state`.
    """

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
        self._name_of(self.default_level)
        self.state = State(views)
        self._positions = Positions(self.default_level, settings.max_unsynced_bytes)
        self._writer = LogWriter(storage, self.state, self._positions, environment.clock, settings)
        self.append = self._writer.append
        self.append_control = self._writer.append_control
        self._syncer = LogSyncer(storage, self._positions, environment, self._on_synced, self._stop)
        self._marks = IdleMarks(
            environment.clock, settings.mark_idle_ms, self._mark_place, self._mark
        )
        self.index: QueueIndex
        self.reader: Reader
        self.start = 0
        """Position of the first byte that counts; moves with a settled trim."""
        self.in_doubt = ""
        """Why the log is read-only, and what to do; empty when it is not."""
        self.stopped = ""
        """Why the log takes nothing more; empty while it does."""
        self._on_stopped: Callable[[str], None] | None = None
        self._on_truncated: Callable[[int], None] | None = None
        self._timers: dict[str, Timer] = {}
        self._index_task: asyncio.Task[None] | None = None
        self._complained_of_space = False

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
        """Numbers for people and machines: segments, waiters, bytes not yet synced, space."""
        return {
            "segments": len(self._storage.segments()),
            "waiting": self._positions.waiting(),
            "unsynced_bytes": self.appended - self.synced,
            **self._storage.usage(),
        }

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

    # --- life ---------------------------------------------------------------------------------

    async def open(self) -> RecoveryReport:
        """Read what is there and get ready to append, or, in doubt, only to be read.

        Raises LogLocked, NoSpace, or LogError when the folder can't be used as it is.
        """
        self._storage.open()
        try:
            node, _ = self._storage.node_id(lambda: self._environment.random.bytes(8))
            self._writer.node = node.hex()
            found = recover(self._storage, self.state, self._make_index, node.hex())
            if found.log_id is None:
                found.log_id = self._environment.random.bytes(8)
                found.seed = seed(found.log_id)
                self._make_index(found.seed)
            self.reader = Reader(self._storage, self._environment, self.index, found.seed)
            self._take_over(found)
            if found.in_doubt:
                return self._open_doubtful(found)
            check_absent(self.state, self._settings)
            return await self._open_writable(found)
        except BaseException:
            self._storage.close()
            raise

    async def close(self) -> None:
        """A clean stop: everything is synced, and a mark says so. Waiters that are left are
        dropped."""
        for timer in self._timers.values():
            timer.cancel()
        self._marks.stop()
        if self._writer.refusal is None:
            try:
                await self._finish()
            except LogStopped:
                logger.warning("the log was closed without a last sync: %s", self.stopped)
        self._writer.refusal = LogStopped("the log is closed; start the broker again")
        self._positions.drop_all()
        if self._index_task is not None:
            await asyncio.wait([self._index_task])
        self._storage.close()

    def on_readable(self, callback: OnReadable) -> None:
        """`callback(start, end, queues)` hears when `readable` moved over messages; `queues` are
        the (incarnation, queue) that have some."""
        self._positions.on_readable = callback

    def on_stopped(self, callback: Callable[[str], None]) -> None:
        """`callback(reason)` hears when the log stopped for good."""
        self._on_stopped = callback

    def on_truncated(self, callback: Callable[[int], None]) -> None:
        """`callback(position)` hears of each cut: parked fetches are to be tried again."""
        self._on_truncated = callback

    # --- a drain ------------------------------------------------------------------------------

    def write(self) -> None:
        """The end of a drain: all that was appended goes out in one gathered write. Whoever waits
        for `appended` is called within. A failed write takes the whole drain back: its waiters
        get NOT_WRITTEN; if that isn't possible the log stops."""
        writer = self._writer
        if writer.refusal is not None:
            return
        if writer.checkpointing:
            self._checkpoint_step(self._settings.checkpoint_step_bytes)
        self._flush()
        if writer.is_due():
            self._roll()

    def wait(self, level: Level | PositionName | None, position: int, callback: Callback) -> None:
        """Call back once the log up to `position` has a level (None: the default one), or once a
        position of that name is reached; at once if it is so already. The callback may also hear
        that it never will be. Raises NotAvailable for a level that this log can't give."""
        name = self._name_of(self.default_level if level is None else level)
        positions = self._positions
        if self.stopped or position > self._writer.end:
            callback(Outcome.DROPPED)
        elif not positions.wait(name, position, callback) and position <= positions.appended:
            self._policy.demand()

    def demand(self, position: int) -> None:
        """Somebody waits until `position` is readable: start the sync that this takes."""
        if self.readable < min(position, self.appended) and self.synced < self.appended:
            self._policy.demand()

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

    def epoch_at(self, position: int) -> int:
        """The epoch of the batch that lies at `position`."""
        return self.state.epochs.at(position)

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
        common = max(
            self.index.next_offset_before(incarnation, queue, border),
            self.index.min_offset(incarnation, queue),
        )
        return common if offset > common else None

    async def when_loaded(self, look_up: Callable[[], T]) -> T:
        """What `look_up` returns, once the indexes that it needs are in memory."""
        return await self.index.when_loaded(look_up)

    def read_now(
        self, incarnation: int, queue: int, offset: int, max_bytes: int
    ) -> ReadResult | None:
        """Readable batches of a queue if they are at hand, else None; see `Reader.read_now`."""
        return self.reader.read_now(incarnation, queue, offset, max_bytes, self.readable)

    async def read(self, incarnation: int, queue: int, offset: int, max_bytes: int) -> ReadResult:
        """The same, waiting for the disk."""
        return await self.reader.read(incarnation, queue, offset, max_bytes, self.readable)

    # --- cutting and trimming -----------------------------------------------------------------

    def roll(self) -> None:
        """Close the segment now, if its head checkpoint has ended (else nothing happens)."""
        self.write()
        if self._writer.refusal is None and not self._writer.checkpointing:
            self._roll()

    def truncate(self, position: int) -> None:
        """Cut everything from `position` on (the end of a batch) and go on in a new segment and
        epoch. Waiters beyond it are dropped. Raises ValueError for a place that is no border,
        LogError if the cut is not possible: then the log has stopped."""
        if self._writer.refusal is not None:
            raise self._writer.refusal
        if not self.start <= position <= self.appended:
            raise ValueError(
                f"position {position} is not in the log, which has {self.start} to {self.appended}"
            )
        check_border(self._storage, position, self._writer.seed)
        try:
            self._cut(position, Outcome.DROPPED, new_epoch=True)
        except (OSError, LogError) as error:
            self._stop(f"the log could not be cut at position {position}: {error}")
            raise

    async def trim(self, position: int) -> int:
        """Delete what lies before `position`, as far as whole segments allow; the new start.

        The segment that becomes the first one has a whole and settled head checkpoint. Nothing is
        deleted before the trim itself is settled. Raises NoSpace, LogStopped, LogInDoubt.
        """
        writer = self._writer
        if writer.refusal is not None:
            raise writer.refusal
        settled, known = self.settled, dict(writer.checkpoints)
        found = await self._environment.threads.run(
            lambda: trim_target(self._storage, position, settled, writer.seed, known)
        )
        if found is None or found[0] <= self.start:
            return self.start
        target = found[0]
        appended = self.append_control("trim", [Trim(target)])
        self.write()
        await self._settlement(appended.end)
        await self.index.trim(target)
        self.start = target
        self._storage.trim(target)
        return target

    # --- inside: opening and closing ----------------------------------------------------------

    def _make_index(self, log_seed: int) -> QueueIndex:
        self.index = self._writer.index = QueueIndex(
            self._storage, self._environment, log_seed, self.state.next_offsets
        )
        return self.index

    def _take_over(self, found: Recovered) -> None:
        """The writer and the positions stand where the log ends."""
        writer = self._writer
        assert found.log_id is not None, "open() gives a new log its id"
        writer.log_id, writer.seed = found.log_id, found.seed
        writer.epoch = max(found.epoch, self.state.epochs.last)
        writer.end, writer.store_time = found.end, found.store_time
        writer.last_kind = found.last_kind
        segments = self._storage.segments()
        oldest = segments[0].base if segments else 0
        self.start = max(self.state.log_start.position, oldest)

    def _open_doubtful(self, found: Recovered) -> RecoveryReport:
        self.in_doubt = found.in_doubt
        self._writer.refusal = LogInDoubt(found.in_doubt)
        self.index.read_only = True
        self._positions.start_at(found.end)
        return self._report(found, [], 0, 0)

    async def _open_writable(self, found: Recovered) -> RecoveryReport:
        """Settle what is there, then begin a new segment and epoch; both are on disk before this
        returns."""
        writer = self._writer
        cuts, rewritten = settle_tail(self._storage, found)
        self._positions.start_at(found.end)
        if found.open_base is not None:
            self.index.seal(found.open_base, found.end)
        writer.begin_segment(new_epoch=True)
        writer.refusal = None
        register_kinds(self.state, writer, self._settings)
        try:
            self._finish_checkpoint()
        except OSError as error:
            raise LogError(f"the log can't be written ({error}); check the disk") from error
        self._policy.start(self._syncer)
        await self._syncer.sync()
        before = len(self._storage.segments())
        if self.state.log_start.position > 0:
            await self.index.trim(self.start)
            self._storage.trim(self.start)
        self._write_indexes()
        return self._report(found, cuts, rewritten, before - len(self._storage.segments()))

    def _report(
        self, found: Recovered, cuts: list[Cut], rewritten: int, trimmed: int
    ) -> RecoveryReport:
        gap = self.start if self.start > self.state.log_start.position else 0
        return RecoveryReport(
            epoch=self.epoch,
            replayed_batches=found.replayed_batches,
            replayed_from=found.replayed_from,
            cuts=cuts,
            damage=found.damage,
            missing_below=gap,
            in_doubt=found.in_doubt,
            rewritten_bytes=rewritten,
            trimmed_segments=trimmed,
        )

    async def _finish(self) -> None:
        self.write()
        if self._writer.refusal is None:
            await self._policy.stop()
            await self._syncer.sync()
            if self._writer.last_kind != Kind.MARK:
                try:
                    self.append_control("mark", [Mark(self.synced)])
                except NoSpace:
                    logger.warning("the disk is full: the log is closed without a mark")
                self._flush()
                await self._syncer.sync()

    # --- inside: writing ----------------------------------------------------------------------

    def _name_of(self, level: Level | PositionName) -> PositionName:
        if level == "quorum":
            raise NotAvailable(
                "level quorum needs replication, and no enabled plugin brings it; use disk, or"
                " enable one",
                "LEVEL_NOT_AVAILABLE",
            )
        if level == "memory" or level == "disk":
            return POSITION_OF[level]
        return level

    def _flush(self) -> None:
        try:
            drained = self._writer.flush()
        except OSError as error:
            self._take_back(error)
            return
        if drained:
            self._moved(drained)

    def _moved(self, drained: int) -> None:
        positions = self._positions
        positions.move_appended(self._writer.end)
        awaited = positions.awaits_sync()
        alone = awaited and drained == 1 and positions.waiting() == 1
        self._policy.appended(awaited, alone)
        if "age" not in self._timers and self._writer.first_message_s is not None:
            due = self._writer.first_message_s + self._settings.segment_age_s
            self._call_at("age", due, self.write)

    def _take_back(self, error: OSError) -> None:
        """A write failed: the log is what it was before it."""
        logger.error("a write to the log failed: %s; it is taken back", error)
        try:
            self._cut(self.appended, Outcome.NOT_WRITTEN, new_epoch=False)
        except (OSError, LogError) as second:
            self._stop(
                f"a write to the log failed ({error}) and could not be taken back ({second});"
                " check the disk, then start again"
            )

    def _cut(self, position: int, outcome: Outcome, *, new_epoch: bool) -> None:
        """Truncate; the log goes on in a new segment. Raises OSError, LogError."""
        writer, storage = self._writer, self._storage
        kept = storage.cut(position)
        self._syncer.cut(position)
        self.index.cut(position)
        replay = reload_state(storage, self.state, writer.node, writer.seed)
        if replay is not None and replay.open_base is not None:
            self.index.seal(replay.open_base, position)
        writer.forget(position)
        logger.warning("the log was cut at position %d; what was cut is in %s", position, kept)
        self._positions.cut(position, outcome)
        writer.begin_segment(new_epoch=new_epoch)
        self._finish_checkpoint()
        if self._on_truncated is not None:
            self._on_truncated(position)
        self._write_indexes()

    def _finish_checkpoint(self) -> None:
        """Write the whole head checkpoint now. Raises OSError, NoSpace."""
        writer = self._writer
        while True:
            writer.checkpoint_step(START_STEP_BYTES)
            writer.flush()
            self._positions.move_appended(writer.end)
            if not writer.checkpointing:
                return

    def _roll(self) -> None:
        try:
            self._writer.begin_segment()
        except NoSpace as error:
            self._complain(error)
            return
        except (OSError, LogError) as error:
            self._stop(f"no new segment could be begun ({error}); check the disk, start again")
            return
        if "age" in self._timers:
            self._timers.pop("age").cancel()
        self._flush()
        self._write_indexes()
        self._tick()

    def _checkpoint_step(self, budget_bytes: int) -> None:
        try:
            self._writer.checkpoint_step(budget_bytes)
        except NoSpace as error:
            self._complain(error)

    def _complain(self, error: NoSpace) -> None:
        if not self._complained_of_space:
            self._complained_of_space = True
            logger.warning("the log goes on in its old segment: %s", error)

    def _tick(self) -> None:
        """An idle log gets on with its checkpoint."""
        if self._writer.refusal is None and self._writer.checkpointing:
            self.write()
            clock = self._environment.clock
            due = clock.monotonic_s() + self._settings.background_ms / 1000
            self._call_at("background", due, self._tick)

    def _call_at(self, name: str, due_s: float, callback: Callable[[], None]) -> None:
        def fire() -> None:
            self._timers.pop(name, None)
            callback()

        self._timers[name] = self._environment.clock.call_at(due_s, fire)

    def _write_indexes(self) -> None:
        if self._index_task is None or self._index_task.done():
            self._index_task = asyncio.create_task(self.index.write())

    # --- inside: syncing ----------------------------------------------------------------------

    def _on_synced(self) -> None:
        if self._writer.refusal is None:
            self._marks.synced()

    def _mark_place(self) -> int:
        end = self._writer.end
        return end if end == self.synced and self._writer.last_kind != Kind.MARK else -1

    def _mark(self) -> None:
        if self._writer.refusal is not None:
            return
        try:
            end = self.append_control("mark", [Mark(self.synced)]).end
        except NoSpace as error:
            self._complain(error)
            return
        self._positions.wait("synced", end, lambda outcome: None)
        self.write()

    async def _settlement(self, position: int) -> None:
        """Wait until `position` is settled. Raises LogStopped."""
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def settled(outcome: Outcome) -> None:
            if not done.done():
                done.set_result(outcome)

        self.wait("settled", position, settled)
        if await done is not Outcome.REACHED:
            raise LogStopped(self.stopped or f"the log was cut before position {position}")

    def _stop(self, reason: str) -> None:
        """For good: nothing may be assumed about what the disk holds."""
        if self.stopped:
            return
        self.stopped = reason
        logger.error("the log has stopped: %s", reason)
        self._writer.refusal = LogStopped(reason)
        self._marks.stop()
        self._positions.drop_all()
        if self._on_stopped is not None:
            self._on_stopped(reason)
