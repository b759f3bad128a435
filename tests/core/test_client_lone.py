"""A message that is sent while nothing else is: when it may go straight away, and what else can
happen meanwhile. What becomes of it is tested in test_client_producing.py, beside the long way."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from cometmq import Closed, Message, OutcomeUnknown, Producer, Refused, Retryable, SendResult
from cometmq.batch import decode_records, parse
from cometmq.client.ctrl_c import CtrlC
from cometmq.client.producer_options import ProducerOptions
from cometmq.client.producing import Accumulator
from cometmq.protocol import Operation, Status
from cometmq.testing.client_rig import ClientRig
from cometmq.testing.environment import InlineThreads, VirtualEnvironment
from cometmq.testing.scripted_broker import Answer, Request, ScriptedBroker
from cometmq.testing.waiting import until

SEND = Operation.SEND
DEADLINE_S = 10


def orders(number: int = 0, **fields: Any) -> Message:
    return Message("orders", b"%d" % number, **fields)


class LoneRig(ClientRig):
    """A producer's inside that knows its topic and holds its sends back."""

    def __init__(self) -> None:
        super().__init__(queues=2)
        self.producer = Accumulator(self.engine, ProducerOptions(), self, nullcontext())
        self.run(self.producer.send(orders(), None))
        self.broker.hold(SEND)

    def begin(self, message: Message) -> bool:
        """Whether it went the short way."""
        lone = self.producer.begin_lone(message, None)
        self.engine.send_now()  # as a driver does with what could not go at once
        return lone is not None

    def sends(self) -> list[Request]:
        """The send requests since the first."""
        return self.broker.asked(SEND)[1:]

    def answer(self) -> None:
        """Store what came last and say so."""
        request = self.sends()[-1]
        request.answer(Answer(self.broker.store(request)))
        self.step()


@pytest.fixture
def rig() -> LoneRig:
    return LoneRig()


def test_it_is_out_at_once_and_leaves_nothing_behind(rig: LoneRig) -> None:
    sender = rig.producer.sender
    assert rig.begin(orders(1)) and len(rig.sends()) == 1
    assert not sender.is_idle() and rig.producer.unacknowledged() == 1
    rig.answer()
    assert sender.is_idle() and not sender.gather()
    assert rig.producer.unacknowledged() == 0 and rig.producer.topics["orders"].in_flight == 0
    assert rig.begin(orders(2))


def test_queues_take_turns(rig: LoneRig) -> None:
    for number in range(4):
        assert rig.begin(orders(number))
        rig.answer()
    claims = [parse(view).queue_claim for request in rig.sends() for view in request.batches]
    assert claims == [1, 0, 1, 0]


def test_a_batch_that_is_open_goes_first(rig: LoneRig) -> None:
    assert rig.begin(orders(1))
    rig.start(rig.producer.append(orders(2), None))
    assert rig.producer.open and not rig.begin(orders(3))
    rig.answer()
    assert not rig.producer.open and not rig.begin(orders(3)), "one is on its way"
    rig.answer()
    assert rig.begin(orders(3))


def test_what_closes_behind_it_waits_for_it_though_it_is_repeated(rig: LoneRig) -> None:
    key = next(key for key in map(str, range(9)) if rig.begin(orders(1, sharding_key=key)))
    (queue,) = [parse(view).queue_claim for view in rig.sends()[0].batches]
    behind = rig.start(rig.producer.append(orders(2, sharding_key=key), None))
    rig.start(rig.producer.flush(0))
    assert behind.done and len(rig.sends()) == 1, "one batch of a queue at a time"
    rig.sends()[0].fail(Status.RETRY, "not now", 10)
    rig.step()
    rig.broker.on.clear()
    rig.pass_time(5)
    kept = rig.broker.stored["orders", queue]
    numbers = [record[1] for batch in kept for record in decode_records(parse(batch))]
    assert numbers[-2:] == [b"1", b"2"]


def test_who_is_on_pause_is_not_overtaken(rig: LoneRig) -> None:
    assert rig.begin(orders(1))
    rig.sends()[0].fail(Status.RETRY, "not now", 500)
    rig.step()
    assert not rig.begin(orders(2))


@pytest.mark.parametrize("message", [Message("other", b"x"), "text"])
def test_the_long_way_is_left_what_it_alone_can_do(rig: LoneRig, message: Any) -> None:
    assert not rig.begin(message)
    assert rig.producer.sender.is_idle() and rig.begin(orders(1))


@pytest.mark.parametrize(
    ("message", "level"),
    [
        (Message("orders", 7), None),  # type: ignore[arg-type]
        (orders(keys="text"), None),
        (orders(sharding_key=b"bytes"), None),
        (orders(), "platinum"),
    ],
)
def test_what_can_not_be_sent_is_refused_and_nothing_is_left(
    rig: LoneRig, message: Message, level: Any
) -> None:
    with pytest.raises(Refused):
        rig.producer.begin_lone(message, level)
    assert rig.producer.sender.is_idle() and rig.begin(orders(1))


