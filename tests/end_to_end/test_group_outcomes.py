"""What docs/groups.md says comes of this or that, against a broker process."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from cometmq import Admin, Consumer, Message, Producer, ReceivedMessage, Refused
from cometmq.protocol import GroupReset, GroupResetReply, Operation
from cometmq.testing.process import BrokerProcess
from cometmq.testing.waiting import until

QUICK = {"session_timeout": 1.0, "heartbeat": 0.25, "commit_interval": 0.1}


def member(broker: BrokerProcess, group: str = "g", **options: float) -> Consumer:
    return Consumer(broker.address, group=group, **{**QUICK, **options})  # type: ignore[arg-type]


def send(broker: BrokerProcess, *bodies: bytes, topic: str = "orders", tag: str = "") -> None:
    with Producer(broker.address) as producer:
        for body in bodies:
            producer.send(Message(topic, body, tag=tag, sharding_key="one"))


def create(broker: BrokerProcess, topic: str = "orders", queues: int = 2) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(topic, queues=queues)


def test_the_queue_of_a_handler_that_hangs_goes_to_another_member(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    create(broker)
    send(broker, b"hang", b"next")
    released = threading.Event()
    seen: list[bytes] = []
    with member(broker, max_poll=0.5) as first, member(broker) as second:
        first.subscribe("orders", handler=lambda message: released.wait(60), workers=2)
        first.start()
        assert until(lambda: len(first.queues) == 2)
        second.subscribe("orders", handler=lambda message: seen.append(message.body))
        second.start()
        assert until(lambda: set(seen) == {b"hang", b"next"})
        assert "the handler is at offset 0 of queue" in caplog.text
        released.set()
        assert until(lambda: len(first.queues) == 1)


def test_a_handler_that_raises_gets_the_message_again(broker: BrokerProcess) -> None:
    create(broker)
    send(broker, b"a", b"b", b"c")
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if seen.count(message.body) < 3 and message.body == b"b":
            raise ValueError("not now")

    with member(broker) as consumer:
        consumer.subscribe("orders", handler=handle, orderly=True)
        consumer.start()
        assert until(lambda: seen == [b"a", b"b", b"b", b"b", b"c"])


def test_a_topic_that_is_made_later_is_read_from_its_beginning(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []
    with member(broker) as consumer:
        consumer.subscribe("later", handler=lambda message: seen.append(message.body))
        consumer.start()
        assert until(lambda: "later is not there" in caplog.text.replace("'", ""))
        create(broker, "later")
        send(broker, b"a", topic="later")
        assert until(lambda: seen == [b"a"])


def test_a_topic_that_is_made_again_is_read_from_its_beginning(broker: BrokerProcess) -> None:
    create(broker)
    send(broker, b"old")
    seen: list[bytes] = []
    with member(broker) as consumer:
        consumer.subscribe("orders", handler=lambda message: seen.append(message.body))
        consumer.start()
        assert until(lambda: seen == [b"old"])
        with Admin(broker.address) as admin:
            admin.delete_topic("orders")
        create(broker)
        send(broker, b"new")
        assert until(lambda: seen == [b"old", b"new"])


def test_the_newest_subscription_counts_and_both_are_named(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    create(broker)
    seen: list[bytes] = []
    with member(broker) as old, member(broker) as new:
        old.subscribe("orders", tags="red", handler=lambda message: seen.append(message.body))
        old.start()
        assert until(lambda: len(old.queues) == 2)
        time.sleep(0.01)  # the version of a subscription counts milliseconds
        new.subscribe("orders", tags="blue", handler=lambda message: seen.append(message.body))
        new.start()
        assert until(lambda: len(new.queues) == 1 and len(old.queues) == 1)
        assert until(lambda: old.member in caplog.text and new.member in caplog.text)
        for number in range(8):
            with Producer(broker.address) as producer:
                for tag in ("red", "blue"):
                    body = f"{tag}{number}".encode()
                    producer.send(Message("orders", body, tag=tag, sharding_key=str(number)))
        assert until(lambda: len(seen) >= 8)
        assert set(seen) == {b"blue%d" % number for number in range(8)}


def test_a_strict_member_does_not_join_others(broker: BrokerProcess) -> None:
    create(broker)
    with (
        member(broker) as first,
        Consumer(broker.address, group="g", strict=True) as strict,
    ):
        first.subscribe("orders", tags="red", handler=lambda message: None)
        first.start()
        assert until(lambda: len(first.queues) == 2)
        strict.subscribe("orders", tags="blue", handler=lambda message: None)
        with pytest.raises(Refused, match=r"red.*blue|blue.*red"):
            strict.run()


def test_a_reset_by_force_is_not_undone_by_who_was_reading(broker: BrokerProcess) -> None:
    create(broker)
    send(broker, *(b"%d" % number for number in range(20)))
    gate, entered = threading.Event(), threading.Event()
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) == 15:
            entered.set()
            gate.wait(60)

    with member(broker) as consumer, Admin(broker.address) as admin:
        consumer.subscribe("orders", handler=handle, orderly=True)
        consumer.start()
        assert entered.wait(40)
        reset = GroupReset("g", to="earliest", force=True)
        admin.call(Operation.GROUP_RESET, reset, GroupResetReply)
        gate.set()
        assert until(lambda: min(Counter(seen).get(b"%d" % n, 0) for n in range(20)) >= 1)
        assert until(lambda: Counter(seen)[b"0"] == 2)
        assert until(lambda: sum(v or 0 for v in admin.committed("g", "orders").values()) == 20)
    assert Counter(seen)[b"14"] == 2


def test_what_was_not_acknowledged_comes_to_the_next_member(
    broker: BrokerProcess,
) -> None:
    create(broker)
    send(broker, b"a", b"b")
    with member(broker) as first:
        first.subscribe("orders")
        message = first.receive(timeout=40)
        assert message is not None and message.body == b"a"
        message.ack()
    with member(broker) as second:
        second.subscribe("orders")
        message = second.receive(timeout=40)
        assert message is not None and message.body == b"b"
