"""A producer before a broker that knows its batches by their numbers: each is stored once and in
order, whatever is lost on the way; five are out at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from typing import Any

import pytest

from cometmq import protocol
from cometmq.batch import Batch, decode_records, parse, verify_producer
from cometmq.client.batching import Receipt
from cometmq.client.producer_options import ProducerOptions
from cometmq.client.producing import Accumulator
from cometmq.errors import CometError, OutcomeUnknown, Refused, Retryable
from cometmq.message import Message
from cometmq.protocol import Operation, SendResultPart, Status
from cometmq.protocol.sends import SEQUENCES
from cometmq.testing.client_rig import ClientRig
from cometmq.testing.scripted_broker import Answer, Request

SEND = Operation.SEND
BODY = 6_000
"""With batches of 10,000 bytes each message is a batch of its own."""

Verdict = Callable[[Batch], int]


class KnowingRig(ClientRig):
    """The producer's inside, and a broker that stores a numbered batch once. Sends wait in `held`
    until the test lets the broker `handle` them, in their order."""

    lone = False
    """Whether messages take the short way where they may."""

    def __init__(self, *, queues: int = 1, **options: Any) -> None:
        super().__init__(queues=queues)
        self.broker.features = [SEQUENCES]
        self.broker.on[SEND] = self._hold
        self.held: deque[Request] = deque()
        self.rows: dict[tuple[int, int], tuple[int, int, dict[int, SendResultPart]]] = {}
        self.most_out = 0
        options.setdefault("batch_bytes", 10_000)
        self.producer = Accumulator(self.engine, ProducerOptions(**options), self, nullcontext())

    def send_soon(self, number: int, key: str | None = None) -> Receipt:
        body = b"%d " % number + bytes(BODY)
        message = Message("t", body, sharding_key=key)
        lone = self.producer.begin_lone(message, None) if self.lone else None
        if lone is not None:
            self.step()
            return self.receipt_of(lone)
        receipt = self.start(self.producer.append(message, None))
        self.step()
        return receipt.result()

    def handle(self, verdict: Verdict = lambda batch: Status.OK, *, answer: bool = True) -> None:
        """Let the broker take the oldest request; `verdict` refuses batches that are in order."""
        request = self.held.popleft()
        results = [self._take(parse(bytes(view)), verdict) for view in request.batches]
        if answer:
            request.answer(Answer(protocol.SendReply(results, "disk")))
            self.step()

    def handle_all(self) -> None:
        while self.held:
            self.handle()

    def break_connection(self) -> None:
        self.held.clear()
        if self.broker.channels and not self.broker.channels[-1].closed:
            self.broker.break_connection()
        self.step()

    def stored(self, queue: int = 0) -> list[int]:
        kept = self.broker.stored.get(("t", queue), [])
        return [int(record[1].split()[0]) for it in kept for record in decode_records(parse(it))]

    def numbers_out(self) -> list[tuple[int, int]]:
        """(epoch, sequence) of all that was sent and not handled."""
        found = [parse(bytes(view)).producer for it in self.held for view in it.batches]
        return [number[1:] for number in found if number is not None]

    def _hold(self, request: Request) -> None:
        self.held.append(request)
        self.most_out = max(self.most_out, len(self.numbers_out()))

    def _take(self, batch: Batch, verdict: Verdict) -> SendResultPart:
        verify_producer(batch)
        assert batch.producer is not None
        producer, epoch, sequence = batch.producer
        last, expected, answers = self.rows.get((producer, batch.queue_claim), (0, 0, {}))
        if epoch > last:
            last, expected, answers = epoch, 0, {}
        if epoch < last:
            return SendResultPart(Status.FENCED)
        if sequence in answers:
            return answers[sequence]
        if sequence != expected:
            return SendResultPart(Status.OUT_OF_SEQUENCE)
        status = verdict(batch)
        if status != Status.OK:
            return SendResultPart(status)
        offset = self.broker.put("t", batch.queue_claim, bytearray(batch.view))
        answers[sequence] = SendResultPart(Status.OK, batch.queue_claim, offset, 1, 1, 1000)
        self.rows[producer, batch.queue_claim] = (last, expected + batch.count, answers)
        return answers[sequence]


@pytest.fixture(params=["by the flow", "alone if possible"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How messages go: what becomes of them must not depend on it."""
    monkeypatch.setattr(KnowingRig, "lone", request.param == "alone if possible")


