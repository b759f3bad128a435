"""A broker that lies: any field of any answer, at its edges.

The client ends each call with its result or one error of ours, in time, and asks no more often than
of an honest broker that is busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from cometmq.batch import encode_messages
from cometmq.client.administration import Administration
from cometmq.client.fetcher import ANSWER_BYTES_MAX, FetchOptions
from cometmq.client.flows import Flow
from cometmq.client.outcomes import failure
from cometmq.client.producer_options import ProducerOptions
from cometmq.client.producing import Accumulator
from cometmq.client.reading import Reader
from cometmq.client.told import DETAIL_MAX, REPLY_BYTES_MAX
from cometmq.errors import CometError, ProtocolError, Retryable
from cometmq.interfaces import Limits
from cometmq.message import Message
from cometmq.protocol import (
    FetchReply,
    FetchResultPart,
    Operation,
    Status,
    TopicDescription,
    TopicInfo,
)
from cometmq.protocol.frames import PREFIX
from cometmq.testing.client_rig import ClientRig
from cometmq.testing.scripted_broker import Answer, Request

OPERATIONS = [
    Operation.HELLO,
    Operation.TOPIC_DESCRIBE,
    Operation.SEND,
    Operation.OFFSETS,
    Operation.FETCH,
    Operation.COMMIT,
    Operation.COMMITTED,
]
REQUESTS_MAX = 300
NUMBERS = [0, 1, -1, 1 << 14, (1 << 64) - 1]
SCREENFUL = "\x1b[2J\n" * 5000
Path = tuple[int, ...]


def places(value: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    yield at, value
    if isinstance(value, list):
        for place, element in enumerate(value):
            yield from places(element, (*at, place))


def with_value(value: Any, at: Path, other: Any) -> Any:
    """The same with something else at a place; as it is where there is no such place."""
    if not at:
        return other
    if not isinstance(value, list) or at[0] >= len(value):
        return value
    return [
        with_value(each, at[1:], other) if place == at[0] else each
        for place, each in enumerate(value)
    ]


def lies(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value, 2]
    if isinstance(value, int):
        return [number for number in NUMBERS if number != value]
    if isinstance(value, str):
        return ["", SCREENFUL]
    return [[], (value * 2000)[:2000]] if isinstance(value, list) else [0]


class LyingRig(ClientRig):
    """Answers of one operation are changed on the way."""

    def __init__(self, operation: Operation, change: Callable[[Any], Any]) -> None:
        super().__init__(queues=2)
        self.change = change
        self.broker.on[operation] = self.lie
        self.wrong: list[str] = []

    def lie(self, request: Request) -> None:
        assert len(self.broker.requests) < REQUESTS_MAX, "it asks without end"
        answer = self.broker.default(request)
        if answer is not None:
            told = msgspec.msgpack.decode(msgspec.msgpack.encode(answer.header))
            header = msgspec.msgpack.encode(self.change(told))
            head = PREFIX.pack(request.id, answer.status, len(header)) + header
            request.channel.deliver([head, *answer.body])

    def call(self, flow: Flow[Any]) -> Any:
        task = self.start(flow)
        self.pass_time(20)
        assert task.done, "it hangs"
        try:
            return task.result()
        except CometError as error:
            assert len(str(error)) < 2 * DETAIL_MAX and str(error).isprintable()
            return None


def live(rig: LyingRig) -> None:
    """Send, read, commit and ask, whatever the answers."""
    producer = Accumulator(rig.engine, ProducerOptions(send_timeout=5.0), rig, nullcontext())
    message = Message("orders", b"x", sharding_key="k")
    receipt = rig.call(producer.append(message, None))
    if receipt is not None:
        assert receipt.batch.done
        assert receipt.batch.error is None or isinstance(receipt.batch.error, CometError)
    reader = Reader(rig.engine, FetchOptions("g"), start="earliest", unreadable="skip", timeout_s=5)
    reader.assignment.assign_topics(["orders"])
    for queue in (0, 1):
        rig.broker.put("orders", queue, encode_messages("orders", queue, [(1, b"y", "", (), {})]))
    for _ in range(3):
        rig.call(reader.poll(10, 6.0))
    rig.call(reader.commit())
    rig.call(reader.committed())
    rig.call(Administration(rig.engine, 5.0).describe_topic("orders"))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_any_field_of_an_answer_may_be_anything(operation: Operation) -> None:
    honest: list[Any] = []

    def listen(told: Any) -> Any:
        honest.append(told)
        return told

    live(LyingRig(operation, listen))
    longest = max(honest, key=lambda told: len(str(told)))
    tried = 0
    for at, value in places(longest):
        for lie in lies(value):
            live(LyingRig(operation, lambda told: with_value(told, at, lie)))  # noqa: B023
            tried += 1
    assert tried > 10


# --- one by one ---------------------------------------------------------------------------------


def reading() -> tuple[ClientRig, Reader]:
    rig = ClientRig(queues=1)
    reader = Reader(rig.engine, FetchOptions(), start="earliest", unreadable="skip", timeout_s=5)
    reader.assignment.assign_topics(["orders"])
    return rig, reader


def test_a_topic_of_a_billion_queues_is_no_topic() -> None:
    rig, reader = reading()
    info = TopicInfo("orders", 1, 1 << 30, True, True, 0)
    rig.broker.on[Operation.TOPIC_DESCRIBE] = lambda request: Answer(TopicDescription(info))
    task = rig.start(reader.poll(1, 1.0))
    rig.pass_time(6)
    with pytest.raises(Retryable, match="<= 65536"):
        task.result()


def test_limits_without_end_bound_what_a_client_takes() -> None:
    limits = Limits(batch_bytes=1 << 40, frames=1 << 40, credit_bytes=1 << 40)
    rig = ClientRig(limits=limits)
    rig.run(Administration(rig.engine, 5.0).list_topics(""))
    used = rig.engine.connection.limits
    assert (used.batch_bytes, used.frames, used.credit_bytes) == (16 << 20, 16, REPLY_BYTES_MAX)


def test_negative_limits_are_told() -> None:
    rig = ClientRig(limits=Limits(batch_bytes=-5))
    task = rig.start(Administration(rig.engine, 5.0).list_topics(""))
    rig.pass_time(6)
    with pytest.raises(Retryable, match=r"limits\.batch_bytes is -5"):
        task.result()


def test_an_answer_that_goes_back_is_an_error_and_no_endless_loop() -> None:
    rig, reader = reading()
    rig.broker.put("orders", 0, encode_messages("orders", 0, [(1, b"y", "", (), {})] * 3))
    assert len(rig.run(reader.poll(10, 1.0))) == 3
    back = Answer(FetchReply([FetchResultPart(0, 0, next_offset=2, epoch=1, incarnation=1)]))
    rig.broker.on[Operation.FETCH] = lambda request: back
    rig.broker.requests[-1].answer(back)
    task = rig.start(reader.poll(10, 1.0))
    with pytest.raises(ProtocolError, match="from offset 3 of queue 0 of orders is to go on at 2"):
        task.result()
    asked = len(rig.broker.requests)
    rig.pass_time(10)
    assert len(rig.broker.requests) < asked + 20


def test_more_than_any_broker_gives_at_once_is_not_kept() -> None:
    rig, reader = reading()
    batch = bytes(ANSWER_BYTES_MAX // 2)
    part = FetchResultPart(0, 0, next_offset=3, epoch=1, batches=3, incarnation=1)
    reply = FetchReply([part], [len(batch)] * 3)
    rig.broker.on[Operation.FETCH] = lambda request: Answer(reply, body=[batch] * 3)
    task = rig.start(reader.poll(10, 1.0))
    with pytest.raises(ProtocolError, match="more than any broker gives"):
        task.result()
    assert not any(cursor.chunks for cursor in reader.assignment.cursors.values())


def test_a_queue_that_only_gets_on_takes_no_memory_while_nobody_polls() -> None:
    rig, reader = reading()
    rig.start(reader.poll(1, 0.001))
    rig.pass_time(0.01)
    (cursor,) = reader.assignment.cursors.values()
    for offset in range(1, 200):
        (waiting,) = rig.engine.connection.pending.values()
        part = FetchResultPart(0, 0, next_offset=offset, epoch=1, incarnation=1)
        request = next(each for each in rig.broker.requests if each.id == waiting.id)
        request.answer(Answer(FetchReply([part])))
        rig.step()
    assert cursor.fetch.offset == 199 and len(cursor.chunks) == 1


def test_a_reason_is_bounded_and_printable() -> None:
    told = str(failure(Status.REFUSED, SCREENFUL))
    assert told.isprintable() and told.startswith("\\x1b[2J\\n") and len(told) < 4 * DETAIL_MAX
    assert str(failure(Status.REFUSED, "not today, Jürgen")) == "not today, Jürgen"


def test_a_broker_is_asked_again_within_a_minute_whatever_it_says() -> None:
    error = failure(Status.RETRY, "in a year", 365 * 86_400_000)
    assert isinstance(error, Retryable) and error.after_ms == 60_000
