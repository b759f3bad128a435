"""Batches on their way, and what a caller holds of them: receipts and results.

A batch is *open* while messages are appended to it without a lock, *closed* when its records are
fixed, and *done* when it is known what became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Protocol, cast

import msgspec

from cometmq.batch import (
    NO_PROPERTIES,
    ProducerTuple,
    RecordTuple,
    encode_bodies,
    encode_messages,
)
from cometmq.client.arguments import check_timeout
from cometmq.client.flows import Waitable, log
from cometmq.client.routing import Route
from cometmq.client.validation import queue_of_key
from cometmq.errors import CometError, OutcomeUnknown
from cometmq.interfaces import Level

CLOCK_EVERY = 16
"""Behind so many messages of a batch one in so many asks for the time: a third of an append."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Where a batch was stored: shared by the results of its messages."""

    topic: str
    queue: int
    level: str
    """The ack level that was reached: memory, disk or quorum."""
    base_offset: int
    store_time: int
    """When the broker appended it, in ms since 1970."""
    epoch: int
    incarnation: int
    log_id: str


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """One stored message."""

    offset: int
    """Its place in its queue."""
    stored: Stored

    def __repr__(self) -> str:
        place = f"topic={self.topic!r}, queue={self.queue}, offset={self.offset}"
        return f"SendResult({place}, level={self.level!r})"

    @property
    def topic(self) -> str:
        """The topic it was sent to."""
        return self.stored.topic

    @property
    def queue(self) -> int:
        """The queue that it was stored in."""
        return self.stored.queue

    @property
    def level(self) -> str:
        """The ack level that was reached: memory, disk or quorum."""
        return self.stored.level

    @property
    def store_time(self) -> int:
        """When the broker appended it, in ms since 1970."""
        return self.stored.store_time

    @property
    def message_id(self) -> str:
        """The name of this one message: log id, topic incarnation, queue and offset."""
        stored = self.stored
        return f"{stored.log_id}-{stored.incarnation}-{stored.queue}-{self.offset}"


class Owner(Protocol):
    """The producer that a batch belongs to, as its receipts see it."""

    def wait(self, batch: Batch, timeout_s: float | None) -> object:
        """Block the caller until it is done or the time is over; raises where nobody may."""

    def when_done(self, batch: Batch, callback: Callable[[], object]) -> None:
        """Have `callback` called, without any lock held, once it is done."""


