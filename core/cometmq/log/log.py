"""The log: every fact that must survive is a batch in here, all else is derived from it.

One drain: `append` per batch, `write` once at its end, and callbacks as positions move. A batch
acts on state and index when it is appended, on readers when it is readable, and is answered when
the position of its level is reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from cometmq.advice import advice
from cometmq.batch import Kind, seed
from cometmq.environment import Environment
from cometmq.errors import DiskRefused, LogError, LogInDoubt, LogStopped
from cometmq.interfaces import FlushPolicy, Segment, StateView, Storage
from cometmq.log.cutting import check_border
from cometmq.log.drains import LogDrains
from cometmq.log.idle import IdleMarks
from cometmq.log.min_offsets import MinOffset
from cometmq.log.opening import check_absent, register_kinds, settle_tail
from cometmq.log.positions import Outcome
from cometmq.log.queue_index import QueueIndex
from cometmq.log.reader import Reader
from cometmq.log.records import RECORDS_MAX, Mark, Trim
from cometmq.log.recovery import Recovered, recover
from cometmq.log.settings import Cut, LogSettings, RecoveryReport
from cometmq.log.trimming import trim_target

logger = logging.getLogger(__name__)


class Log(LogDrains):
    """The commit log of one broker. All methods are called on the loop's thread.

    To append: `append` (see `LogWriter.append`) and `append_control` (see
    `LogWriter.append_control`), then `write` (see `LogDrains`). To ask: see `LogPlaces`. `index`
    and `reader` are there from `open` on.
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
        super().__init__(storage, flush_policy, environment, views=views, settings=settings)
        self._marks = IdleMarks(
            environment.clock, self._settings.mark_idle_ms, self._mark_place, self._mark
        )

    # --- life ---------------------------------------------------------------------------------

    async def open(self, understood: Callable[[], Awaitable[None]] | None = None) -> RecoveryReport:
        """Read what is there and get ready to append, or, in doubt, only to be read.

        `understood` is awaited once state and index are those of the log's end, before anything is
        written; if it raises, nothing is. Raises LogLocked, NoSpace, or LogError when the folder
        can't be used as it is.
        """
        self._storage.open()
        try:
            kept = self._storage.node_id()
            node = kept or self._environment.random.bytes(8)
            self._writer.node = node.hex()
            found = recover(self._storage, self.state, self._make_index, node.hex())
            if found.log_id is None:
                found.log_id = self._environment.random.bytes(8)
                found.seed = seed(found.log_id)
                self._make_index(found.seed)
            self.reader = Reader(self._storage, self._environment, self.index, found.seed)
            self._take_over(found)
            if not found.in_doubt:
                check_absent(self.state, self._settings)
            if understood is not None:
                await understood()
            if found.in_doubt:
                return self._open_doubtful(found)
            if kept is None:
                # Not before: a start in doubt leaves a folder without an id as it is.
                self._storage.keep_node_id(node)
            return await self._open_writable(found)
        except OSError as error:
            self._storage.close()
            raise LogError(
                f"the log can't be read or written ({error}); {advice(error)}, then start again"
            ) from error
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

    # --- cutting and trimming -----------------------------------------------------------------

    def roll(self) -> bool:
        """Close the segment now and begin the next one; not within a drain. False, and nothing
        happens, while its head checkpoint has not ended or there is no room for the next one."""
        self.write()
        writer = self._writer
        if writer.refusal is not None or writer.checkpointing:
            return False
        base = writer.base
        self._roll()
        return writer.base != base

    def truncate(self, position: int) -> None:
        """Cut everything from `position` on (the end of a batch) and go on in a new segment and
        epoch. Waiters beyond it are dropped. Raises ValueError for a place that is no border,
        LogStopped if the cut is not possible: then the log has stopped."""
        if self._writer.refusal is not None:
            raise self._writer.refusal
        if not self.start <= position <= self.appended:
            raise ValueError(
                f"position {position} is not in the log, which has {self.start} to {self.appended}"
            )
        check_border(self._storage, position, self._writer.seed)
        try:
            self._cut(position, Outcome.DROPPED, new_epoch=True)
        except Exception as error:  # a plugin's view has to bear its own past again
            self._stop(f"the log could not be cut at position {position}: {error}")
            raise LogStopped(self.stopped) from error

    async def trim(self, position: int) -> list[Segment]:
        """Delete what lies before `position`, as far as whole segments allow; what went, see
        `finish_trim`, which it begins with. The log then begins at `start`.

        The segment that becomes the first one has a whole and settled head checkpoint. Nothing is
        deleted before the trim itself is settled, and no more is given up while files of an
        earlier trim are still there. Raises NoSpace, LogStopped, LogInDoubt, and DiskRefused if
        a file can't be deleted.
        """
        writer = self._writer
        gone = await self.finish_trim()
        settled, known = self.settled, dict(writer.checkpoints)
        target = await self._environment.threads.run(
            lambda: trim_target(self._storage, position, settled, writer.seed, known)
        )
        if target is None or target <= self.start:
            return gone
        settlement = self._settlement(self.append_control("trim", [Trim(target)]).end)
        self.write()
        await settlement
        await self.index.trim(target)
        self.start = target
        return gone + await self._storage.trim_in_thread(target)

    async def finish_trim(self) -> list[Segment]:
        """Delete the files that an earlier trim left, because they could not be deleted then; the
        segments that went by it, or in a try before that failed. Raises DiskRefused if files still
        can't be deleted, LogStopped, LogInDoubt."""
        if self._writer.refusal is not None:
            raise self._writer.refusal
        return await self._storage.trim_in_thread(self.start)

    def raise_min_offsets(self, offsets: Mapping[tuple[int, int], int]) -> None:
        """Give up what lies below these offsets, by (incarnation, queue): readers hear at once
        that it is expired, its bytes go with their segments. What would lower one is left out.
        Raises NoSpace, LogStopped, LogInDoubt."""
        get = self.state.min_offsets.get
        records = [MinOffset(*key, to) for key, to in offsets.items() if to > get(*key)]
        for at in range(0, len(records), RECORDS_MAX):
            self.append_control("min-offset", records[at : at + RECORDS_MAX])
        self.write()

    # --- inside: opening and closing ----------------------------------------------------------

    def _make_index(self, log_seed: int) -> QueueIndex:
        self.index = self._writer.index = QueueIndex(
            self._storage,
            self._environment,
            log_seed,
            self.state.next_offsets,
            floor=self.state.min_offsets.get,
        )
        return self.index

    def _take_over(self, found: Recovered) -> None:
        """The writer and the positions stand where the log ends."""
        writer = self._writer
        assert found.log_id is not None, "open() gives a new log its id"
        writer.log_id, writer.seed = found.log_id, found.seed
        writer.epoch = max(found.epoch, self.state.epochs.last)
        writer.go_on_at(found.end, found.open_base)
        writer.go_on_from(found.store_time, found.last_kind)
        found.clock = self.state.clock_ahead.now
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
        writer.begin_segment(new_epoch=True)
        writer.refusal = None
        register_kinds(self.state, writer, self._settings)
        self._finish_checkpoint()
        self._policy.start(self._syncer)
        await self._syncer.sync()
        before = len(self._storage.segments())
        if self.state.log_start.position > 0:
            await self.index.trim(self.start)
            try:
                self._storage.trim(self.start)
            except DiskRefused as error:
                # No reason not to serve what is left; the next trim begins with them.
                logger.warning("a deletion could not be finished: %s", error)
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
            store_time=found.store_time,
            clock=found.clock,
        )

    async def _finish(self) -> None:
        self.write()
        if self._writer.refusal is None:
            # Before it, so that a policy whose end takes long has no disk to wait for.
            try:
                await self._syncer.sync()
            finally:
                await self._end_policy()
            if self._writer.last_kind != Kind.MARK:
                try:
                    self.append_control("mark", [Mark(self.synced)])
                except LogError as error:
                    logger.warning("the log is closed without a mark: %s", error)
                self._flush()
                await self._syncer.sync()

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
        except LogError as error:
            self._complain(error)
            return
        self._positions.wait("synced", end, lambda outcome: None)
        self.write()

    def _settlement(self, position: int) -> asyncio.Future[None]:
        """Done when `position` is settled; raises LogError if that is not to be. To be asked for
        before the write, which may be taken back: what comes to lie there later is another."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settled(outcome: Outcome) -> None:
            if done.done():
                return
            if outcome is Outcome.REACHED:
                done.set_result(None)
            elif self.stopped or outcome is Outcome.DROPPED:
                reason = self.stopped or f"the log was cut before position {position}"
                done.set_exception(LogStopped(reason))
            else:
                done.set_exception(LogError("the write to the log failed and was taken back"))

        self.wait("settled", position, settled)
        return done
