"""What both faces of the producer share: from messages to closed batches, and back to results.

Messages are appended to the open batch of their queue without a lock (`append_fast`); everything
else happens under the driver's. A batch closes when it is full, or earlier (see `closing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

from cometmq.batch import RecordTuple, encode_messages
from cometmq.client.arguments import check_timeout
from cometmq.client.batching import Batch, Outcome, Owner, Receipt, SendResult, TopicState
from cometmq.client.closing import Closing
from cometmq.client.codecs import shrinker
from cometmq.client.engine import Engine
from cometmq.client.filling import Filling
from cometmq.client.lone import begin_lone
from cometmq.client.producer_options import ProducerOptions
from cometmq.client.room import STEP_BYTES, Room
from cometmq.client.routing import Routes, gone
from cometmq.client.sender import WINDOW, Sender
from cometmq.client.validation import (
    BATCH_OVERHEAD_BYTES,
    RECORD_BYTES,
    check_level,
    check_messages,
    entry_of,
    header_bytes,
    measure,
    record_of,
    unencodable,
)
from cometmq.errors import CometError
from cometmq.interfaces import Level
from cometmq.message import Message
from cometmq.protocol import Empty, Operation, Send


class Accumulator:
    """See the module. Flows (`async def`) run in the driver; the rest needs its lock, but for
    `append_fast`."""

    def __init__(
        self,
        engine: Engine,
        options: ProducerOptions,
        owner: Owner,
        lock: AbstractContextManager[object],
    ) -> None:
        self.engine = engine
        self.options = options
        self.open: dict[Batch, None] = {}
        """Batches that are being filled, the oldest first."""
        self.sender = Sender(engine, self._ended)
        self._closing = Closing(engine, options, self.sender, self.open, self._close)
        self.sender.before_request = self._closing.before_request
        self.may_close = self._closing.may_close
        self.routes = Routes(engine, create=True)
        self.topics: dict[str, TopicState] = {}
        self.sticky: dict[str, Batch] = {}
        """Topic to the open batch for messages without key and level: the fast path."""
        self.shrink = shrinker(options.compression, options.compression_level)
        self.owner = owner
        self._lock = lock
        self.room = Room(engine, options.buffer_bytes, block=options.when_full == "block")
        self._wall_ms = engine.clock.wall_ms
        self.begin_lone = partial(begin_lone, self)

    # --- one message --------------------------------------------------------------------------

    def append_fast(self, message: Message, level: Level | None) -> Receipt | None:
        """Append to a batch that is open already, in any thread, without a lock.

        None: `append` has to. Look at `may_close` of the receipt's batch afterwards. Raises
        Refused for a message that no broker would take.
        """
        if type(message) is not Message:
            return None
        try:
            if level is None and message.sharding_key is None:
                batch = self.sticky[message.topic]
            else:
                batch = self._find(message, self.options.level if level is None else level)
        except (KeyError, TypeError):  # no such batch is open; a topic without a hash is none
            return None
        body = message.body
        if type(body) is not bytes:
            return None
        if batch.appended >= batch.clock_at:
            batch.born(self._wall_ms())
        record: bytes | RecordTuple = body
        size_bytes = len(body) + RECORD_BYTES
        if message.tag or message.keys or message.properties:
            size_bytes += header_bytes(message, self.engine.connection.limits)
            record = record_of(batch.born_ms, body, message)
            batch.plain = False
        # From the last comparison to the append there is no call at which another thread could
        # come between: a batch never outgrows its limit, and no place is given away twice.
        while (total := batch.size_bytes + size_bytes) > batch.limit_bytes:
            if not self.room.grow(batch, size_bytes):
                return None
        records, place = batch.records, batch.appended
        batch.size_bytes, batch.appended = total, place + 1
        records.append(record)
        if records[place] is not record:  # a debugger let another one in all the same
            place = batch.place_of(records, record)
        if batch.closed:
            with self._lock:  # whoever is closing it has finished when this is ours
                if not batch.holds(records, place):
                    return None
        return Receipt(batch, place)

    def close_if_idle(self, batch: Batch) -> None:
        """Close it when it can go at once, for a lone message's sake."""
        if self.may_close(batch):
            self._closing.close_early(batch)
            self.sender.pump()

    def knows(self, message: Message) -> bool:
        """Whether the route of its topic is known. In any thread, without a lock."""
        return type(message) is Message and type(t := message.topic) is str and t in self.topics

    def append_now(
        self, message: Message, level: Level | None, *, moment_s: float = 0.0
    ) -> Receipt | None:
        """Append to an open batch or to a new one. None: its route is not known yet, or there is
        no room now. What could go at once goes a moment later (`moment_s`), with what follows until
        then. Raises Refused.
        """
        body, size_bytes = measure(message, self.engine.connection.limits)
        check_level(level)
        state = self.topics.get(message.topic)
        if state is None:
            return None
        now_ms = self._wall_ms()
        entry = entry_of(now_ms, body, message)
        while True:
            chosen = level or self.options.level
            batch = self._writable(state, message.sharding_key, chosen, size_bytes)
            if batch is None:
                return None
            batch.born(now_ms)
            place = batch.put(entry, size_bytes)
            if place is not None:
                break
        if moment_s:
            self._closing.expect_more()
        else:
            self.close_if_idle(batch)
        if not batch.closed:
            self._closing.left_open(batch, moment_s)
        return Receipt(batch, place)

    async def append(
        self, message: Message, level: Level | None, *, moment_s: float = 0.0
    ) -> Receipt:
        """`append_now`, waiting for what is missing. Raises Retryable (BufferFull among them)."""
        deadline_s = self.engine.now_s() + self.options.send_timeout
        while True:
            receipt = self.append_now(message, level, moment_s=moment_s)
            if receipt is not None:
                return receipt
            if message.topic in self.topics:
                await self.wait_for_room(deadline_s)
            else:
                await self.state_of(message.topic, deadline_s)

    async def send(self, message: Message, level: Level | None) -> SendResult:
        """Append, and wait for what becomes of it. Raises what a receipt's `result` does too."""
        receipt = await self.append(message, level)
        await receipt.batch
        return receipt.result()

    async def send_one_way(self, message: Message) -> None:
        """Hand one message to the transport; nothing is known of what becomes of it.

        Raises Refused, Retryable when it could not even be handed over in time.
        """
        body, _ = measure(message, self.engine.connection.limits)
        deadline_s = self.engine.now_s() + self.options.send_timeout
        state = await self.state_of(message.topic, deadline_s)
        queue = state.queue_of(message.sharding_key)
        if message.sharding_key is None:
            state.next_queue = (queue + 1) % state.route.queues
        record = record_of(self._wall_ms(), body, message)
        try:
            buffer = self.shrink(encode_messages(message.topic, queue, [record]))
        except Exception as error:
            raise unencodable(error) from error
        header = Send([len(buffer)], [state.route.incarnation], self.options.level, one_way=True)
        call = self.engine.call(Operation.SEND, header, Empty, deadline_s, [buffer])
        call.one_way = True
        await call

    # --- many messages ------------------------------------------------------------------------

    async def send_many(self, messages: Sequence[Message], level: Level | None) -> list[Outcome]:
        """Send all and wait; the result or the error of each message stands in its place."""
        check_messages(messages)
        check_level(level)
        given = list(messages)
        filling = Filling(self, level or self.options.level, len(given))
        try:
            place = 0
            while place < len(given):
                await filling.add(place, given[place])
                place = filling.add_run(given, place + 1)
        except BaseException:  # cancelled, or interrupted
            filling.abandon()
            raise
        return await filling.finish()

    # --- all that is buffered -----------------------------------------------------------------

    async def flush(self, timeout_s: float | None) -> int:
        """Close all open batches and wait until what is closed by now is done, or the time is
        over. Returns how many batches are not done."""
        check_timeout(timeout_s)
        deadline_s = None if timeout_s is None else self.engine.now_s() + timeout_s
        for batch in list(self.open):
            self._close(batch)
        self.sender.pump()
        closed = self.sender.gather()
        for batch in closed:
            if not await self.engine.until(batch, deadline_s):
                break
        return sum(not batch.done for batch in closed)

    def unacknowledged(self) -> int:
        """How many messages are open or on their way."""
        return sum(len(batch.records) for batch in self.open) + self.sender.messages

    def close(self, error: CometError) -> None:
        """Nothing goes any more; what is not done ends."""
        self.sticky.clear()
        self.topics.clear()
        for batch in list(self.open):
            self._close(batch)
        self.sender.close(error)

    # --- inside: batches ----------------------------------------------------------------------

    def open_batch(
        self, state: TopicState, queue: int, level: Level | None, size_bytes: int
    ) -> Batch | None:
        """A new batch for a queue, or None when the buffer has no room for it now."""
        options = self.options
        most = self.engine.connection.limits.batch_bytes - BATCH_OVERHEAD_BYTES
        most = max(min(options.batch_bytes, most), size_bytes)
        limit = most
        if 2 * (self.room.used_bytes + most) > options.buffer_bytes:
            limit = max(min(most, STEP_BYTES), size_bytes)
        if not self.room.take(limit):
            return None
        self.sender.join_lone()
        deadline_s = self.engine.now_s() + options.send_timeout
        batch = Batch(state, queue, level, limit, deadline_s, self.owner)
        batch.most_bytes = most
        batch.reserved_bytes = limit
        self.routes.refresh(state.route.topic)
        return batch

    def seal(self, batch: Batch) -> None:
        """Fix the records of a batch, encode it, hand it to the sender."""
        if self._encode(batch):
            self.sender.submit(batch)

    def _encode(self, batch: Batch) -> bool:
        """Fix the records of a batch and encode it, or end it if that can't be done."""
        records = batch.fix()
        batch.topic.in_flight += 1
        try:
            number = self.sender.number(batch.topic.route, batch.queue)
            sealed = batch.encoded(records, number)
            batch.buffer = self.shrink(sealed)
            batch.number = number
        except Exception as error:  # a codec raises what it likes, and memory may be short
            batch.fail(unencodable(error))
            self._ended(batch)
            return False
        # However short it goes: the buffer bounds messages as they are.
        self.room.give(batch.reserved_bytes - len(sealed))
        batch.reserved_bytes = len(sealed)
        return True

    def discard(self, batch: Batch) -> None:
        """Give back the room of a batch that was opened and will never be sealed."""
        batch.closed = True
        reserved_bytes, batch.reserved_bytes = batch.reserved_bytes, 0
        self.room.give(reserved_bytes)

    def close_queue(self, state: TopicState, queue: int) -> None:
        """Close what is open for a queue, so that what follows comes behind it."""
        batch = state.open.get(queue)
        if batch is not None:
            self._close(batch)

    async def wait_for_room(self, deadline_s: float) -> None:
        """Until there may be room for another batch. Raises BufferFull."""
        blocks = self.options.when_full == "block"
        if self.open and not (blocks and self.sender.requests >= WINDOW):
            self._closing.close_oldest()  # none will become fuller
            self.sender.pump()
        else:
            await self.room.wait(deadline_s)

    def _writable(
        self, state: TopicState, key: str | None, level: Level | None, size_bytes: int
    ) -> Batch | None:
        """The open batch for a message of `size_bytes`; the full one before it is closed. None:
        there is no room now."""
        while (batch := state.open.get(queue := state.queue_of(key))) is not None:
            total = batch.size_bytes + size_bytes
            if batch.level == level and total <= batch.most_bytes:
                fits = total <= batch.limit_bytes or self.room.grow(batch, size_bytes)
                return batch if fits else None
            self._close(batch)
            self.sender.pump()
        batch = self.open_batch(state, queue, level, size_bytes)
        if batch is not None:
            state.open[queue] = batch
            self.open[batch] = None
            self._closing.opened(batch)
            if key is None and level == self.options.level:
                self.sticky[state.route.topic] = batch
        return batch

    def _close(self, batch: Batch) -> None:
        if batch.closed:
            return  # with one before it, which could not be encoded and so held it up no longer
        state = batch.topic
        del self.open[batch]
        del state.open[batch.queue]
        if self.sticky.get(state.route.topic) is batch:
            del self.sticky[state.route.topic]
        state.used(batch.queue)
        self.seal(batch)

    def _ended(self, batch: Batch) -> None:
        """A batch is done: give its room back, close what waited for it."""
        batch.buffer = batch.number = None
        state = batch.topic
        state.in_flight -= 1
        if isinstance(batch.error, CometError) and gone(batch.error):
            self._forget(state)
        if batch.early or state.open:
            self._closing.ended(batch)
        reserved_bytes, batch.reserved_bytes = batch.reserved_bytes, 0
        self.room.give(reserved_bytes)

    # --- inside: topics -----------------------------------------------------------------------

    async def state_of(self, topic: str, deadline_s: float) -> TopicState:
        """What is known of a topic, from the broker if need be. Raises Refused, Retryable."""
        state = self.topics.get(topic)
        if state is None:
            with self._closing.held_back():
                route = await self.routes.resolve(topic, deadline_s)
            state = self.topics.setdefault(topic, TopicState(route))
        return state

    def _forget(self, state: TopicState) -> None:
        """This life of the topic is over: the next message asks for the topic anew."""
        route = state.route
        self.routes.forget(route.topic, route.incarnation)
        if self.topics.get(route.topic) is state:
            del self.topics[route.topic]
        for batch in list(state.open.values()):
            self._close(batch)  # it gets the same answer

    def _find(self, message: Message, level: Level | None) -> Batch:
        """The open batch for a message. Raises KeyError without one."""
        state = self.topics[message.topic]
        batch = state.open[state.queue_of(message.sharding_key)]
        if batch.level != level:
            raise KeyError(level)
        return batch
