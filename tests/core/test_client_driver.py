"""The sync face on real threads: who drives, who waits, forks, ctrl-C, exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cometmq import (
    Admin,
    Closed,
    ConfigError,
    Message,
    OutcomeUnknown,
    Producer,
    PullConsumer,
    Receipt,
    SendResult,
)
from cometmq.batch import parse
from cometmq.client.connection import NEVER
from cometmq.protocol import Operation
from cometmq.testing import EmbeddedBroker
from cometmq.testing.scripted_broker import Answer, ScriptedBroker
from cometmq.testing.waiting import until

SEND = Operation.SEND
ADDRESS = "scripted://broker"


@pytest.fixture
def scripted() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture
def producer(scripted: ScriptedBroker) -> Iterator[Producer]:
    producer = Producer(ADDRESS, connect=scripted.connect, send_timeout=20)
    yield producer
    scripted.on.clear()
    for request in scripted.asked(SEND):
        request.answer(Answer(scripted.store(request)))
    producer.close()


def test_answers_are_taken_while_the_caller_does_something_else(
    scripted: ScriptedBroker, producer: Producer
) -> None:
    scripted.hold(SEND)
    receipt = producer.send_soon(Message("orders", b"x"))
    assert until(lambda: bool(scripted.asked(SEND)))
    (request,) = scripted.asked(SEND)
    request.answer(Answer(scripted.store(request)))
    assert until(receipt.done)
    assert receipt.result(timeout=0).offset == 0


def test_partial_batches_go_while_the_caller_does_something_else(
    scripted: ScriptedBroker, producer: Producer
) -> None:
    scripted.hold(SEND)
    producer.send_soon(Message("orders", b"x"))
    assert until(lambda: len(scripted.asked(SEND)) == 1)
    for _ in range(5):
        producer.send_soon(Message("orders", b"x"))
    assert until(lambda: len(scripted.asked(SEND)) == 2)


def test_what_a_thread_sends_in_one_go_travels_together_until_somebody_asks(
    scripted: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.client.producer.MOMENT_S", 60.0)
    with Producer(ADDRESS, connect=scripted.connect, linger_ms=60_000) as producer:
        producer.send(Message("orders", b"x"))
        receipts = [producer.send_soon(Message("orders", b"x")) for _ in range(10)]
        assert len(scripted.asked(SEND)) == 1
        assert receipts[0].result(timeout=10).queue == 1
    (view,) = scripted.asked(SEND)[1].batches
    assert parse(view).count == 10


def test_heartbeats_go_while_the_caller_does_something_else(scripted: ScriptedBroker) -> None:
    scripted.heartbeat_ms = 20
    with Admin(ADDRESS, connect=scripted.connect) as admin:
        admin.list_topics()
        assert until(lambda: len(scripted.asked(Operation.HEARTBEAT)) > 2)


def test_a_wait_ends_with_its_timeout_and_the_sending_goes_on(
    scripted: ScriptedBroker, producer: Producer
) -> None:
    scripted.hold(SEND)
    receipt = producer.send_soon(Message("orders", b"x"))
    with pytest.raises(OutcomeUnknown, match="still being sent"):
        receipt.result(timeout=0.02)
    with pytest.raises(OutcomeUnknown, match="still being sent"):
        producer.flush(timeout=0.02)
    (request,) = scripted.asked(SEND)
    request.answer(Answer(scripted.store(request)))
    assert receipt.result(timeout=10).offset == 0


def test_closing_with_a_timeout_says_what_is_left(scripted: ScriptedBroker) -> None:
    scripted.hold(SEND)
    producer = Producer(ADDRESS, connect=scripted.connect)
    receipt = producer.send_soon(Message("orders", b"x"))
    with pytest.raises(OutcomeUnknown):
        producer.close(timeout=0.02)
    with pytest.raises(OutcomeUnknown):
        receipt.result()
    producer.close()


def test_nothing_works_after_close(scripted: ScriptedBroker) -> None:
    producer = Producer(ADDRESS, connect=scripted.connect)
    producer.send(Message("orders", b"x"))
    producer.close()
    consumer = PullConsumer(ADDRESS, connect=scripted.connect, topic="orders", group="g")
    consumer.close()
    admin = Admin(ADDRESS, connect=scripted.connect)
    admin.close()
    calls: list[Callable[[], object]] = [
        lambda: producer.send(Message("orders", b"x")),
        lambda: producer.send_soon(Message("orders", b"x")),
        lambda: producer.send_many([Message("orders", b"x")]),
        lambda: producer.send_one_way(Message("orders", b"x")),
        producer.flush,
        consumer.poll,
        consumer.commit,
        lambda: consumer.commit(wait=False),
        consumer.position,
        lambda: consumer.seek(0),
        lambda: consumer.assign([0], topic="orders"),
        admin.list_topics,
    ]
    for call in calls:
        with pytest.raises(Closed, match="closed"):
            call()


@pytest.mark.parametrize("what", ["send", "flush"])
def test_who_comes_just_as_another_thread_closes_wakes_nobody(
    scripted: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """What it would write to is closed, or a file of somebody else's by now."""
    producer = Producer(ADDRESS, connect=scripted.connect)
    producer.send(Message("orders", b"x"))
    driver = producer._driver
    loop_thread, check = driver._loop_thread, driver.check
    assert isinstance(loop_thread, threading.Thread)

    def closed_just_then() -> None:
        check()
        monkeypatch.undo()
        producer.close()
        loop_thread.join()
        driver._asleep_until_s = NEVER  # as after a wake-up that might have been another's

    monkeypatch.setattr(driver, "check", closed_just_then)
    if what == "flush":
        producer.flush()
    else:
        with pytest.raises(Closed):
            producer.send(Message("new", b"x"))