def refusing(*numbers: int, status: int) -> Verdict:
    def verdict(batch: Batch) -> int:
        found = int(decode_records(batch)[0][1].split()[0])
        return status if found in numbers else Status.OK

    return verdict


# --- five at a time ---


def test_five_batches_of_a_queue_are_out_at_a_time_in_their_order() -> None:
    rig = KnowingRig()
    receipts = [rig.send_soon(number) for number in range(9)]
    assert rig.most_out <= 5
    rig.handle()
    rig.handle_all()
    assert rig.most_out == 5
    assert rig.stored() == list(range(9))
    assert [receipt.result().offset for receipt in receipts] == list(range(9))


def test_without_the_feature_one_is_out_and_has_no_number() -> None:
    rig = KnowingRig()
    rig.broker.features = []
    for number in range(4):
        rig.send_soon(number)
    assert [len(it.batches) for it in rig.held] == [1]
    assert parse(bytes(rig.held[0].batches[0])).producer is None


def test_a_broker_that_comes_back_without_the_feature_gets_one_at_a_time() -> None:
    rig = KnowingRig()
    receipts = [rig.send_soon(number) for number in range(6)]
    rig.broker.features = []
    rig.break_connection()
    rig.pass_time(1)
    for number in range(6):
        assert rig.numbers_out() == [(0, number)]
        rig.handle()
    assert [receipt.result().offset for receipt in receipts] == list(range(6))


def test_a_one_way_send_carries_no_number() -> None:
    rig = KnowingRig()
    rig.run(rig.producer.send_one_way(Message("t", b"x")))
    assert parse(bytes(rig.held[0].batches[0])).producer is None


def test_numbers_count_messages_and_two_producers_are_two() -> None:
    rig = KnowingRig(batch_bytes=100_000)
    for number in range(3):
        rig.send_soon(number)  # the first goes alone, the others together
    rig.handle_all()
    assert rig.stored() == [0, 1, 2]
    ((producer, _),) = rig.rows
    other = KnowingRig()
    other.environment.random.bytes(100)
    other.send_soon(0)
    other.handle()
    assert {key[0] for key in other.rows} != {producer}


# --- what goes wrong ---


def test_lost_answers_are_repeated_and_each_is_stored_once() -> None:
    rig = KnowingRig()
    receipts = [rig.send_soon(number) for number in range(7)]
    while rig.held:
        rig.handle(answer=False)
    rig.break_connection()
    rig.pass_time(1)
    while rig.held:
        rig.handle()
    assert rig.stored() == list(range(7))
    assert [receipt.result().offset for receipt in receipts] == list(range(7))


def test_a_retry_in_the_middle_holds_up_what_follows_it() -> None:
    rig = KnowingRig()
    receipts = [rig.send_soon(number) for number in range(6)]
    rig.handle()
    busy = refusing(2, status=Status.RETRY)
    while rig.held:
        rig.handle(busy)
    assert rig.stored() == [0, 1]
    rig.pass_time(1)
    assert rig.numbers_out() == [(0, 2)], "after a failure one goes alone"
    rig.handle_all()
    assert rig.stored() == list(range(6))
    assert [receipt.result().offset for receipt in receipts] == list(range(6))
    assert rig.rows.popitem()[1][0] == 0, "the epoch is still the first"


def test_a_refusal_in_the_middle_begins_a_new_epoch() -> None:
    rig = KnowingRig()
    receipts = [rig.send_soon(number) for number in range(6)]
    rig.handle()
    never = refusing(2, status=Status.REFUSED)
    while rig.held:
        rig.handle(never)
    assert rig.stored() == [0, 1, 3, 4, 5]
    with pytest.raises(Refused):
        receipts[2].result()
    assert [receipts[at].result().offset for at in (0, 1, 3, 4, 5)] == list(range(5))
    epoch, following, _ = rig.rows.popitem()[1]
    assert (epoch, following) == (1, 3)


def test_an_abandoned_send_begins_a_new_epoch_when_nothing_of_the_old_is_undecided() -> None:
    rig = KnowingRig(send_timeout=5)
    lost = rig.send_soon(0)
    rig.pass_time(3)
    second = rig.send_soon(1)
    rig.pass_time(2.5)
    with pytest.raises(OutcomeUnknown):
        lost.result()
    third = rig.send_soon(2)
    assert rig.numbers_out() == [(0, 0), (0, 1)]
    rig.handle_all()
    assert (second.result().offset, third.result().offset) == (1, 2)
    assert rig.stored() == [0, 1, 2]
    assert rig.rows.popitem()[1][0] == 1


