"""A producer for many topics: how it learns of them, and when their batches close."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.test_client_producing import ProducerRig

from cometmq import protocol
from cometmq.client.batching import Batch, Receipt
from cometmq.client.closing import CROWD, MOMENT_S, PARTIAL_MAX, REST
from cometmq.client.producing import Accumulator
from cometmq.client.routing import LEARN_MOST, LEARNED_S, MANY
from cometmq.message import Message
from cometmq.protocol import Operation, Status, TopicDescribe, TopicList
from cometmq.testing.scripted_broker import Answer, Request

LIST, DESCRIBE, SEND = Operation.TOPIC_LIST, Operation.TOPIC_DESCRIBE, Operation.SEND
LINGER_S = 0.1


def send(rig: ProducerRig, number: int) -> Receipt:
    message = Message(f"topic-{number}", b"x")
    return rig.run(rig.producer.append(message, None, moment_s=MOMENT_S))


def described(rig: ProducerRig) -> list[str]:
    headers = [request.header for request in rig.broker.asked(DESCRIBE)]
    return [header.topic for header in headers if isinstance(header, TopicDescribe)]


# --- routes ---


def tell(count: int, incarnation: int = 1) -> Callable[[Request], Answer]:
    """Answers a list with so many topics."""

    def answer(request: Request) -> Answer:
        names = (f"topic-{number}" for number in range(count))
        info = protocol.TopicInfo
        listing = [info(name, incarnation, 4, True, True, 0) for name in names]
        return Answer(protocol.TopicListing(listing))

    return answer


def test_who_needs_many_topics_is_told_of_the_others_at_once() -> None:
    rig = ProducerRig()
    rig.broker.on[LIST] = tell(1000)
    for number in range(1000):
        send(rig, number)
    assert len(described(rig)) == MANY
    (asked,) = rig.broker.asked(LIST)
    assert asked.header == TopicList("topic-", LEARN_MOST)
    rig.pass_time(1)
    assert len(rig.broker.stored) == 1000


def test_a_topic_that_the_list_left_out_is_asked_for() -> None:
    rig = ProducerRig()
    rig.broker.on[LIST] = tell(MANY + 1)
    for number in range(MANY + 2):
        send(rig, number)
    assert described(rig)[MANY:] == [f"topic-{MANY + 1}"]


def test_what_was_told_unasked_is_not_believed_for_long() -> None:
    rig = ProducerRig()
    rig.broker.on[LIST] = tell(1000)
    for number in range(MANY):
        send(rig, number)
    rig.pass_time(LEARNED_S)
    send(rig, MANY)
    assert described(rig)[-1] == f"topic-{MANY}"


def test_what_is_known_already_does_not_change_by_a_list() -> None:
    """It may be older than the answer about this topic alone."""
    rig = ProducerRig()
    rig.broker.on[LIST] = tell(MANY, incarnation=9)
    for number in range(MANY):
        send(rig, number)
    assert {state.route.incarnation for state in rig.producer.topics.values()} == {1}


def test_a_topic_that_is_gone_is_asked_for_whatever_a_list_told() -> None:
    rig = ProducerRig()
    rig.broker.on[LIST] = lambda request: None
    for number in range(MANY):
        send(rig, number)
    rig.broker.hold(DESCRIBE)
    waiting = rig.start(rig.producer.append(Message("topic-99", b"x"), None))
    rig.broker.asked(LIST)[0].answer(tell(100)(rig.broker.asked(LIST)[0]))
    rig.step()
    rig.broker.on.clear()
    asked = rig.broker.asked(DESCRIBE)[-1]
    answer = rig.broker.default(asked)
    assert answer is not None
    asked.answer(answer)
    rig.step()
    assert waiting.done
    rig.producer.routes.forget("topic-99", 1)
    rig.producer.topics.clear()
    before = len(described(rig))
    rig.run(rig.producer.append(Message("topic-99", b"x"), None))
    assert described(rig)[before:] == ["topic-99"]


@pytest.mark.parametrize("status", [Status.NOT_AUTHORIZED, Status.LIMIT_REACHED])
def test_who_may_not_list_asks_for_each(status: Status) -> None:
    rig = ProducerRig()
    rig.broker.on[LIST] = lambda request: Answer(protocol.Failure("no"), status=status)
    for number in range(MANY + 5):
        send(rig, number)
    assert len(described(rig)) == MANY + 5


# --- closing ---


def slow_to_close(producer: Accumulator, rig: ProducerRig, seconds: float) -> None:
    """Each batch takes so long to close, as in a process that is slow for any reason."""
    close = producer._closing._close

    def slowly(batch: Batch) -> None:
        rig.environment.clock.advance(seconds)
        close(batch)

    producer._closing._close = slowly


def crowd(count: int) -> ProducerRig:
    """A slow rig that knows so many topics; what it sends is answered at once."""
    rig = ProducerRig(linger_ms=LINGER_S * 1000)
    rig.broker.on[LIST] = tell(count)
    for number in range(count):
        send(rig, number)
    rig.pass_time(2 * LINGER_S)
    assert not rig.producer.open
    rig.broker.requests.clear()
    return rig


def test_a_slow_caller_who_goes_on_fills_batches_before_a_free_line_takes_them() -> None:
    """Each message finds the line free, and is slow to be handed over: batches of one would keep
    it as slow."""
    rig = crowd(200)
    slow_to_close(rig.producer, rig, 0.001)
    for _ in range(5):
        for number in range(200):
            receipt = rig.producer.append_fast(Message(f"topic-{number}", b"x"), None)
            if receipt is None:
                send(rig, number)
            rig.environment.clock.advance(0.0001)
    rig.pass_time(2 * LINGER_S)
    batches = sum(len(request.batches) for request in rig.sends())
    assert batches < 500, "half of the messages share a batch with another one"


def test_whoever_pauses_has_what_he_began_sent_long_before_it_is_due() -> None:
    rig = crowd(CROWD + 10)
    slow_to_close(rig.producer, rig, 0.0001)
    receipts = [send(rig, number) for number in range(CROWD + 10)]
    rig.pass_time(3 * REST * PARTIAL_MAX * 0.0001)
    assert all(receipt.done() for receipt in receipts)


def test_whoever_never_pauses_has_it_sent_when_it_is_due() -> None:
    rig = crowd(400)
    slow_to_close(rig.producer, rig, 0.001)
    first = [send(rig, number) for number in range(CROWD + 1)][-1]
    for number in range(CROWD + 1, 400):
        send(rig, number)
        rig.step(0.001)
    assert first.done()


def test_while_a_caller_waits_for_a_route_what_he_began_waits_for_him() -> None:
    rig = ProducerRig(linger_ms=LINGER_S * 1000)
    send(rig, 0)
    rig.broker.hold(DESCRIBE)
    waiting = rig.start(rig.producer.append(Message("topic-1", b"x"), None, moment_s=MOMENT_S))
    rig.pass_time(LINGER_S / 2)
    assert not rig.sends()
    rig.pass_time(LINGER_S)
    assert len(rig.sends()) == 1, "no longer than until it is due"
    assert not waiting.done
