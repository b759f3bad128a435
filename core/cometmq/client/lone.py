"""A message that is sent while nothing else is here: the short way.

One object stands for its batch, its request and its place in a row, and nothing is touched that
only messages in company need. As soon as it has company, or any answer but a yes, it becomes a
batch and goes on as all others do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cometmq.batch import ProducerTuple, encode_messages
from cometmq.client.batching import Batch, Stored, TopicState
from cometmq.client.calls import Call
from cometmq.client.routing import REFRESH_S
from cometmq.client.validation import check_level, measure, record_of, unencodable
from cometmq.interfaces import Level
from cometmq.message import Message
from cometmq.protocol import Operation, Send, SendReply, Status

if TYPE_CHECKING:
    from cometmq.client.producing import Accumulator

_OK, _SEND = int(Status.OK), int(Operation.SEND)


class Lone(Call[Any]):
    """One message on its way; its result is where it was stored."""

    __slots__ = (
        "_accumulator",
        "batch",
        "buffer",
        "level",
        "number",
        "queue",
        "reserved_bytes",
        "topic",
    )

    def __init__(
        self,
        accumulator: Accumulator,
        topic: TopicState,
        queue: int,
        level: Level | None,
        buffer: bytearray,
        number: ProducerTuple | None,
        deadline_s: float,
    ) -> None:
        header = Send([len(buffer)], [topic.route.incarnation], level)
        request_id = accumulator.engine.connection.new_id()
        super().__init__(request_id, _SEND, header, [buffer], SendReply, deadline_s)
        self.repeat = False
        self._accumulator = accumulator
        self.topic = topic
        self.queue = queue
        self.level = level
        self.buffer = buffer
        self.number = number
        self.reserved_bytes = 0
        """What it takes of the producer's buffer."""
        self.batch: Batch | None = None
        """What it has become."""

    def become_batch(self) -> Batch:
        """Have company; from now on only that batch knows what becomes of it."""
        batch = Batch(
            self.topic, self.queue, self.level, 0, self.deadline_s, self._accumulator.owner
        )
        batch.closed = True
        batch.count = 1
        batch.buffer = self.buffer
        batch.number = self.number
        batch.reserved_bytes = self.reserved_bytes
        batch.add_waiter(self._follow)
        self.batch = batch
        return batch

    def resolve(self, value: SendReply) -> None:
        """The broker answered the request."""
        accumulator, results = self._accumulator, value.results
        sender = accumulator.sender
        if self.batch is not None or len(results) != 1 or results[0].status != _OK:
            sender.lone_told(self, value, None)
            return
        sender.lone_stored()
        self.topic.in_flight -= 1
        accumulator.room.give(self.reserved_bytes)
        Call.resolve(self, sender.stored(self.topic.route, results[0], value.level))

    def fail(self, error: BaseException) -> None:
        """The request failed, which need not be the end."""
        self._accumulator.sender.lone_told(self, None, error)

    def result(self) -> Stored:
        """Where it was stored. Raises the error that it ended with."""
        if self.batch is not None:
            self.batch.seen = True
        stored: Stored = Call.result(self)
        return stored

    def _follow(self) -> None:
        assert self.batch is not None
        error = self.batch.error
        if error is None:
            Call.resolve(self, self.batch.result())
        else:
            Call.fail(self, error)


def begin_lone(accumulator: Accumulator, message: Message, level: Level | None) -> Lone | None:
    """Make a request of a message at once, while nothing else is here. None: `Accumulator.send`
    has to. Raises Refused.
    """
    sender, room = accumulator.sender, accumulator.room
    if type(message) is not Message or room.used_bytes or not sender.is_idle():
        return None
    engine = accumulator.engine
    body, _ = measure(message, engine.connection.limits)
    if level is None:
        level = accumulator.options.level
    else:
        check_level(level)
    topic = accumulator.topics.get(message.topic)
    if topic is None:
        return None
    queue = topic.queue_of(message.sharding_key)
    route = topic.route
    record = record_of(engine.clock.wall_ms(), body, message)
    number = sender.number(route, queue)
    try:
        sealed = encode_messages(route.topic, queue, [record], producer=number)
        buffer = accumulator.shrink(sealed)
    except Exception as error:  # a codec raises what it likes, and memory may be short
        raise unencodable(error) from error
    now_s = engine.now_s()
    if now_s - route.known_at_s >= REFRESH_S:
        accumulator.routes.refresh(route.topic)
    deadline_s = now_s + accumulator.options.send_timeout
    lone = Lone(accumulator, topic, queue, level, buffer, number, deadline_s)
    topic.used(queue)
    topic.in_flight += 1
    # However short it goes: the buffer bounds messages as they are.
    lone.reserved_bytes = len(sealed)
    room.take(lone.reserved_bytes)
    sender.submit_lone(lone)
    engine.start(lone)
    return lone
