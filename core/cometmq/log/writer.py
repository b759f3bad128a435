"""The growing end of the log: stamping, applying, the gathered write, segments, checkpoints.

A batch is stamped only into space that is really there, applied to state and index at once, and
written with everything else of its drain. Segments change between drains, never within one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cometmq.advice import advice
from cometmq.batch import (
    FLAG_AMENDED,
    STAMPED_BYTES,
    Batch,
    Kind,
    encode_control,
    parse,
    stamp,
    stamped,
)
from cometmq.environment import Buffer, Clock
from cometmq.errors import CometError, DiskRefused, LogStopped
from cometmq.interfaces import Storage
from cometmq.log.checkpoint import CheckpointWriter
from cometmq.log.clock_ahead import STEP_MS, StepWatch
from cometmq.log.positions import Positions
from cometmq.log.queue_index import QueueIndex
from cometmq.log.records import EpochStart, SegmentStart
from cometmq.log.settings import Appended, LogSettings
from cometmq.log.state import State, blamed

_MESSAGES = int(Kind.MESSAGES)
SMOOTHED_MS = 60_000
"""A wall clock that steps back by no more than this is waited for; a larger step is followed."""
COPIED_BYTES = 4096
"""A batch up to this size is copied; of a larger one only the stamped head."""
CHECKPOINT_SHARE = 20
"""A segment that closes by its number of batches is so many times its checkpoint."""


class TornDrain(Exception):
    """A state view or the memory failed in the middle of an append: what is appended behind it in
    the same drain is lost with it."""


class LogWriter:
    """Appends to the last segment, and opens the next one when it is due."""

    def __init__(
        self,
        storage: Storage,
        state: State,
        positions: Positions,
        clock: Clock,
        settings: LogSettings,
    ) -> None:
        self._storage = storage
        self._state = state
        self._positions = positions
        self._clock = clock
        self._settings = settings
        self._steps = StepWatch(clock)
        self.refusal: CometError | None = LogStopped("the log is not open; call open() first")
        """Why nothing can be appended."""
        self.index: QueueIndex
        self.log_id = b""
        self.seed = 0
        self.node = ""
        self.epoch = 0
        self.end = 0
        """Behind the last batch stamped; `appended` follows with the write."""
        self.store_time = 0
        self.last_kind = -1
        self.checkpoints: dict[int, int] = {}
        """Base of a segment -> end of its whole head checkpoint, as far as known."""
        self._checkpoint: CheckpointWriter | None = None
        self._checkpoint_bytes = 0
        self._buffers: list[Buffer] = []
        self._drained = 0
        self._torn: BaseException | None = None
        """What came in the middle of taking a batch into state and index."""
        self._base: int | None = None
        self._full_at = 0
        self._batches = 0
        self._first_message_s: float | None = None
        self.is_old = False
        """The segment is to close because of its age."""

    # --- appending ----------------------------------------------------------------------------

    def append(
        self,
        batch: Batch | bytearray,
        *,
        incarnation: int,
        queue: int,
        origin_kind: int = 0,
        origin_position: int = 0,
        amended: bool = False,
    ) -> Appended:
        """Stamp a sealed batch of messages for a queue and take it into state and index.

        The batch must have passed `parse` and `verify_producer`; its bytes are not changed. It is
        in the log once `write` was called at the end of the drain. Raises NoSpace, DiskRefused,
        LogStopped or LogInDoubt before anything changed.
        """
        if not isinstance(batch, Batch):
            batch = parse(batch)
        if self.refusal is not None:
            raise self.refusal
        store_time = self._clock.wall_ms()
        if not self.store_time <= store_time <= self.store_time + STEP_MS:
            store_time = self._stamp_time(self._look_at_clock())
        position, length = self.end, batch.length
        end = position + length
        try:
            self._storage.allocate(end)
        except OSError as error:
            raise _no_ground(error) from error
        whole = length <= COPIED_BYTES
        next_offsets = self._state.next_offsets
        base_offset = next_offsets.get(incarnation, queue)
        head = stamped(  # before anything is changed: memory may be short
            batch,
            length if whole else STAMPED_BYTES,
            self.seed,
            position,
            self.epoch,
            self._positions.synced,
            base_offset,
            store_time,
            incarnation,
            queue,
            origin_kind,
            FLAG_AMENDED if amended else 0,
            origin_position,
        )
        try:
            next_offsets.take(incarnation, queue, batch.count)
            key = incarnation, queue
            self.index.take(key, base_offset, batch.count, position, length, store_time)
            self._positions.note_messages(end, key)
            self._buffers.append(head)
            if not whole:
                self._buffers.append(batch.view[STAMPED_BYTES:])
            for guest in self._state.message_views:
                try:
                    guest.apply(batch)
                except Exception as error:
                    raise blamed(guest, error) from error
        except BaseException as error:
            self._torn = error
            raise
        if self._first_message_s is None:
            self._first_message_s = self._clock.monotonic_s()
        self.end, self.store_time, self.last_kind = end, store_time, _MESSAGES
        self._batches += 1
        self._drained += 1
        return Appended(position, end, base_offset, store_time)

    def append_control(self, kind: str, records: Sequence[Any]) -> Appended:
        """Append a control batch of a named kind and take it into the state.

        Records are what msgspec encodes, or bytes already encoded. It may take the space reserve.
        Raises NoSpace, DiskRefused, LogStopped or LogInDoubt before anything changed, and
        ValueError for a kind that no view of this log knows.
        """
        if self.refusal is not None:
            raise self.refusal
        appended = self._control(kind, records)
        self._batches += 1
        return appended

    def look_at_clock(self) -> None:
        """Say of a step of the wall clock now, and not only before the next batch. Raises NoSpace,
        DiskRefused, LogStopped or LogInDoubt before anything changed."""
        if self.refusal is not None:
            raise self.refusal
        self._tell_step(self._clock.wall_ms())

    def flush(self) -> int:
        """One gathered write of what was appended; returns how many batches. Raises OSError, and
        TornDrain if state and index are those of no log: all of it is to be taken back."""
        if self._torn is not None:
            torn = self._torn
            why = torn if isinstance(torn, CometError) else repr(torn)
            raise TornDrain(f"a batch was taken in only by half: {why}") from torn
        drained = self._drained
        if self._buffers:
            self._storage.write(self._positions.appended, self._buffers)
            self._buffers = []
            self._drained = 0
        return drained

    def go_on_at(self, position: int, open_base: int | None) -> None:
        """The log ends at `position`, and state and index are those of this place; the index of
        the segment at `open_base` is open, None if none is. `begin_segment` is to follow."""
        self._buffers = []
        self._drained = 0
        self._torn = None
        self._checkpoint = None
        self.end = position
        self._base = open_base
        self.checkpoints = {base: end for base, end in self.checkpoints.items() if end <= position}

    def go_on_from(self, store_time: int, last_kind: int) -> None:
        """What is known of the last batch of a log that was found: the time since is in doubt."""
        self.store_time, self.last_kind = store_time, last_kind
        if store_time:
            self._steps.expect(store_time)

    # --- segments -----------------------------------------------------------------------------

    def begin_segment(self, *, new_epoch: bool = False) -> None:
        """Go on in a new segment at `end`; everything before was written. Raises NoSpace or
        DiskRefused: then the segment that was written to, if there is one, still is."""
        base = self.end
        self._storage.begin(base)
        if self._base is not None:
            self.index.seal(self._base, base)
        self.index.open(base)
        self.epoch += new_epoch
        self._base = base
        self._full_at = base + self._settings.segment_bytes
        self._batches = 0
        self._first_message_s = None
        self.is_old = False
        self._checkpoint = None
        self._checkpoint_bytes = 0
        now = self._clock.wall_ms()
        ahead = self._steps.look(now, self._state.clock_ahead.now)
        start = SegmentStart(
            self.log_id, self.epoch, self.node, base, base, now, ahead.ahead_ms, ahead.even_ms
        )
        self._put("segment-start", [start], now)
        self._steps.expect(now)
        if new_epoch:
            self._control("epoch-start", [EpochStart(self.epoch, self.node, base)])
        self._checkpoint = CheckpointWriter(base, self._state.slices())

    def is_due(self) -> bool:
        """Whether the segment should close now."""
        batches = self._batches
        if self._checkpoint is not None or not batches:
            return False
        if self.end >= self._full_at or self.is_old:
            return True
        if batches < self._settings.segment_batches:
            return False
        return self.end - self.base >= CHECKPOINT_SHARE * self._checkpoint_bytes

    @property
    def base(self) -> int:
        """Position of the segment that is written to."""
        assert self._base is not None, "a segment is begun before anything is asked of it"
        return self._base

    @property
    def first_message_s(self) -> float | None:
        """When the segment got its first message, on the monotonic clock."""
        return self._first_message_s

    @property
    def checkpointing(self) -> bool:
        """Whether the head checkpoint has not ended yet."""
        return self._checkpoint is not None

    def checkpoint_step(self, budget_bytes: int) -> None:
        """Append the next slices of the head checkpoint, about so many bytes. Raises NoSpace or
        DiskRefused: then the same slices are tried again at the next step."""
        checkpoint = self._checkpoint
        while checkpoint is not None and budget_bytes > 0:
            kind, record = checkpoint.peek()
            name = "checkpoint-slice" if kind == Kind.CHECKPOINT_SLICE else "checkpoint-end"
            appended = self._control(name, [record])
            checkpoint.take()
            size = appended.end - appended.position
            self._checkpoint_bytes += size
            budget_bytes -= size
            if checkpoint.ended:
                self.checkpoints[self.base] = appended.end
                self._checkpoint = checkpoint = None

    # --- inside -------------------------------------------------------------------------------

    def _look_at_clock(self) -> int:
        """What the wall clock says; if that is a step, the log says so before anything is stamped
        by it."""
        now = self._clock.wall_ms()
        if not -STEP_MS <= now - self.store_time <= STEP_MS:
            self._tell_step(now)
        return now

    def _tell_step(self, now: int) -> None:
        known = self._state.clock_ahead.now
        ahead = self._steps.look(now, known)
        if ahead != known:
            self._put("clock-ahead", [ahead], now)
        self._steps.expect(now)

    def _control(self, kind: str, records: Sequence[Any]) -> Appended:
        return self._put(kind, records, self._look_at_clock())

    def _put(self, kind: str, records: Sequence[Any], now: int) -> Appended:
        number = self._state.kinds.number_of(kind)
        if number is None:
            raise ValueError(f"no state view of this log has the batch kind {kind!r}")
        buffer = encode_control(number, records)
        position = self.end
        end = position + len(buffer)
        try:
            self._storage.allocate(end, urgent=True)
        except OSError as error:
            raise _no_ground(error) from error
        store_time = self._stamp_time(now)
        stamp(
            buffer,
            log_id_seed=self.seed,
            position=position,
            epoch=self.epoch,
            synced_before=self._positions.synced,
            base_offset=0,
            store_time=store_time,
            incarnation=0,
            queue=0,
        )
        try:
            self._state.apply(parse(buffer))
            self._buffers.append(buffer)
        except BaseException as error:
            self._torn = error
            raise
        self.end = end
        self.store_time = store_time
        self.last_kind = number
        self._drained += 1
        return Appended(position, end, 0, store_time)

    def _stamp_time(self, now: int) -> int:
        last = self.store_time
        return last if last - SMOOTHED_MS <= now < last else now


def _no_ground(error: OSError) -> DiskRefused:
    """The disk refused space for another reason than being full."""
    return DiskRefused(
        f"the log can't be extended ({error}); nothing of this was stored: {advice(error)}, then "
        "send again (no restart is needed)"
    )
