"""Batching and sending: when batches close, where they go, in which order, how they end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import cycle
from random import Random
from typing import Any

import pytest

from cometmq import protocol
from cometmq.batch import RecordTuple, decode_records, parse, text_hash
from cometmq.client.batching import Receipt, SendResult
from cometmq.client.closing import EARLY_MAX, PARTIAL_MAX
from cometmq.client.producer_options import ProducerOptions
from cometmq.client.producing import Accumulator
from cometmq.client.room import STEP_BYTES
from cometmq.client.sender import WINDOW
from cometmq.errors import (
    BufferFull,
    Closed,
    ConfigError,
    NotAvailable,
    OutcomeUnknown,
    Refused,
    Retryable,
)
from cometmq.interfaces import Level, Limits
from cometmq.message import Message
from cometmq.protocol import Operation, Status
from cometmq.testing.client_rig import ClientRig
from cometmq.testing.scripted_broker import Answer, Request

SEND = Operation.SEND
DESCRIBE = Operation.TOPIC_DESCRIBE


class ProducerRig(ClientRig):
    """The producer's inside."""

    lone = False
    """Whether messages take the short way where they may."""

    def __init__(self, *, queues: int = 4, limits: Limits | None = None, **options: Any) -> None:
        super().__init__(queues=queues, limits=limits)
        self.producer = Accumulator(self.engine, ProducerOptions(**options), self, nullcontext())

    def send_soon(self, message: Message, level: Level | None = None) -> Receipt:
        """As the faces do it: alone or fast if possible, else by the flow."""
        lone = self.producer.begin_lone(message, level) if self.lone else None
        if lone is not None:
            self.step()
            return self.receipt_of(lone)
        receipt = self.producer.append_fast(message, level)
        if receipt is None:
            return self.run(self.producer.append(message, level))
        if self.producer.may_close(receipt.batch):
            self.producer.close_if_idle(receipt.batch)
        self.step()
        return receipt

    def hold_sends(self) -> list[Request]:
        """From now on sends are not answered; the list that they are found in."""
        self.broker.hold(SEND)
        return self.broker.requests

    def sends(self) -> list[Request]:
        """The send requests so far."""
        return self.broker.asked(SEND)

    def answer(self, request: Request) -> None:
        """Store what it sends and say so."""
        request.answer(Answer(self.broker.store(request)))
        self.step()


