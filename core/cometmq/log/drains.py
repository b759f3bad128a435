"""Drains: what was appended is written, waiters are served, segments change, cuts are made."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from cometmq.advice import advice
from cometmq.environment import Environment, Timer
from cometmq.errors import FAILURES, DiskRefused, LogError, LogStopped, NoSpace
from cometmq.interfaces import FlushPolicy, Level, StateView, Storage
from cometmq.log.cutting import reload_state
from cometmq.log.opening import START_STEP_BYTES
from cometmq.log.places import LogPlaces, position_of
from cometmq.log.positions import Callback, OnReadable, Outcome, PositionName
from cometmq.log.records import ClockAhead
from cometmq.log.settings import LogSettings
from cometmq.log.syncing import LogSyncer
from cometmq.log.writer import TornDrain

logger = logging.getLogger(__name__)

TORN_MAX = 32
TORN_WITHIN_S = 3600.0
"""So many torn drains within this time stop the log."""


class LogDrains(LogPlaces):
    """The writing half of a `Log`."""

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
        self.append = self._writer.append
        self.append_control = self._writer.append_control
        self._syncer = LogSyncer(storage, self._positions, environment, self._on_synced, self._stop)
        self._on_stopped: Callable[[str], None] | None = None
        self._on_truncated: Callable[[int], None] | None = None
        self._blame_policy: Callable[[BaseException], BaseException] = lambda error: error
        self._named_end: Callable[[Awaitable[None]], Awaitable[None]] = lambda end: end
        self._policy_failure = ""
        self._timers: dict[str, Timer] = {}
        self._index_task: asyncio.Task[None] | None = None
        self._complained_of_space = False
        self._torn_s: deque[float] = deque(maxlen=TORN_MAX)
        """When drains were torn last."""

    def on_readable(self, callback: OnReadable) -> None:
        """`callback(start, end, queues)` hears when `readable` moved over messages; `queues` are
        the (incarnation, queue) that have some."""
        self._positions.on_readable = callback

    def on_stopped(self, callback: Callable[[str], None]) -> None:
        """`callback(reason)` hears when the log stopped for good."""
        self._on_stopped = callback

    def on_policy_failure(self, blame: Callable[[BaseException], BaseException]) -> None:
        """`blame(error)` names the plugin whose flush policy raised."""
        self._blame_policy = blame

    def on_policy_end(self, named: Callable[[Awaitable[None]], Awaitable[None]]) -> None:
        """`named(end)` awaits the end of the flush policy, and says meanwhile whose it is."""
        self._named_end = named

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

    def look_at_clock(self) -> ClockAhead:
        """How far the wall clock is ahead, also if it stepped since the last batch: then the log
        says so now. Raises NoSpace, DiskRefused, LogStopped, LogInDoubt."""
        self._writer.look_at_clock()
        self.write()
        return self.state.clock_ahead.now

    def wait(self, level: Level | PositionName | None, position: int, callback: Callback) -> None:
        """Call back once the log up to `position` has a level (None: the default one), or once a
        position of that name is reached; at once if it is so already. The callback may also hear
        that it never will be. Raises NotAvailable for a level that this log can't give."""
        name = self._waited_for.get(level) or position_of(level or self.default_level)
        positions = self._positions
        if self.stopped or position > self._writer.end:
            callback(Outcome.DROPPED)
        elif position > positions.appended:
            positions.waiters[name].add(position, callback)
        elif not positions.wait(name, position, callback) and position <= positions.appended:
            self._demand()

    def demand(self, position: int) -> None:
        """Somebody waits until `position` is readable: start the sync that this takes."""
        if self.readable < min(position, self.appended) and self.synced < self.appended:
            self._demand()

    # --- inside -------------------------------------------------------------------------------

    def _flush(self) -> None:
        try:
            drained = self._writer.flush()
        except (OSError, TornDrain) as error:
            self._take_back(error)
            return
        if drained:
            self._moved(drained)

    def _moved(self, drained: int) -> None:
        positions = self._positions
        positions.move_appended(self._writer.end)
        awaited = positions.awaits_sync()
        alone = awaited and drained == 1 and positions.waiting() == 1
        try:
            self._policy.appended(awaited, alone)
        except FAILURES as error:
            self._do_without_policy(error)
        if "age" not in self._timers and self._writer.first_message_s is not None:
            due = self._writer.first_message_s + self._settings.segment_age_s
            self._call_at("age", due, self._grow_old)

    def _demand(self) -> None:
        try:
            self._policy.demand()
        except FAILURES as error:
            self._do_without_policy(error)

    async def _end_policy(self) -> None:
        try:
            await self._named_end(self._policy.stop())
        except FAILURES as error:
            self._do_without_policy(error)

    def _do_without_policy(self, error: BaseException) -> None:
        """The flush policy failed, and nobody else would ever sync: do it here and now."""
        if self.stopped:
            return  # it found out by a sync that failed
        failure = str(self._blame_policy(error))
        if failure != self._policy_failure:  # once, since it comes with every drain
            self._policy_failure = failure
            logger.error("the log is synced without its flush policy: %s", failure, exc_info=error)
        if self.synced < self.appended:
            with suppress(LogStopped):  # told to all who wait
                self._syncer.sync_blocking()

    def _grow_old(self) -> None:
        """The segment is to close because of its age."""
        self._writer.is_old = True
        self.write()

    def _take_back(self, error: OSError | TornDrain) -> None:
        """A write failed: the log is what it was before it."""
        logger.error("a write to the log failed: %s; it is taken back", error)
        try:
            self._cut(self.appended, Outcome.NOT_WRITTEN, new_epoch=False)
        except Exception as second:  # also what a plugin's view makes of its own past
            self._stop(
                f"a write to the log failed ({error}) and could not be taken back ({second});"
                f" {advice(second)}, then start again"
            )
            return
        if isinstance(error, TornDrain):
            self._count_torn(error)

    def _count_torn(self, error: TornDrain) -> None:
        """Each costs a segment and a replay: not without an end."""
        now_s = self._environment.clock.monotonic_s()
        self._torn_s.append(now_s)
        if len(self._torn_s) == TORN_MAX and now_s - self._torn_s[0] <= TORN_WITHIN_S:
            self._stop(
                f"{error}; as this came {TORN_MAX} times within {TORN_WITHIN_S / 3600:.0f} h, "
                "nothing more is taken: mend what is named, then start again"
            )

    def _cut(self, position: int, outcome: Outcome, *, new_epoch: bool) -> None:
        """Truncate; the log goes on in a new segment. Raises OSError, LogError."""
        writer, storage = self._writer, self._storage
        kept = storage.cut(position)
        self._syncer.cut(position)
        self.index.cut(position)
        ahead = self.state.clock_ahead.now
        replay = reload_state(storage, self.state, writer.node, writer.seed)
        # What is known of the clock is no part of what was cut: the next segment begins with it.
        self.state.clock_ahead.now = ahead
        writer.go_on_at(position, None if replay is None else replay.open_base)
        logger.warning("the log was cut at position %d; what was cut is in %s", position, kept)
        self._positions.cut(position, outcome)
        writer.begin_segment(new_epoch=new_epoch)
        self._cancel("age")
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
        except (NoSpace, DiskRefused) as error:
            self._complain(error)
            return
        except (OSError, LogError) as error:
            self._stop(f"no new segment could be begun ({error}); {advice(error)}, start again")
            return
        self._cancel("age")
        self._flush()
        self._write_indexes()
        self._tick()

    def _checkpoint_step(self, budget_bytes: int) -> None:
        try:
            self._writer.checkpoint_step(budget_bytes)
        except LogError as error:
            # What messages this drain has is written all the same.
            self._complain(error)
        except Exception as error:  # a view's, or memory is short: without its state none may end
            self._stop(f"a checkpoint could not be made ({error!r}); start again")

    def _complain(self, error: LogError) -> None:
        if not self._complained_of_space:
            self._complained_of_space = True
            logger.warning("the log can't go on as it should: %s", error)

    def _tick(self) -> None:
        """An idle log gets on with its checkpoint."""
        if self._writer.refusal is None and self._writer.checkpointing:
            self.write()
            clock = self._environment.clock
            due = clock.monotonic_s() + self._settings.background_ms / 1000
            self._call_at("background", due, self._tick)

    def _call_at(self, name: str, due_s: float, callback: Callable[[], None]) -> None:
        """Call back later; a call of the same name that is still to come is forgotten."""

        def fire() -> None:
            self._timers.pop(name, None)
            callback()

        self._cancel(name)
        self._timers[name] = self._environment.clock.call_at(due_s, fire)

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _write_indexes(self) -> None:
        if self._index_task is None or self._index_task.done():
            self._index_task = asyncio.create_task(self.index.write())
            self._index_task.add_done_callback(_tell_failure)

    def _on_synced(self) -> None:
        """A sync ended."""
        raise NotImplementedError

    def _stop(self, reason: str) -> None:
        """For good: nothing may be assumed about what the disk holds."""
        if self.stopped:
            return
        self.stopped = reason
        logger.error("the log has stopped: %s", reason)
        self._writer.refusal = LogStopped(reason)
        self._positions.drop_all()
        if self._on_stopped is not None:
            self._on_stopped(reason)


def _tell_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        # It is derived: who needs it makes it again.
        logger.warning("an index of queues was not written: %s", error)