def test_a_broker_that_lost_the_end_of_the_log_gets_what_it_has_not() -> None:
    rig = KnowingRig()
    for number in range(3):
        rig.send_soon(number)
    rig.handle_all()
    key, (epoch, _, answers) = rig.rows.popitem()
    rig.rows[key] = (epoch, 1, {0: answers[0]})  # a power cut took what memory had acknowledged
    receipt = rig.send_soon(3)
    rig.handle()
    rig.handle()
    assert receipt.result().offset == 3
    assert rig.rows[key][:2] == (1, 1)


@pytest.mark.parametrize("repeated", [False, True], ids=["first try", "repeat"])
def test_a_forgotten_producer_begins_anew_unless_it_may_be_stored(repeated: bool) -> None:
    rig = KnowingRig()
    rig.send_soon(0)
    rig.handle()
    receipt = rig.send_soon(1)
    if repeated:
        rig.break_connection()
        rig.pass_time(1)
    forgotten = SendResultPart(Status.UNKNOWN_PRODUCER, detail="who are you")
    rig.held.popleft().answer(Answer(protocol.SendReply([forgotten], "")))
    rig.step()
    if repeated:
        with pytest.raises(OutcomeUnknown, match="who are you"):
            receipt.result()
    else:
        assert rig.numbers_out() == [(1, 0)]
        rig.handle()
        assert receipt.result().offset == 1


def test_a_topics_new_life_has_numbers_of_its_own() -> None:
    rig = KnowingRig()
    rig.send_soon(0)
    rig.handle()
    state = rig.producer.topics["t"]
    state.route.incarnation = 2
    rig.send_soon(1)
    assert rig.numbers_out() == [(1, 0)]


def test_closing_leaves_nothing_undecided() -> None:
    rig = KnowingRig()
    receipts = [rig.send_soon(number) for number in range(8)]
    rig.producer.close(Retryable("closed"))
    unknown = [isinstance(receipt.exception(), OutcomeUnknown) for receipt in receipts]
    assert all(isinstance(receipt.exception(), CometError) for receipt in receipts)
    assert unknown == [True] * 4 + [False] * 4, "four requests are out"


# --- whatever goes wrong ---


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_lost_each_message_is_stored_once_and_in_order(seed: int) -> None:
    random = Random(seed)
    queues = random.choice((1, 2))
    rig = KnowingRig(queues=queues, send_timeout=random.choice((4, 60)))
    receipts: dict[int, Receipt] = {}
    for number in range(60):
        if random.random() < 0.8:
            receipts[number] = rig.send_soon(number)
        for _ in range(random.randint(0, 3)):
            if rig.held:
                rig.handle(trouble(random), answer=random.random() < 0.95)
        chance = random.random()
        if chance < 0.08:
            for _ in range(random.randint(0, len(rig.held))):
                rig.handle(trouble(random), answer=False)
            rig.break_connection()
        elif chance < 0.3:
            rig.pass_time(random.choice((0.01, 0.2, 1)))
    if rig.held:
        rig.break_connection()  # whose answer was never sent would wait for ever
    for _ in range(200):
        rig.pass_time(0.5)
        rig.handle_all()
    assert all(receipt.done() for receipt in receipts.values())
    stored = [rig.stored(queue) for queue in range(queues)]
    for queue, numbers in enumerate(stored):
        assert numbers == sorted(set(numbers)), f"queue {queue}"
    check_outcomes(receipts, {number for numbers in stored for number in numbers})


def trouble(random: Random) -> Verdict:
    """Mostly none."""
    return lambda batch: random.choices((Status.OK, Status.RETRY, Status.REFUSED), (20, 1, 1))[0]


def check_outcomes(receipts: dict[int, Receipt], stored: set[int]) -> None:
    """What is said to be stored is, at that place; what is said not to be is not."""
    for number, receipt in receipts.items():
        try:
            receipt.result(0)
        except OutcomeUnknown:
            pass
        except (Refused, Retryable) as error:
            assert number not in stored, error
        else:
            assert number in stored