def test_what_could_not_be_made_a_request_ends_in_its_time(
    rig: LoneRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(rig.engine, "start", short)
        with pytest.raises(MemoryError):
            rig.producer.begin_lone(orders(1), None)
    (batch,) = rig.producer.sender.gather()
    assert not rig.begin(orders(2))
    rig.pass_time(ProducerOptions().send_timeout + 1)
    with pytest.raises(Retryable):
        batch.result()
    assert rig.begin(orders(3)) and len(rig.sends()) == 1


def test_nothing_goes_once_the_producer_is_closed(rig: LoneRig) -> None:
    rig.producer.close(Closed("over"))
    assert not rig.begin(orders(1))


def test_closing_ends_it(rig: LoneRig) -> None:
    lone = rig.producer.begin_lone(orders(1), None)
    assert lone is not None
    rig.producer.close(Closed("over"))
    with pytest.raises(OutcomeUnknown):
        lone.result()


def test_what_is_not_sent_at_once_is_sent_with_the_next_connection(rig: LoneRig) -> None:
    rig.broker.break_connection()
    rig.step()
    lone = rig.producer.begin_lone(orders(1), None)
    assert lone is not None
    assert not rig.sends()
    rig.broker.on.clear()
    rig.pass_time(1)
    assert lone.result().base_offset == 0 and len(rig.sends()) == 1


class NoThreads(InlineThreads):
    """The loop's thread never gets a turn but for tidying up."""

    def __init__(self) -> None:
        self.kept: list[Callable[[], None]] = []

    def start(self, name: str, function: Callable[[], None]) -> threading.Thread:
        self.kept.append(function)
        return threading.Thread(target=function, name=name)


def test_who_sends_without_a_pause_looks_after_what_is_due() -> None:
    scripted, threads = ScriptedBroker(queues=1), NoThreads()
    environment = VirtualEnvironment(threads=threads)
    producer = Producer("scripted://broker", environment=environment, connect=scripted.connect)
    engine = producer._driver.engine
    called: list[float] = []

    def due() -> None:
        called.append(engine.now_s())
        engine.at(engine.now_s() + 1.0, due)

    engine.at(engine.now_s() + 1.0, due)
    for times in (0, 0, 1, 1, 2):
        for _ in range(3):
            producer.send(orders())
        assert len(called) == times
        environment.clock.advance(0.6)
    producer.close()
    for function in threads.kept:
        function()


# --- on real threads ---


@pytest.fixture
def scripted() -> ScriptedBroker:
    return ScriptedBroker(queues=1)


@pytest.fixture
def producer(scripted: ScriptedBroker) -> Iterator[Producer]:
    """One that knows its topic, and whose sends nobody answers from now on."""
    producer = Producer("scripted://broker", connect=scripted.connect)
    producer.send(orders())
    scripted.hold(SEND)
    yield producer
    scripted.on.clear()
    for request in scripted.asked(SEND)[1:]:
        request.answer(Answer(scripted.store(request)))
    producer.close(DEADLINE_S)


class Sending(threading.Thread):
    """Another thread's send, and how it ended."""

    def __init__(self, producer: Producer, number: int) -> None:
        super().__init__(daemon=True)
        self.producer, self.number = producer, number
        self.ended: SendResult | Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.ended = self.producer.send(orders(self.number))
        except Exception as error:
            self.ended = error


def answer_all(scripted: ScriptedBroker) -> None:
    scripted.on.clear()
    for request in scripted.asked(SEND)[1:]:
        request.answer(Answer(scripted.store(request)))


def test_others_may_send_while_one_waits(scripted: ScriptedBroker, producer: Producer) -> None:
    threads = [Sending(producer, 1)]
    assert until(lambda: len(scripted.asked(SEND)) == 2)
    threads += [Sending(producer, number) for number in range(2, 6)]
    assert until(lambda: producer._accumulator.unacknowledged() == 5)
    answer_all(scripted)
    for thread in threads:
        thread.join(DEADLINE_S)
    offsets = [thread.ended.offset for thread in threads if isinstance(thread.ended, SendResult)]
    assert offsets[0] == 1 and sorted(offsets) == [1, 2, 3, 4, 5]


def test_closing_ends_the_send_of_another_thread(
    scripted: ScriptedBroker, producer: Producer
) -> None:
    thread = Sending(producer, 1)
    assert until(lambda: len(scripted.asked(SEND)) == 2)
    with pytest.raises(OutcomeUnknown):
        producer.close(timeout=0.01)
    thread.join(DEADLINE_S)
    assert isinstance(thread.ended, OutcomeUnknown)


def test_ctrl_c_ends_a_send_and_the_producer_lives_on(
    scripted: ScriptedBroker, producer: Producer
) -> None:
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        producer.send(orders(1))
    timer.join()
    answer_all(scripted)
    assert producer.send(orders(2)).offset == 2


def test_who_forks_is_the_main_thread_of_the_child() -> None:
    def fork() -> None:
        with warnings.catch_warnings():
            # From Python 3.12 on a fork beside threads is warned of; what it does is tested here.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            woken: list[bool] = []
            try:
                with CtrlC(lambda: woken.append(True)):
                    signal.raise_signal(signal.SIGINT)
                    woken.append(False)
            except KeyboardInterrupt:
                os._exit(0 if woken == [True, False] else 2)
            os._exit(1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    codes: list[int] = []
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join(DEADLINE_S)
    assert codes == [0]