def test_callbacks_may_use_the_producer(producer: Producer) -> None:
    results: list[SendResult] = []

    def again(receipt: Receipt) -> None:
        if len(results) < 3:
            results.append(producer.send(Message("orders", b"again")))
            producer.send_soon(Message("orders", b"more")).add_done_callback(again)

    producer.send_soon(Message("orders", b"first")).add_done_callback(again)
    assert until(lambda: len(results) == 3)


def test_threads_share_a_producer() -> None:
    receipts: dict[bytes, Receipt] = {}
    with EmbeddedBroker() as broker, Producer(broker.address, batch_bytes=20_000) as producer:

        def work(name: int) -> None:
            for number in range(500):
                body = b"%d-%d" % (name, number)
                receipts[body] = producer.send_soon(Message("orders", body, sharding_key=str(name)))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        many = producer.send_many([Message("orders", b"many-%d" % n) for n in range(2000)])
        for thread in threads:
            thread.join()
        producer.flush()
        stored = read_all(broker.address, 4000)
    for body, receipt in receipts.items():
        result = receipt.result()
        assert stored[result.queue][result.offset] == body
    for number, outcome in enumerate(many):
        assert isinstance(outcome, SendResult)
        assert stored[outcome.queue][outcome.offset] == b"many-%d" % number
    for name in range(4):
        prefix = b"%d-" % name
        mine = [body for queue in stored.values() for body in queue if body.startswith(prefix)]
        assert mine == [b"%d-%d" % (name, number) for number in range(500)]


def read_all(address: str, count: int) -> dict[int, list[bytes]]:
    """The bodies by queue, in order."""
    stored: dict[int, list[bytes]] = {}
    with PullConsumer(address, topic="orders") as consumer:
        while sum(map(len, stored.values())) < count:
            messages = consumer.poll(timeout=10)
            assert messages, f"only {sum(map(len, stored.values()))} of {count} came"
            for message in messages:
                stored.setdefault(message.queue, []).append(message.body)
    return stored


class Poller(threading.Thread):
    """A thread in one long poll; `ended` is what came of it."""

    def __init__(self, consumer: PullConsumer) -> None:
        super().__init__()
        self.ended: object = None
        self._consumer = consumer
        consumer.poll(timeout=0)
        self.start()
        # It drives once the fetch is out and the caller is gone.
        time.sleep(0.02)

    def run(self) -> None:
        try:
            self.ended = self._consumer.poll(timeout=20)
        except Closed as error:
            self.ended = error


def test_a_consumer_may_be_used_while_another_thread_polls(scripted: ScriptedBroker) -> None:
    with PullConsumer(ADDRESS, connect=scripted.connect, topic="orders", group="g") as consumer:
        poller = Poller(consumer)
        start_s = time.monotonic()
        consumer.seek(5, queue=1)
        consumer.commit()
        assert consumer.committed()["orders", 1] == 5
        assert time.monotonic() - start_s < 10
        assert poller.is_alive()
    poller.join(10)


def test_what_a_poll_leaves_to_be_sent_goes_without_another_call(scripted: ScriptedBroker) -> None:
    with PullConsumer(ADDRESS, connect=scripted.connect, topic="orders", group="g") as consumer:
        poller = Poller(consumer)
        asked = scripted.asked(Operation.FETCH)
        with Producer(ADDRESS, connect=scripted.connect) as producer:
            producer.send(Message("orders", b"x"))
        answer = scripted.default(asked[-1])
        assert answer is not None
        asked[-1].answer(answer)
        poller.join(10)
        assert isinstance(poller.ended, list) and len(poller.ended) == 1
        assert until(lambda: len(scripted.asked(Operation.FETCH)) > len(asked))
        consumer.commit(wait=False)
        assert until(lambda: bool(scripted.committed))