class Batch(Waitable[Stored]):
    """The messages of one topic, queue and level that travel together."""

    __slots__ = (
        "appended",
        "births",
        "born_ms",
        "buffer",
        "clock_at",
        "closed",
        "count",
        "deadline_s",
        "due_s",
        "early",
        "last_error",
        "level",
        "limit_bytes",
        "maybe_stored",
        "most_bytes",
        "number",
        "order",
        "owner",
        "plain",
        "queue",
        "records",
        "reserved_bytes",
        "seen",
        "size_bytes",
        "topic",
        "tries",
    )

    def __init__(
        self,
        topic: TopicState,
        queue: int,
        level: Level | None,
        limit_bytes: int,
        deadline_s: float,
        owner: Owner,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.queue = queue
        self.level = level
        self.limit_bytes = limit_bytes
        """Estimated bytes at which it is full, or has to find room for more."""
        self.most_bytes = limit_bytes
        """What that may become."""
        self.deadline_s = deadline_s
        """When its sending is given up."""
        self.owner = owner
        self.records: list[bytes | RecordTuple] = []
        """What was appended, a message with nothing but a body as that; once it is closed another
        list, for those who come too late."""
        self.appended = 0
        """How many were."""
        self.births: dict[int, int] = {}
        """Places, and when the messages from there on were given to us. Pairs would be nearly all
        that the garbage collector has to go through of a thousand open batches."""
        self.born_ms = 0
        """The last of these times."""
        self.clock_at = 0
        """The place whose message asks for the time again."""
        self.plain = True
        """Whether none of them has a tag, keys or properties."""
        self.count = 0
        """How many are in the batch, once it is closed."""
        self.size_bytes = 0
        self.reserved_bytes = 0
        """What it takes of the producer's buffer."""
        self.closed = False
        self.buffer: bytearray | None = None
        self.number: ProducerTuple | None = None
        """By which the broker knows a repeat, if it can."""
        self.order = 0
        """Its place among all that its sender was given."""
        self.maybe_stored = False
        """An earlier try may have got through."""
        self.tries = 0
        self.last_error: CometError | None = None
        """Why the last try failed."""
        self.due_s = 0.0
        """When it should be on its way, full or not."""
        self.early = False
        """It closed before it was full, since nothing of its topic was on its way."""
        self.seen = False
        """Whether anybody asked for the outcome."""

    def born(self, now_ms: int) -> None:
        """What is appended from now on was born at this time."""
        place = self.appended
        if now_ms != self.born_ms or not self.births:
            self.births[place] = now_ms
            self.born_ms = now_ms
        # Last: who comes in between asks for himself, since there may be no time here yet.
        self.clock_at = place + (1 if place < CLOCK_EVERY else CLOCK_EVERY)

    def put(self, record: bytes | RecordTuple, size_bytes: int) -> int | None:
        """Append a message of at most `size_bytes` and return its place. None: other threads have
        taken the room that there was for it."""
        if type(record) is tuple:
            self.plain = False
        # From here to the append there is no call at which another thread could come between.
        place, total = self.appended, self.size_bytes + size_bytes
        if total > self.limit_bytes:
            return None
        self.size_bytes, self.appended = total, place + 1
        records = self.records
        records.append(record)
        return place if records[place] is record else self.place_of(records, record)

    @staticmethod
    def place_of(records: Sequence[object], record: object) -> int:
        """Where this very record is, which was appended while another thread did too."""
        place = len(records) - 1
        while records[place] is not record:
            place -= 1
        return place

    def fix(self) -> list[bytes | RecordTuple]:
        """Close it; returns what is in it."""
        self.closed = True
        # Whoever appends from now on sees `closed`, and then that it came too late.
        appended, self.records, self.appended = self.records, [], 0
        records = list(appended)
        self.count = len(records)
        return records

    def encoded(
        self, records: list[bytes | RecordTuple], number: ProducerTuple | None
    ) -> bytearray:
        """What is in it as the broker gets it. Raises as `encode_messages` does."""
        topic, queue = self.topic.route.topic, self.queue
        births = sorted(self.births.items())  # one call: other threads may still be at it
        while births[-1][0] >= len(records):
            births.pop()  # that message did not get in any more
        if self.plain and len(records) > 1:
            bodies = cast(list[bytes], records)
            return encode_bodies(topic, queue, births, bodies, producer=number)
        return encode_messages(topic, queue, _spelled(births, records), producer=number)

    def holds(self, records: Sequence[object], place: int) -> bool:
        """Whether what was appended to its `records` at `place` got in before it closed."""
        return records is not self.records and place < self.count

    def result(self) -> Stored:
        """Where it was stored. Raises the error that it ended with."""
        self.seen = True
        return super().result()

    def __del__(self) -> None:
        if self._error is not None and not self.seen:
            log.warning(
                "%d messages for %s, queue %d, were not acknowledged and nobody asked: %s",
                self.count,
                self.topic.route.topic,
                self.queue,
                self._error,
            )


def _spelled(
    births: Sequence[tuple[int, int]], records: Sequence[bytes | RecordTuple]
) -> list[RecordTuple]:
    """Records, also of what has nothing but a body."""
    spelled: list[RecordTuple] = []
    ends = [place for place, _ in births[1:]] + [len(records)]
    for (place, born_ms), end in zip(births, ends, strict=True):
        spelled += [
            record if isinstance(record, tuple) else (born_ms, record, "", (), NO_PROPERTIES)
            for record in records[place:end]
        ]
    return spelled


class TopicState:
    """What a producer knows and has open of one topic."""

    __slots__ = ("in_flight", "next_queue", "open", "route")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.next_queue = 0
        """Where messages without a sharding key go now; moves on when that batch closes."""
        self.in_flight = 0
        """Closed batches that are not done."""
        self.open: dict[int, Batch] = {}
        """By queue. One level at a time, so that messages of several levels keep their order."""

    def queue_of(self, key: str | None) -> int:
        """Where a message with this sharding key goes. Raises Refused for one that is no text."""
        return self.next_queue if key is None else queue_of_key(key, self.route.queues)

    def used(self, queue: int) -> None:
        """A batch for this queue closes: without a sharding key the next one is another's turn."""
        if queue == self.next_queue:
            self.next_queue = (queue + 1) % self.route.queues


class Receipt(msgspec.Struct, gc=False, eq=False):
    """A message that is on its way: ask it for the result, or await it."""

    batch: Batch
    place: int
    """Its place among the messages of its batch."""

    def done(self) -> bool:
        """Whether it is known what became of the message."""
        return self.batch.done

    def result(self, timeout: float | None = None) -> SendResult:
        """Wait up to `timeout` seconds (None: until the producer's `send_timeout` ends it).

        Raises Refused, Retryable (nothing is stored), OutcomeUnknown (stored or not; also when
        `timeout` is over while the message is still on its way), Closed.
        """
        batch = self.batch
        if not batch.done:
            if timeout is not None:
                check_timeout(timeout)
            batch.owner.wait(batch, timeout)
            if not batch.done:
                raise OutcomeUnknown(
                    f"no answer yet after {timeout} s; the message is still being sent"
                )
        stored = batch.result()
        return SendResult(stored.base_offset + self.place, stored)

    def exception(self) -> BaseException | None:
        """Why the message was not stored, if that is known; never waits."""
        self.batch.seen = True
        return self.batch.error

    def add_done_callback(self, callback: Callable[[Receipt], object]) -> None:
        """Call `callback(receipt)` once it is done: in the thread that learns it, or at once."""
        self.batch.owner.when_done(self.batch, partial(callback, self))

    def __await__(self) -> Generator[Any, None, SendResult]:
        if not self.batch.done:
            loop = asyncio.get_running_loop()
            ended: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not ended.done():
                    ended.set_result(None)

            self.add_done_callback(lambda _: loop.call_soon_threadsafe(wake))
            yield from ended
        return self.result(0)


Outcome = SendResult | CometError
"""What `send_many` gives for each message."""