@pytest.fixture(params=["by the flow", "alone if possible"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How messages go: what becomes of them must not depend on it."""
    monkeypatch.setattr(ProducerRig, "lone", request.param == "alone if possible")


def orders(number: int = 0, **fields: Any) -> Message:
    return Message("orders", b"%d" % number, **fields)


def bodies(request: Request) -> list[list[bytes]]:
    """The bodies in each batch of a send."""
    return [[record[1] for record in decode_records(parse(view))] for view in request.batches]


def queues(request: Request) -> list[int]:
    return [parse(view).queue_claim for view in request.batches]


def all_stored(rig: ProducerRig, topic: str = "orders") -> dict[int, list[bytes]]:
    return {
        queue: [record[1] for batch in kept for record in decode_records(parse(batch))]
        for (name, queue), kept in rig.broker.stored.items()
        if name == topic
    }


# --- when a batch closes ---


def test_a_lone_message_goes_at_once() -> None:
    rig = ProducerRig()
    receipt = rig.send_soon(orders(7))
    assert receipt.done()
    result = receipt.result()
    assert (result.topic, result.queue, result.offset, result.level) == ("orders", 0, 0, "disk")
    assert result.message_id == "0001020304050607-1-0-0"


def test_what_follows_travels_together_when_the_answer_is_there() -> None:
    rig = ProducerRig()
    rig.hold_sends()
    receipts = [rig.send_soon(orders(number)) for number in range(10)]
    (first,) = rig.sends()
    assert bodies(first) == [[b"0"]]
    rig.answer(first)
    second = rig.sends()[1]
    assert bodies(second) == [[b"%d" % number for number in range(1, 10)]]
    rig.answer(second)
    assert [receipt.result().offset for receipt in receipts[1:]] == list(range(9))


def test_linger_closes_what_would_wait_for_a_slow_answer() -> None:
    rig = ProducerRig(linger_ms=5)
    rig.hold_sends()
    rig.send_soon(orders(0))
    rig.send_soon(orders(1))
    rig.pass_time(0.004)
    assert len(rig.sends()) == 1
    rig.pass_time(0.002)
    assert bodies(rig.sends()[1]) == [[b"1"]]


def test_without_linger_what_can_not_go_is_not_looked_at_all_the_time() -> None:
    rig = ProducerRig(queues=WINDOW, linger_ms=0)
    rig.hold_sends()
    for number in range(WINDOW):
        rig.send_soon(orders(number))
    assert len(rig.sends()) == WINDOW
    clock = rig.environment.clock

    def running_s() -> float:
        clock.advance(1e-6)
        return clock.monotonic_s()

    rig.engine.now_s = running_s
    receipt = rig.send_soon(orders(WINDOW))
    assert not receipt.batch.closed
    assert rig.engine.next_s() > clock.monotonic_s() + 1e-4
    rig.answer(rig.sends()[0])
    assert receipt.batch.closed


def test_a_full_batch_closes_and_the_next_queue_is_taken() -> None:
    rig = ProducerRig(batch_bytes=20_000)
    rig.hold_sends()
    for _ in range(7):
        rig.send_soon(Message("orders", bytes(6_000)))
    sent = [(queues(request), len(bodies(request)[0])) for request in rig.sends()]
    assert sent == [([0], 1), ([1], 3)]
    for request in rig.sends():
        rig.answer(request)
    assert [queues(request) for request in rig.sends()] == [[0], [1], [2]]


def test_keyless_messages_rotate_over_all_queues() -> None:
    rig = ProducerRig(queues=3)
    taken = [rig.send_soon(orders()).result().queue for _ in range(7)]
    assert taken == [0, 1, 2, 0, 1, 2, 0]


def test_a_sharding_key_names_its_queue() -> None:
    rig = ProducerRig(queues=8)
    rig.hold_sends()
    rig.send_soon(orders())  # so that the others are held together
    receipts = [
        (key, rig.send_soon(orders(sharding_key=key)))
        for key in ("a", "b", "Ulm", "München", "a", "b")
    ]
    rig.broker.on.clear()
    rig.answer(rig.sends()[0])
    for key, receipt in receipts:
        assert receipt.result().queue == text_hash(key) % 8


def test_an_open_batch_of_another_level_closes_first_so_that_order_stays() -> None:
    rig = ProducerRig(queues=1)
    rig.hold_sends()
    rig.send_soon(orders(0))
    rig.send_soon(orders(1), level="memory")
    rig.send_soon(orders(2), level="memory")
    rig.send_soon(orders(3), level="disk")
    for _ in range(3):
        rig.answer(rig.sends()[-1])
    assert [bodies(request)[0] for request in rig.sends()] == [[b"0"], [b"1", b"2"], [b"3"]]
    levels = [request.header.level for request in rig.sends()]  # type: ignore[attr-defined]
    assert levels == [None, "memory", "disk"]


# --- order and packing ---


def test_one_batch_of_a_queue_is_out_at_a_time() -> None:
    rig = ProducerRig(queues=1, batch_bytes=20_000)
    rig.hold_sends()
    for _ in range(10):
        rig.send_soon(Message("orders", bytes(9_000)))
    assert len(rig.sends()) == 1
    for _ in range(4):
        rig.answer(rig.sends()[-1])
    assert len(rig.sends()) == 5


def test_batches_of_several_queues_share_a_request() -> None:
    rig = ProducerRig(queues=8)
    rig.hold_sends()
    rig.send_soon(orders())
    for number in range(40):
        rig.send_soon(orders(number, sharding_key=str(number)))
    rig.answer(rig.sends()[0])
    packed = rig.sends()[1]
    assert sorted(queues(packed)) == sorted({text_hash(str(n)) % 8 for n in range(40)})
    rig.answer(packed)
    for queue, stored in all_stored(rig).items():
        numbers = [int(body) for body in stored]
        assert numbers == sorted(numbers), queue


def test_a_request_holds_half_a_mib_and_four_are_out() -> None:
    rig = ProducerRig(queues=16, batch_bytes=256 << 10)
    rig.hold_sends()
    for number in range(12):
        rig.send_soon(Message("orders", bytes(200_000), sharding_key=str(number)))
        rig.send_soon(Message("orders", bytes(200_000), sharding_key=str(number)))
    assert len(rig.sends()) == 4
    for request in rig.sends():
        assert sum(len(view) for view in request.batches) <= 512 << 10


def test_a_retry_keeps_the_order_and_lets_other_queues_go_on() -> None:
    rig = ProducerRig(queues=2)
    keys = {text_hash(key) % 2: key for key in "abcdef"}
    refused = 0

    def flaky(request: Request) -> Answer:
        nonlocal refused
        reply = rig.broker.store(request) if refused >= 3 else None
        if reply is not None:
            return Answer(reply)
        refused += 1
        results = [
            protocol.SendResultPart(Status.RETRY, detail="not now", retry_after_ms=20)
            for _ in request.batches
        ]
        return Answer(protocol.SendReply(results))

    rig.broker.on[SEND] = flaky
    receipts = []
    for number in range(30):
        key = keys[number % 2]
        receipts.append(rig.start(rig.producer.append(orders(number, sharding_key=key), None)))
    rig.pass_time(5)
    assert all(task.result().done() for task in receipts)
    stored = all_stored(rig)
    assert [int(body) for body in stored[0]] == list(range(0, 30, 2))
    assert [int(body) for body in stored[1]] == list(range(1, 30, 2))
    offsets = [task.result().result().offset for task in receipts[::2]]
    assert offsets == list(range(15))


def test_a_repeat_goes_before_what_waited_behind_it() -> None:
    rig = ProducerRig(queues=1, batch_bytes=20_000)
    rig.hold_sends()
    for number in range(6):
        rig.send_soon(Message("orders", b"%d" % number + bytes(9_000)))
    later = protocol.SendResultPart(Status.RETRY, detail="not now", retry_after_ms=20)
    rig.sends()[0].answer(Answer(protocol.SendReply([later])))
    rig.broker.on.clear()
    rig.pass_time(1)
    assert [body[:1] for body in all_stored(rig)[0]] == [b"%d" % number for number in range(6)]


def test_a_lost_connection_repeats_in_order_and_may_store_twice() -> None:
    rig = ProducerRig(queues=1)
    rig.hold_sends()
    receipts = [rig.send_soon(orders(number)) for number in range(3)]
    rig.broker.store(rig.sends()[0])  # stored, but the answer gets lost
    rig.broker.break_connection()
    rig.broker.on.clear()
    rig.pass_time(1)
    assert [receipt.result().offset for receipt in receipts] == [1, 2, 3]
    assert all_stored(rig)[0] == [b"0", b"0", b"1", b"2"]


# --- outcomes ---


def test_refused_is_final_and_only_that_batch() -> None:
    rig = ProducerRig()
    results = [protocol.SendResultPart(Status.LEVEL_NOT_AVAILABLE, detail="no quorum here")]
    rig.broker.answer_once(SEND, Answer(protocol.SendReply(results)))
    with pytest.raises(NotAvailable, match="no quorum here"):
        rig.send_soon(orders(), level="quorum").result()
    assert rig.send_soon(orders()).result().offset == 0
    assert len(rig.sends()) == 2


def test_retryable_when_the_time_is_over() -> None:
    rig = ProducerRig(send_timeout=3)
    rig.broker.on[SEND] = lambda request: request.fail(Status.NO_SPACE, "the disk is full")
    receipt = rig.send_soon(orders())
    rig.pass_time(4)
    with pytest.raises(Retryable, match="disk is full") as caught:
        receipt.result()
    assert caught.value.code == "NO_SPACE" and len(rig.sends()) > 3


def test_unknown_when_no_answer_came_in_time() -> None:
    rig = ProducerRig(send_timeout=3)
    rig.hold_sends()
    receipt = rig.send_soon(orders())
    rig.pass_time(2.9)
    assert not receipt.done()
    rig.pass_time(0.2)
    with pytest.raises(OutcomeUnknown):
        receipt.result()
    assert rig.producer.sender.requests == 0, "the window is free again"


def test_unknown_can_not_become_refused_by_a_repeat() -> None:
    rig = ProducerRig()
    rig.hold_sends()
    receipt = rig.send_soon(orders())
    rig.broker.break_connection()
    rig.broker.on[SEND] = lambda request: request.fail(Status.NOT_AUTHORIZED, "not any more")
    rig.pass_time(1)
    with pytest.raises(OutcomeUnknown, match="not any more"):
        receipt.result()


def test_not_sent_in_time_is_retryable_and_says_why() -> None:
    rig = ProducerRig(send_timeout=3)
    rig.send_soon(orders())
    rig.broker.break_connection()
    rig.broker.down = ("refused", "nobody listens there")
    rig.step()
    receipt = rig.send_soon(orders())
    rig.pass_time(4)
    with pytest.raises(Retryable, match="nobody listens there"):
        receipt.result()


def test_closing_tells_what_was_sent_from_what_was_not() -> None:
    rig = ProducerRig(queues=1)
    rig.hold_sends()
    sent, buffered = rig.send_soon(orders(0)), rig.send_soon(orders(1))
    rig.producer.close(Closed("over"))
    with pytest.raises(OutcomeUnknown):
        sent.result()
    with pytest.raises(Closed):
        buffered.result()
    rig.engine.close(Closed("over"))


def test_what_closing_says_is_not_stored_is_not_sent_either() -> None:
    """Whoever closes has the engine send once more, and the broker may be back by then."""
    rig = ProducerRig(queues=1)
    rig.send_soon(orders(0))
    rig.broker.full = True
    receipt = rig.send_soon(orders(1))
    rig.producer.close(Closed("over"))
    rig.broker.full = False
    rig.pass_time(1)
    with pytest.raises(Closed):
        receipt.result()
    assert all_stored(rig) == {0: [b"0"]}


def test_an_answer_that_does_not_fit_is_not_trusted() -> None:
    rig = ProducerRig()
    rig.broker.answer_once(SEND, Answer(protocol.SendReply([])))
    receipt = rig.send_soon(orders())
    assert not receipt.done()
    rig.pass_time(1)
    assert receipt.result().offset == 0


def test_an_expired_batch_does_not_end_its_neighbours_in_the_request() -> None:
    rig = ProducerRig(send_timeout=10, linger_ms=0)
    rig.send_soon(orders())
    rig.broker.full = True
    early = rig.send_soon(orders())
    rig.pass_time(5)
    late = rig.send_soon(orders())
    rig.broker.full = False
    rig.hold_sends()
    rig.pass_time(5.01)
    assert early.done() and not late.done()
    for request in rig.sends()[1:]:
        rig.answer(request)
    assert late.result().offset >= 0


def test_a_failure_that_nobody_asks_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rig = ProducerRig()
    rig.broker.on[SEND] = lambda request: request.fail(Status.REFUSED, "not today")
    with caplog.at_level(logging.WARNING, "cometmq.client"):
        rig.send_soon(orders())
    assert "not today" in caplog.text and "1 messages for orders" in caplog.text


# --- topics ---


def test_a_topic_is_asked_for_once_and_may_be_created() -> None:
    rig = ProducerRig()
    for _ in range(5):
        rig.send_soon(orders())
    (asked,) = rig.broker.asked(DESCRIBE)
    assert asked.header == protocol.TopicDescribe("orders", create=True)
    incarnations = [r.header.incarnations for r in rig.sends()]  # type: ignore[attr-defined]
    assert incarnations == [[1]] * 5


def test_a_deleted_topic_is_not_created_again() -> None:
    rig = ProducerRig()
    rig.send_soon(orders())
    gone = protocol.SendResultPart(Status.TOPIC_GONE, detail="it was deleted")
    rig.broker.answer_once(SEND, Answer(protocol.SendReply([gone])))
    with pytest.raises(Refused, match="deleted"):
        rig.send_soon(orders()).result()
    rig.broker.on[DESCRIBE] = lambda request: request.fail(Status.TOPIC_NOT_FOUND, "no such topic")
    with pytest.raises(Refused, match="no such topic"):
        rig.send_soon(orders())
    asked = rig.broker.asked(DESCRIBE)[-1].header
    assert asked == protocol.TopicDescribe("orders", create=False)


def test_a_grown_topic_is_noticed() -> None:
    rig = ProducerRig(queues=1)
    rig.send_soon(orders())
    rig.broker.queues = 2
    rig.pass_time(31)
    taken = {rig.send_soon(orders()).result().queue for _ in range(4)}
    assert taken == {0, 1}


def test_without_a_broker_the_first_send_ends_in_time() -> None:
    rig = ProducerRig(send_timeout=2)
    rig.broker.down = ("refused", "nobody listens there")
    task = rig.start(rig.producer.append(orders(), None))
    rig.pass_time(3)
    with pytest.raises(Retryable, match="nobody listens there"):
        task.result()


# --- the buffer ---


def fill(rig: ProducerRig) -> None:
    """Put in what fits: 4 batches of 10 kB."""
    for _ in range(4):
        rig.send_soon(Message("orders", bytes(10_000)))


def test_a_full_buffer_makes_senders_wait() -> None:
    rig = ProducerRig(queues=1, buffer_bytes=45_000, batch_bytes=11_000)
    rig.hold_sends()
    fill(rig)
    waiting = rig.start(rig.producer.append(Message("orders", bytes(10_000)), None))
    assert not waiting.done
    rig.answer(rig.sends()[-1])
    assert waiting.done
    rig.broker.on.clear()
    rig.answer(rig.sends()[-1])
    assert waiting.result().done()


def test_waiting_for_room_ends_with_the_send_timeout() -> None:
    rig = ProducerRig(queues=1, buffer_bytes=45_000, batch_bytes=11_000, send_timeout=3)
    rig.hold_sends()
    fill(rig)
    rig.pass_time(1)
    rig.broker.hold(Operation.HEARTBEAT)
    waiting = rig.start(rig.producer.append(Message("orders", bytes(30_000)), None))
    rig.pass_time(1.9)
    assert not waiting.done
    rig.pass_time(2)  # the four before it expire and make room
    assert waiting.done


def test_a_full_buffer_can_raise_instead() -> None:
    rig = ProducerRig(queues=1, buffer_bytes=45_000, batch_bytes=11_000, when_full="raise")
    rig.hold_sends()
    fill(rig)
    with pytest.raises(BufferFull, match="45,000 bytes"):
        rig.send_soon(Message("orders", bytes(10_000)))
    rig.broker.on.clear()
    rig.answer(rig.sends()[0])
    assert rig.send_soon(Message("orders", bytes(10_000))).result().offset == 4


def test_many_topics_share_the_buffer() -> None:
    rig = ProducerRig(queues=1, buffer_bytes=1 << 20, when_full="raise")
    rig.send_soon(Message("first", b"x"))
    rig.hold_sends()
    receipts = [
        rig.send_soon(Message(f"topic-{number % 200}", bytes(100))) for number in range(1000)
    ]
    rig.broker.on.clear()
    for request in rig.sends():
        rig.answer(request)
    rig.pass_time(1)
    assert all(receipt.result().offset < 5 for receipt in receipts)


# --- many topics ---


def to_topics(rig: ProducerRig, count: int, rounds: int = 1) -> list[Receipt]:
    """One small message for each of so many topics, round robin."""
    names = [f"topic-{number}" for _ in range(rounds) for number in range(count)]
    return [rig.send_soon(Message(name, b"x" * 100)) for name in names]


def known_topics(count: int, **options: Any) -> ProducerRig:
    """A rig that knows so many topics, and whose sends are held from now on."""
    rig = ProducerRig(queues=1, **options)
    to_topics(rig, count)
    rig.broker.requests.clear()
    rig.hold_sends()
    return rig


def few_at_once(rig: ProducerRig) -> int:
    """The one that takes the short way is none of a few, but the only one."""
    return EARLY_MAX + rig.lone


def test_many_topics_fill_their_batches_while_a_request_is_on_its_way() -> None:
    """A message for each of 100 topics, ten times: 1,000 batches of one would be dear."""
    rig = known_topics(100, linger_ms=10_000)
    receipts = to_topics(rig, 100, rounds=10)
    assert [len(bodies(request)) for request in rig.sends()] == [1] * few_at_once(rig)
    rig.broker.on.clear()
    for request in list(rig.sends()):
        rig.answer(request)
    rig.step()
    assert all(receipt.done() for receipt in receipts)
    batches = [batch for request in rig.sends() for batch in bodies(request)]
    assert len(batches) < 120
    assert max(len(request.batches) for request in rig.sends()) <= PARTIAL_MAX


def test_a_few_topics_go_at_once_and_the_next_when_one_is_answered() -> None:
    rig = known_topics(5)
    few = few_at_once(rig)
    receipts = to_topics(rig, few + 1)
    assert [len(bodies(request)) for request in rig.sends()] == [1] * few
    rig.answer(rig.sends()[few - 1])
    assert len(rig.sends()) == few + 1
    assert [receipt.done() for receipt in receipts] == [False] * (few - 1) + [True, False]


def test_a_light_topic_beside_many_goes_when_its_time_is_over() -> None:
    """Full batches keep the line busy, and yet it is not kept waiting."""
    rig = known_topics(100, linger_ms=5, batch_bytes=8_000)
    to_topics(rig, 100)
    light = rig.send_soon(Message("light", b"x"))
    rig.pass_time(0.006)
    for number in range(60):
        rig.start(rig.producer.append(Message("busy", bytes(7_000)), None))
        rig.start(rig.producer.append(Message("busy", bytes(7_000)), None))
        rig.answer(rig.sends()[number])
        assert len(rig.sends()) > number + 1, "the line is never free"
    assert light.done()


def test_a_small_buffer_is_shared_by_what_is_used_of_it() -> None:
    """100 topics have 31 KB each and fill 28 of them, whatever a batch may become."""
    rig = known_topics(100, linger_ms=10_000, batch_bytes=32 << 10, buffer_bytes=3_100 << 10)
    receipts = to_topics(rig, 100, rounds=200)
    waiting = sum(len(batch.records) for batch in rig.producer.open)
    assert waiting > len(receipts) - 10, "all have room, none was closed for want of it"
    rig.broker.on.clear()
    for request in list(rig.sends()):
        rig.answer(request)
    rig.run(rig.producer.flush(None))
    assert all(receipt.done() for receipt in receipts)


def test_a_buffer_full_of_half_filled_batches_goes_by_several_requests() -> None:
    """None can become fuller, so that there is nothing to wait for."""
    rig = known_topics(100, linger_ms=10_000, buffer_bytes=400 << 10)
    flows = [
        rig.start(rig.producer.append(Message(f"topic-{number % 100}", bytes(1000)), None))
        for number in range(600)
    ]
    assert sum(not flow.done for flow in flows), "the buffer is full"
    assert len(rig.sends()) == WINDOW
    rig.broker.on.clear()
    for request in list(rig.sends()):
        rig.answer(request)
    rig.pass_time(11)
    assert all(flow.result().done() for flow in flows)


def test_when_the_buffer_is_full_the_oldest_go_and_not_what_needs_room() -> None:
    """It may be a batch that has just begun, of which there would be more and more."""
    buffer_bytes = 800 << 10
    rig = known_topics(100, linger_ms=10_000, buffer_bytes=buffer_bytes)
    to_topics(rig, 100)
    young = rig.send_soon(Message("young", bytes(1000)))
    turns = cycle(range(100))
    while rig.producer.room.used_bytes + STEP_BYTES <= buffer_bytes:
        rig.send_soon(Message(f"topic-{next(turns)}", bytes(1000)))
    gone = len(rig.sends())
    more = [rig.send_soon(Message("young", bytes(1000))) for _ in range(3)]
    assert {receipt.batch for receipt in more} == {young.batch}
    assert not young.batch.closed
    assert len(rig.sends()) > gone


@pytest.mark.parametrize("tag", ["", "t"])
def test_the_time_of_a_message_is_its_own_or_that_of_one_shortly_before(tag: str) -> None:
    rig = ProducerRig(queues=1, linger_ms=10_000)
    rig.hold_sends()
    times = [rig.engine.clock.wall_ms()]
    rig.send_soon(orders(0))
    for number in range(100):
        rig.pass_time(0.001)
        times.append(rig.engine.clock.wall_ms())
        rig.send_soon(orders(number, tag=tag if number == 50 else ""))
    rig.broker.on.clear()
    rig.answer(rig.sends()[0])
    rig.pass_time(1)
    batches = [decode_records(parse(batch)) for batch in rig.broker.stored["orders", 0]]
    born = [record[0] for records in batches for record in records]
    assert len(batches) == 2 and born[:17] == times[:17], "few messages have their own"
    for place, moment in enumerate(born):
        assert moment in times[max(0, place - 15) : place + 1]
    assert len(set(born)) < 30


def test_a_time_counts_only_for_what_was_appended_behind_it() -> None:
    """Threads may ask for the time at once, and one of them append its message too late."""
    rig = ProducerRig(queues=1, linger_ms=10_000)
    rig.hold_sends()
    rig.send_soon(orders(0))
    batch = rig.send_soon(orders(1)).batch
    first_ms = batch.born_ms
    rig.send_soon(orders(2))
    batch.born(first_ms + 7)
    batch.born(first_ms + 9)
    rig.send_soon(orders(3))
    batch.born(first_ms + 5000)
    rig.broker.on.clear()
    rig.answer(rig.sends()[0])
    rig.pass_time(1)
    sealed = parse(rig.broker.stored["orders", 0][1])
    born = [record[0] for record in decode_records(sealed)]
    assert len(born) == 3 and (sealed.first_born, sealed.born_span) == (born[0], born[2] - born[0])


def test_another_thread_in_the_midst_of_taking_the_time_has_one() -> None:
    rig = ProducerRig(queues=1, linger_ms=10_000)
    rig.hold_sends()
    rig.send_soon(orders(0))
    batch = rig.send_soon(orders(1)).batch

    class Births(dict[int, int]):
        entered = False

        def __setitem__(self, place: int, born_ms: int) -> None:
            super().__setitem__(place, born_ms)
            if not self.entered:
                self.entered = True
                assert rig.producer.append_fast(orders(2, tag="t"), None) is not None

    batch.births, batch.born_ms, batch.clock_at = Births(), 0, 0
    assert rig.producer.append_fast(orders(3), None) is not None
    assert batch.records[1][0] == rig.engine.clock.wall_ms()


# --- send_many, one way, flush ---


def test_send_many_has_every_outcome_in_its_place() -> None:
    rig = ProducerRig(batch_bytes=20_000)
    messages: list[Message] = [orders(number) for number in range(3000)]
    messages[5] = Message("bad name!", b"x")
    messages[7] = Message("orders", "text")  # type: ignore[arg-type]
    messages[9] = orders(9, keys=["k"], tag="t", sharding_key="s")
    outcomes = rig.run(rig.producer.send_many(messages, None))
    assert len(outcomes) == 3000
    stored = all_stored(rig)
    for number, outcome in enumerate(outcomes):
        if number in (5, 7):
            assert isinstance(outcome, Refused)
        else:
            assert not isinstance(outcome, Exception)
            assert stored[outcome.queue][outcome.offset] == b"%d" % number
    assert len(rig.sends()) > 1


@pytest.mark.parametrize("seed", range(20))
def test_send_many_takes_messages_of_all_kinds_in_turn(seed: int) -> None:
    random = Random(seed)
    rig = ProducerRig(queues=3, batch_bytes=1500)
    kinds: list[dict[str, Any]] = [
        {}, {}, {}, {"tag": "t"}, {"keys": ["k"]}, {"properties": {"a": "b"}},
        {"sharding_key": "s"}, {"tag": 5}, {"topic": "others"}, {"properties": {"a": "b" * 2000}},
    ]  # fmt: skip
    chosen = [random.choice(kinds) for _ in range(300)]
    messages = [
        Message(**{"topic": "orders", "body": b"%d" % number} | kind)
        for number, kind in enumerate(chosen)
    ]
    sending = rig.start(rig.producer.send_many(messages, None))
    rig.pass_time(1)
    outcomes = sending.result()
    stored = {
        (topic, queue): [record for batch in kept for record in decode_records(parse(batch))]
        for (topic, queue), kept in rig.broker.stored.items()
    }
    for number, (message, outcome) in enumerate(zip(messages, outcomes, strict=True)):
        if message.tag == 5:  # type: ignore[comparison-overlap]
            assert isinstance(outcome, Refused)
            continue
        assert isinstance(outcome, SendResult)
        _, body, tag, keys, properties = stored[outcome.topic, outcome.queue][outcome.offset]
        assert body == b"%d" % number and outcome.topic == message.topic
        assert [tag, list(keys), properties] == [message.tag, [*message.keys], message.properties]


@pytest.mark.parametrize("seed", range(10))
def test_send_many_takes_long_runs_of_bodies_of_all_sizes(seed: int) -> None:
    random = Random(seed)
    rig = ProducerRig(queues=2, batch_bytes=random.choice([3000, 20_000, 200_000]))
    messages = [
        Message(
            "orders",
            b"%d" % number
            + bytes(random.choice([0, 5, 300, 2000]) if random.random() < 0.2 else 0),
            tag="t" if random.random() < 0.001 else "",
        )
        for number in range(3000)
    ]
    sending = rig.start(rig.producer.send_many(messages, None))
    rig.pass_time(1)
    stored = {
        queue: [record for batch in kept for record in decode_records(parse(batch))]
        for (_, queue), kept in rig.broker.stored.items()
    }
    for message, outcome in zip(messages, sending.result(), strict=True):
        assert isinstance(outcome, SendResult)
        _, body, tag, _, _ = stored[outcome.queue][outcome.offset]
        assert (body, tag) == (message.body, message.tag)


def test_send_many_puts_a_failed_batch_in_its_places() -> None:
    rig = ProducerRig(queues=2)
    keys = {text_hash(key) % 2: key for key in "abcdef"}

    def picky(request: Request) -> Answer:
        reply = rig.broker.store(request)
        for place, part in enumerate(reply.results):
            if part.queue == 1:
                reply.results[place] = protocol.SendResultPart(Status.NOT_WRITABLE, 1)
        return Answer(reply)

    rig.broker.on[SEND] = picky
    messages = [orders(number, sharding_key=keys[number % 2]) for number in range(10)]
    outcomes = rig.run(rig.producer.send_many(messages, None))
    assert [isinstance(outcome, Refused) for outcome in outcomes] == [False, True] * 5


def test_send_many_comes_behind_what_was_buffered() -> None:
    rig = ProducerRig(queues=1)
    rig.hold_sends()
    rig.send_soon(orders(0))
    rig.send_soon(orders(1))
    task = rig.start(rig.producer.send_many([orders(2), orders(3)], None))
    for _ in range(3):
        rig.answer(rig.sends()[-1])
    assert task.done and all_stored(rig)[0] == [b"0", b"1", b"2", b"3"]


def test_send_many_larger_than_the_buffer_waits_for_room() -> None:
    rig = ProducerRig(queues=2, buffer_bytes=50_000, batch_bytes=12_000)
    outcomes = rig.start(rig.producer.send_many([Message("orders", bytes(1000))] * 500, None))
    rig.pass_time(1)
    assert all(not isinstance(outcome, Exception) for outcome in outcomes.result())
    assert sum(len(stored) for stored in all_stored(rig).values()) == 500


def test_one_way_waits_for_no_answer() -> None:
    rig = ProducerRig()
    rig.run(rig.producer.send_one_way(orders(1)))
    (request,) = rig.sends()
    assert isinstance(request.header, protocol.Send) and request.header.one_way
    assert all_stored(rig)[0] == [b"1"]


def test_batches_that_can_not_be_encoded_end_together() -> None:
    rig = ProducerRig(linger_ms=10_000)
    messages = [orders(number, sharding_key=str(number)) for number in range(9)]
    receipts = [rig.run(rig.producer.append(each, None, moment_s=1)) for each in messages]
    assert len(rig.producer.open) > 1

    def fail(sealed: bytearray) -> bytearray:
        raise MemoryError("no room to compress")

    rig.producer.shrink = fail
    assert rig.run(rig.producer.flush(None)) == 0
    for receipt in receipts:
        with pytest.raises(Refused, match="no room to compress"):
            receipt.result()
    assert rig.producer.room.used_bytes == 0 and not rig.producer.open


def test_flush_closes_and_waits() -> None:
    rig = ProducerRig(linger_ms=1000)
    rig.hold_sends()
    rig.send_soon(orders(0))
    rig.send_soon(orders(1))
    task = rig.start(rig.producer.flush(None))
    assert len(rig.sends()) == 2 and not task.done
    for request in rig.sends():
        rig.answer(request)
    assert task.result() == 0


def test_flush_says_how_much_is_left_when_its_time_is_over() -> None:
    rig = ProducerRig()
    rig.hold_sends()
    rig.send_soon(orders(0))
    rig.send_soon(orders(1))
    task = rig.start(rig.producer.flush(2))
    rig.pass_time(2.1)
    assert task.result() == 2


# --- receipts ---


def test_receipts_of_equal_messages_have_their_own_offsets() -> None:
    rig = ProducerRig(queues=1)
    rig.hold_sends()
    message = orders(1)
    receipts = [rig.send_soon(message) for _ in range(5)]
    rig.broker.on.clear()
    rig.answer(rig.sends()[0])
    assert [receipt.result().offset for receipt in receipts] == list(range(5))


class Between(list[bytes | RecordTuple]):
    """The records of a batch, at which another thread comes in the midst of an append."""

    def __init__(self, before: Callable[[], object], after: Callable[[], object]) -> None:
        super().__init__()
        self.before, self.after = before, after

    def append(self, record: bytes | RecordTuple) -> None:
        self.before()
        super().append(record)
        self.after()


def test_another_thread_in_the_midst_of_an_append_changes_no_receipt() -> None:
    rig = ProducerRig(queues=1)
    rig.hold_sends()
    rig.send_soon(orders(0))
    batch = rig.send_soon(orders(1)).batch

    def other(number: int) -> Callable[[], None]:
        return lambda: list.append(batch.records, b"%d" % number)

    records = Between(other(2), other(4))
    records.extend(batch.records)
    batch.records = records
    receipt = rig.producer.append_fast(orders(3), None)
    assert receipt is not None and receipt.batch is batch
    rig.broker.on.clear()
    rig.answer(rig.sends()[0])
    rig.pass_time(1)
    assert all_stored(rig)[0] == [b"0", b"1", b"2", b"3", b"4"]
    assert receipt.result().offset == 3


def test_a_batch_that_another_thread_fills_in_the_midst_of_an_append_is_not_overfilled() -> None:
    rig = ProducerRig(queues=1, batch_bytes=20_000)
    rig.hold_sends()
    rig.send_soon(orders(0))
    large = Message("orders", bytes(6_000))
    batch = rig.send_soon(large).batch

    class Births(dict[int, int]):
        entered = False

        def __setitem__(self, place: int, born_ms: int) -> None:
            super().__setitem__(place, born_ms)
            if not self.entered:
                self.entered = True
                while rig.producer.append_fast(large, None) is not None:
                    pass

    batch.births = Births(batch.births)
    rig.pass_time(0.001)
    receipt = rig.producer.append_now(large, None)
    assert receipt is not None and receipt.batch is not batch
    rig.broker.on.clear()
    rig.answer(rig.sends()[0])
    rig.pass_time(1)
    assert list(map(len, all_stored(rig).values())) == [5]
    assert [parse(kept).count for kept in rig.broker.stored["orders", 0]] == [1, 3, 1]


@pytest.mark.parametrize("in_time", [True, False])
def test_a_batch_that_closes_in_the_midst_of_an_append_has_the_message_or_not(
    in_time: bool,
) -> None:
    rig = ProducerRig(queues=1)
    rig.hold_sends()
    rig.send_soon(orders(0))
    batch = rig.send_soon(orders(1)).batch

    def close() -> None:
        rig.broker.on.clear()
        rig.answer(rig.sends()[0])
        rig.pass_time(1)
        assert batch.done

    def nothing() -> None:
        pass

    records = Between(nothing, close) if in_time else Between(close, nothing)
    records.extend(batch.records)
    batch.records = records
    receipt = rig.producer.append_fast(orders(2), None)
    assert all_stored(rig)[0] == [b"0", b"1", b"2"] if in_time else [b"0", b"1"]
    if in_time:
        assert receipt is not None and receipt.result().offset == 2
    else:
        assert receipt is None, "it is in no batch, so it goes another way"


def test_a_batch_that_closes_before_a_message_has_its_place_does_not_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ProducerRig(queues=1)
    rig.hold_sends()
    rig.send_soon(orders(0))
    batch = rig.send_soon(orders(1)).batch

    def close() -> int:
        rig.broker.on.clear()
        rig.answer(rig.sends()[0])
        rig.pass_time(1)
        assert batch.done
        return 5

    monkeypatch.setattr(rig.producer, "_wall_ms", close)
    assert rig.producer.append_fast(orders(2), None) is None
    assert all_stored(rig)[0] == [b"0", b"1"]


def test_callbacks_come_once_without_the_lock() -> None:
    rig = ProducerRig()
    rig.hold_sends()
    receipt = rig.send_soon(orders())
    seen: list[Receipt] = []
    receipt.add_done_callback(seen.append)
    assert not seen
    rig.answer(rig.sends()[0])
    assert seen == [receipt] and receipt.exception() is None
    receipt.add_done_callback(seen.append)
    rig.step()
    assert len(seen) == 2


# --- what is refused before anything is sent ---


BAD_MESSAGES: Sequence[tuple[Message, str, str]] = [
    (Message("", b""), "BAD_NAME", "topic name ''"),
    (Message("no spaces", b""), "BAD_NAME", "no spaces"),
    (Message("x" * 128, b""), "BAD_NAME", "127"),
    (Message("orders", "text"), "BAD_REQUEST", "encode"),  # type: ignore[arg-type]
    (Message("orders", bytes(1 << 20)), "TOO_LARGE", "1,048,576 bytes"),
    (Message("orders", b"", tag=5), "BAD_REQUEST", "tag 5"),  # type: ignore[arg-type]
    (Message("orders", b"", tag="\ud800"), "BAD_REQUEST", "UTF-8"),
    (Message("orders", b"", keys="42"), "BAD_REQUEST", "keys=['42']"),
    (Message("orders", b"", keys=[4]), "BAD_REQUEST", "key 4"),  # type: ignore[list-item]
    (Message("orders", b"", properties={"a": 1}), "BAD_REQUEST", "1"),  # type: ignore[dict-item]
    (Message("orders", b"", properties={str(n): "" for n in range(129)}), "TOO_LARGE", "129"),
    (Message("orders", b"", properties={"a": "x" * 40_000}), "TOO_LARGE", "32,768"),
]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(("message", "code", "words"), BAD_MESSAGES)
def test_bad_messages_are_refused_by_name(
    message: Message, code: str, words: str, warm: bool
) -> None:
    rig = ProducerRig()
    if warm:  # so that the fast path sees it
        rig.hold_sends()
        rig.send_soon(orders())
        rig.send_soon(orders())
    before = len(rig.broker.requests)
    with pytest.raises(Refused) as caught:
        rig.send_soon(message)
    assert caught.value.code == code and words in str(caught.value)
    assert len(rig.broker.requests) == before


def test_a_bad_level_is_refused_by_name() -> None:
    rig = ProducerRig()
    with pytest.raises(Refused, match="memory, disk, quorum"):
        rig.send_soon(orders(), level="all")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"when_full": "drop"},
        {"batch_bytes": 0},
        {"send_timeout": -1},
        {"linger_ms": -1},
        {"buffer_bytes": 0},
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        ProducerOptions(**options)


def test_bytes_of_other_types_are_taken_as_they_are_now() -> None:
    rig = ProducerRig()
    rig.hold_sends()
    body = bytearray(b"first")
    rig.send_soon(orders())
    receipt = rig.send_soon(Message("orders", body))  # type: ignore[arg-type]
    body[:] = b"other"
    rig.broker.on.clear()
    rig.answer(rig.sends()[0])
    stored = all_stored(rig)[receipt.result().queue]
    assert stored == [b"first"]