def test_commits_of_nothing_hold_up_no_commit_of_something(scripted: ScriptedBroker) -> None:
    with PullConsumer(ADDRESS, connect=scripted.connect, topic="orders", group="g") as consumer:
        consumer.seek(1, queue=1)
        consumer.commit()
        consumer.seek(2, queue=1)
        consumer.commit(wait=False)
        until_s = time.monotonic() + 10
        while scripted.committed["g", "orders", 1].offset != 2 and time.monotonic() < until_s:
            consumer.commit(wait=False)
        assert scripted.committed["g", "orders", 1].offset == 2


def test_closing_ends_the_poll_of_another_thread(scripted: ScriptedBroker) -> None:
    consumer = PullConsumer(ADDRESS, connect=scripted.connect, topic="orders")
    poller = Poller(consumer)
    consumer.close()
    poller.join(10)
    assert not poller.is_alive()
    assert isinstance(poller.ended, Closed) and "closed" in str(poller.ended)


def test_what_an_interrupted_poll_took_comes_again(scripted: ScriptedBroker) -> None:
    with (
        Producer(ADDRESS, connect=scripted.connect) as producer,
        PullConsumer(ADDRESS, connect=scripted.connect, topic="orders") as consumer,
    ):
        for number in range(4):
            producer.send(Message("orders", b"%d" % number, sharding_key="one"))
        assert [message.body for message in consumer.poll(1)] == [b"0"]
        driver = consumer._driver
        run = driver.run

        def interrupted(flow: Any, **options: Any) -> Any:
            run(flow, **options)
            raise KeyboardInterrupt  # the messages are in hand, and come to nobody

        driver.run = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(2)
        driver.run = run  # type: ignore[method-assign]
        read: list[bytes] = []
        while len(read) < 3:
            read += [message.body for message in consumer.poll(timeout=10)]
        assert read == [b"1", b"2", b"3"]


def test_ctrl_c_ends_a_wait_and_the_client_lives_on(scripted: ScriptedBroker) -> None:
    with PullConsumer(ADDRESS, connect=scripted.connect, topic="orders") as consumer:
        consumer.poll(timeout=0)
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        start_s = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(timeout=30)
        assert time.monotonic() - start_s < 10
        timer.join()
        assert consumer.poll(timeout=0) == []


def test_a_forked_child_is_told_and_the_parent_goes_on(producer: Producer) -> None:
    receipt = producer.send_soon(Message("orders", b"x"))
    with warnings.catch_warnings():
        # From Python 3.12 on a fork beside threads is warned of; what it does is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        told = 0
        calls: list[Callable[[], object]] = [
            lambda: producer.send(Message("orders", b"x")),
            lambda: producer.send_soon(Message("orders", b"x")),
            lambda: producer.send_many([Message("orders", b"x")]),
            producer.flush,
        ]
        for call in calls:
            try:
                call()
            except Closed as error:
                told += "fork" in str(error)
        producer.close()
        os._exit(0 if told == len(calls) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert receipt.result(timeout=10).offset == 0
    assert producer.send(Message("orders", b"y")).offset == 0


def test_what_is_buffered_is_sent_at_exit() -> None:
    script = (
        "import sys; from cometmq import Message, Producer\n"
        "producer = Producer(sys.argv[1], linger_ms=10_000)\n"
        "for number in range(1000): producer.send_soon(Message('orders', b'%d' % number))\n"
    )
    with EmbeddedBroker(listen="tcp://127.0.0.1:0") as broker:
        command = [sys.executable, "-c", script, broker.address]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        stored = read_all(broker.address, 1000)
    assert sorted(int(body) for queue in stored.values() for body in queue) == [*range(1000)]


def test_what_can_not_be_sent_at_exit_is_reported() -> None:
    script = (
        "import cometmq.client.producer as module; module.EXIT_TIMEOUT_S = 0.2\n"
        "from cometmq import Message, Producer\n"
        "from cometmq.testing.scripted_broker import ScriptedBroker\n"
        "broker = ScriptedBroker(); broker.hold(20)\n"
        "producer = Producer('scripted://x', connect=broker.connect)\n"
        "producer.send_soon(Message('orders', b'x'))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert b"1 batches were not acknowledged" in done.stderr


def test_addresses(monkeypatch: pytest.MonkeyPatch, scripted: ScriptedBroker) -> None:
    monkeypatch.delenv("MQ_CONNECT", raising=False)
    with pytest.raises(ConfigError, match="MQ_CONNECT"):
        Admin()
    with pytest.raises(ConfigError, match=r"amqp://x.*tcp://"):
        Admin("amqp://x")
    with pytest.raises(ConfigError, match=r"localhost:7800.*tcp://"):
        Admin("localhost:7800")
    monkeypatch.setenv("MQ_CONNECT", ADDRESS)
    with Admin(connect=scripted.connect) as admin:
        assert admin.list_topics() == []
