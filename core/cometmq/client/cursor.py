"""One queue as a consumer reads it: where it is, what is fetched, what may be wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from cometmq.batch import (
    BATCH_BYTES_MAX,
    Batch,
    decode_messages,
    parse,
    seed,
    verify_broker,
    verify_producer,
)
from cometmq.batch.compression import Codec
from cometmq.client.calls import Call
from cometmq.client.codecs import codec_for
from cometmq.errors import BatchError, CometError, ConfigError, Unreadable
from cometmq.message import Origin, ReceivedMessage, UnreadableMessage
from cometmq.protocol import Token

Decoded = Sequence[ReceivedMessage | UnreadableMessage]


class Place:
    """An offset and the epoch valid for it; they are never changed apart."""

    __slots__ = ("epoch", "offset")

    def __init__(self, offset: int, epoch: int) -> None:
        self.offset = offset
        self.epoch = epoch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and (other.offset, other.epoch) == (self.offset, self.epoch)

    __hash__ = None  # type: ignore[assignment]


class Cursor:
    """A queue, its place, and the batches fetched ahead of it.

    Batches wait as bytes: they are decoded when somebody polls, after the next fetch was asked
    for.
    """

    __slots__ = (
        "asked",
        "buffered_bytes",
        "call",
        "chunks",
        "decoded",
        "dirty",
        "error",
        "fetch",
        "idle",
        "incarnation",
        "inflated_bytes",
        "place",
        "queue",
        "raised",
        "seeks",
        "suspect",
        "token",
        "topic",
    )

    def __init__(self, topic: str, queue: int, incarnation: int) -> None:
        self.topic = topic
        self.queue = queue
        self.incarnation = incarnation
        self.place: Place | None = None
        """The next message to hand out; None until it is known where to start."""
        self.fetch = Place(0, 0)
        """The next one to fetch."""
        self.call: Call[Any] | None = None
        """The fetch that it is part of; an answer to any other one is stale."""
        self.chunks: deque[memoryview | Place] = deque()
        """Batches as they came, and the place behind the last of each answer."""
        self.decoded: tuple[Decoded, int, Place] | None = None
        """A batch handed out in part: messages, how many are gone, the place behind it."""
        self.buffered_bytes = 0
        self.inflated_bytes = 0
        """By how much all that was decompressed has grown."""
        self.error: CometError | None = None
        """What stands at the place behind all chunks; nothing is fetched until a seek."""
        self.raised = False
        self.suspect = -1
        """The offset of a batch whose bytes were wrong once."""
        self.dirty = False
        """Whether the place is worth a commit."""
        self.seeks = 0
        """How often its user has chosen another place."""
        self.asked = Place(0, 0)
        """The place that its user last asked to commit."""
        self.token: Token | None = None
        """The claim under which it is read; None: it is read without one."""
        self.idle = False
        """Nobody takes from it now: nothing more is fetched, what waits here holds up no other."""

    @property
    def empty(self) -> bool:
        """Whether everything fetched is handed out."""
        return not self.chunks and self.decoded is None

    @property
    def hungry(self) -> bool:
        """Whether it may be fetched: its place is known, nothing is out, nothing is wrong, and it
        is wanted."""
        return not (self.place is None or self.call or self.error or self.idle)

    def move(self, offset: int, epoch: int) -> None:
        """Go on at another place; what was fetched and what was wrong is forgotten."""
        self.place = Place(offset, epoch)
        self.fetch = Place(offset, epoch)
        self.call = None
        self.chunks.clear()
        self.decoded = None
        self.buffered_bytes = 0
        self.error = None
        self.raised = False

    def stop(self, error: CometError) -> None:
        """Stand still at the place, for a reason that lies right there."""
        assert self.place is not None
        self.move(self.place.offset, self.place.epoch)
        self.error = error

    def add(self, batches: Sequence[memoryview], behind: Place) -> None:
        """Take what a fetch brought, and the place behind it."""
        if not batches and self.chunks and isinstance(self.chunks[-1], Place):
            self.chunks.pop()  # only the last one counts, and nobody may come for long
        self.chunks.extend(batches)
        self.chunks.append(behind)
        self.buffered_bytes += sum(len(batch) for batch in batches)
        self.fetch = behind

    def take(self, most: int, log_id: bytes) -> Decoded:
        """Up to `most` messages of one batch; moves the place behind them.

        Empty when nothing is there. Raises BatchError for a batch whose bytes are not what the
        broker stored, Unreadable for one that needs a codec which is not installed; the place
        stays before it, as it does whatever else is raised.
        """
        if self.decoded is None and not self._decode_next(log_id):
            return ()
        assert self.decoded is not None
        messages, gone, behind = self.decoded
        if gone == 0 and len(messages) <= most:
            self.decoded = None
            self.place = behind
        else:
            part = messages[gone : gone + most]
            gone += len(part)
            self.decoded = (messages, gone, behind) if gone < len(messages) else None
            last = part[-1]
            self.place = behind if self.decoded is None else Place(last.offset + 1, behind.epoch)
            messages = part
        self.dirty = True
        self.pass_marks()
        return messages

    def put_back(self, messages: Decoded, after: int) -> None:
        """Only the first `after` of these, just taken, were handed out."""
        assert self.place is not None
        rest = messages[after:]
        behind = self.place
        if self.decoded is not None:
            whole, gone, behind = self.decoded
            rest = [*rest, *whole[gone:]]
        self.decoded = (rest, 0, behind)
        self.place = Place(rest[0].offset, rest[0].origin.epoch)

    def first_behind_damage(self) -> int:
        """The first offset that can be read behind the first batch, just found damaged."""
        for chunk in islice(self.chunks, 1, None):
            if isinstance(chunk, Place):
                return chunk.offset
            try:
                return parse(chunk, limit=BATCH_BYTES_MAX).base_offset
            except BatchError:
                continue  # damaged as well
        return self.fetch.offset

    def _decode_next(self, log_id: bytes) -> bool:
        """Decode the next chunk that has messages for us."""
        self.pass_marks()
        while self.chunks:
            chunk = self.chunks[0]
            assert isinstance(chunk, memoryview) and self.place is not None
            batch = parse(chunk, limit=BATCH_BYTES_MAX)
            self._check(batch, log_id)
            origin = Origin(
                self.topic,
                batch.queue,
                batch.store_time,
                batch.position,
                batch.epoch,
                batch.incarnation,
                log_id,
            )
            codec = self._codec_for(batch)
            messages = decode_messages(batch, origin, first_offset=self.place.offset, codec=codec)
            if codec is not None:
                self.inflated_bytes += max(0, batch.uncompressed_size - len(batch.records))
            behind = Place(max(batch.next_offset, self.place.offset), batch.epoch)
            # Not before: whatever is raised above, be it for want of memory, costs no batch.
            self.chunks.popleft()
            self.buffered_bytes -= len(chunk)
            if messages:
                self.decoded = (messages, 0, behind)
                return True
            self.place = behind
            self.pass_marks()
        return False

    def _check(self, batch: Batch, log_id: bytes) -> None:
        """The bytes are those that this log stored, for this queue."""
        verify_broker(batch, seed(log_id))
        verify_producer(batch)
        if (batch.incarnation, batch.queue) != (self.incarnation, self.queue):
            raise BatchError(
                f"a batch for queue {batch.queue} of incarnation {batch.incarnation} came for "
                f"queue {self.queue} of {self.topic}, incarnation {self.incarnation}"
            )

    def _codec_for(self, batch: Batch) -> Codec | None:
        try:
            return codec_for(batch.codec)
        except ConfigError as error:
            # No policy skips it: the messages are good, and another reader can read them.
            raise Unreadable(
                f"offsets {batch.base_offset} to {batch.next_offset - 1} of queue {self.queue} of "
                f"{self.topic} can't be read here: {error}",
                topic=self.topic,
                queue=self.queue,
                next_offset=batch.next_offset,
            ) from error

    def pass_marks(self) -> None:
        """At the end of an answer its place, with its epoch, becomes ours."""
        if self.decoded is not None:
            return
        while self.chunks and isinstance(self.chunks[0], Place):
            mark = self.chunks.popleft()
            assert isinstance(mark, Place) and self.place is not None
            if mark.offset >= self.place.offset:
                self.place = mark
