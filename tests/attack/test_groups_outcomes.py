"""What a user of a group may run into, with a real broker and real consumers: each has the outcome
that the page on consumer groups gives it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cometmq import Admin, Consumer, Message, Producer, PullConsumer, ReceivedMessage
from cometmq.errors import Refused
from cometmq.testing.embedded import EmbeddedBroker
from cometmq.testing.waiting import until

SESSION: dict[str, Any] = {"session_timeout": 8.0, "heartbeat": 0.25, "commit_interval": 0.1}
SHORT: dict[str, Any] = {**SESSION, "session_timeout": 1.0}
TIMEOUT_S = 40.0


class Member:
    """A consumer and what it was given."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.seen: list[bytes] = []

    def handle(self, message: ReceivedMessage) -> None:
        self.seen.append(message.body)


@contextmanager
def running(broker: EmbeddedBroker, tags: str = "*", **options: Any) -> Iterator[Member]:
    """A member of the group `g` that reads `t`."""
    with Consumer(broker.address, group="g", **{**SESSION, **options}) as consumer:
        member = Member(consumer)
        consumer.subscribe("t", tags=tags, handler=member.handle)
        consumer.start()
        yield member


def send(broker: EmbeddedBroker, *bodies: bytes, tag: str = "") -> None:
    with Producer(broker.address) as producer:
        producer.send_many([Message("t", body, tag=tag, sharding_key="k") for body in bodies])


def create(broker: EmbeddedBroker, queues: int = 2) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("t", queues=queues)


def committed(broker: EmbeddedBroker) -> int:
    with Admin(broker.address) as admin:
        return sum(offset or 0 for offset in admin.committed("g", "t").values())


def test_a_reset_during_consumption_wins_over_what_is_in_hand(mq_broker: EmbeddedBroker) -> None:
    create(mq_broker)
    go_on, entered = threading.Event(), threading.Event()
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        if message.body == b"3" and not go_on.is_set():
            entered.set()
            go_on.wait(TIMEOUT_S)
        seen.append(message.body)

    with (
        Consumer(mq_broker.address, group="g", **SESSION) as consumer,
        Admin(mq_broker.address) as admin,
    ):
        consumer.subscribe("t", handler=handle, workers=1)
        consumer.start()
        send(mq_broker, *(b"%d" % number for number in range(5)))
        assert entered.wait(TIMEOUT_S)
        with pytest.raises(Refused, match="active member"):
            admin.reset_group("g", topic="t", to="earliest")
        admin.reset_group("g", topic="t", to="earliest", force=True)
        # Until the member has heard of it and claims anew, it may still go on where it was.
        assert until(lambda: all(queue.owner for queue in admin.describe_group("g").queues))
        go_on.set()
        assert until(lambda: seen.count(b"4") and seen.count(b"0") == 2)
        assert until(lambda: committed(mq_broker) == 5)
        assert seen[:4] == [b"0", b"1", b"2", b"3"]
        assert seen[4:] == [b"0", b"1", b"2", b"3", b"4"], "nothing behind it before it began anew"


def test_a_topic_that_is_not_there_is_a_warning_and_read_once_it_is(
    mq_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with running(mq_broker) as member:
        assert until(lambda: "nothing comes from it until it is created" in caplog.text)
        assert member.consumer.queues == []
        create(mq_broker)
        send(mq_broker, b"first")
        assert until(lambda: member.seen == [b"first"])


def test_members_with_other_tags_are_warned_and_the_newest_counts(
    mq_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    create(mq_broker, queues=8)
    with running(mq_broker, "old") as old:
        assert until(lambda: len(old.consumer.queues) == 8)
        time.sleep(0.002)  # the version of a subscription is its time, in ms
        with running(mq_broker, "new") as new:
            assert until(lambda: len(old.consumer.queues) == len(new.consumer.queues) == 4)
            assert until(lambda: "subscribe different things" in caplog.text)
            assert old.consumer.member in caplog.text
            assert new.consumer.member in caplog.text
            with Producer(mq_broker.address) as producer:
                producer.send_many(
                    [
                        Message("t", b"%d" % number, tag=tag, sharding_key=str(number))
                        for number in range(80)
                        for tag in ("old", "new")
                    ]
                )
            assert until(lambda: len(old.seen) + len(new.seen) >= 80)
            assert sorted(old.seen + new.seen) == sorted(b"%d" % number for number in range(80))
            assert old.seen and new.seen


def test_a_strict_member_refuses_others_by_name(mq_broker: EmbeddedBroker) -> None:
    create(mq_broker)
    with running(mq_broker, "one", strict=True) as first:
        assert until(lambda: len(first.consumer.queues) == 2)
        with Consumer(mq_broker.address, group="g", **SESSION) as second:
            second.subscribe("t", tags="two", handler=lambda message: None)
            with pytest.raises(Refused, match="subscribe different things"):
                second.run()


def test_a_handler_that_hangs_loses_its_queue_to_another_member(mq_broker: EmbeddedBroker) -> None:
    create(mq_broker, queues=1)
    release = threading.Event()
    with Consumer(mq_broker.address, group="g", max_poll=0.5, **SHORT) as hangs:
        hangs.subscribe("t", handler=lambda message: release.wait(TIMEOUT_S))
        hangs.start()
        send(mq_broker, b"a", b"b")
        with running(mq_broker, **SHORT) as other:
            assert until(lambda: other.seen == [b"a", b"b"])
            assert hangs.queues == []
        release.set()
        assert until(lambda: hangs.queues == [("t", 0)]), "it is itself again"
        assert committed(mq_broker) == 2


def test_a_handler_that_always_fails_holds_up_its_own_queue_only(
    mq_broker: EmbeddedBroker,
) -> None:
    create(mq_broker)
    tries: list[int] = []
    seen: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        if message.queue == 0:
            tries.append(message.offset)
            raise ValueError("poison")
        seen.append(message.offset)

    with Producer(mq_broker.address) as producer:
        bodies = [Message("t", bytes(1000), sharding_key=str(n % 20)) for n in range(2000)]
        producer.send_many(bodies)
    with Admin(mq_broker.address) as admin:
        ends = {queue: part.max_offset for queue, part in admin.offsets("t").items()}
    limits: dict[str, Any] = {"prefetch_bytes": 100_000, "fetch_bytes": 50_000}
    with Consumer(mq_broker.address, group="g", **SESSION, **limits) as consumer:
        workers = 4
        consumer.subscribe("t", handler=handle, workers=workers)
        consumer.start()
        assert until(lambda: len(seen) == ends[1])
        # Other workers may have begun with the next ones before the first failure was known.
        assert 0 in tries and len(set(tries)) <= workers
    assert sorted(seen) == [*range(ends[1])]


def test_nobody_commits_past_a_member(mq_broker: EmbeddedBroker) -> None:
    create(mq_broker, queues=1)
    with running(mq_broker) as member:
        send(mq_broker, b"a")
        assert until(lambda: committed(mq_broker) == 1)
        with PullConsumer(mq_broker.address, topic="t", group="g") as intruder:
            intruder.seek(0, 0)
            assert intruder.poll(timeout=TIMEOUT_S)
            intruder.seek(0, 0)
            with pytest.raises(Refused, match=f"claimed by member '{member.consumer.member}'"):
                intruder.commit()
        assert committed(mq_broker) == 1
