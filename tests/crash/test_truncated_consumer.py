"""A consumer that reads across a power cut learns that the log was cut, and misses nothing.

Method: a broker with `flush-async` on a disk whose syncs are held back, so what the consumer reads
is in the page cache only; the next broker starts on what a power cut leaves.
"""

from __future__ import annotations

import pytest

from cometmq import Admin, Message, Producer, PullConsumer
from cometmq.errors import Truncated
from cometmq.interfaces import Level
from cometmq.real_environment import RealEnvironment
from cometmq.testing import EmbeddedBroker, FaultyFiles

ADDRESS = "inproc://power-cut"
KEPT, LOST, NEW = 10, 90, 200


def broker_on(files: FaultyFiles) -> EmbeddedBroker:
    environment = RealEnvironment()
    environment.files = files
    return EmbeddedBroker(
        data="/mq-data", listen=ADDRESS, plugins=["flush-async"], environment=environment
    )


def send(prefix: str, count: int, level: Level) -> None:
    messages = [Message("t", f"{prefix}-{number}".encode()) for number in range(count)]
    with Producer(ADDRESS) as producer:
        for outcome in producer.send_many(messages, level):
            assert not isinstance(outcome, Exception), outcome


def take(consumer: PullConsumer, count: int) -> list[tuple[int, bytes]]:
    taken: list[tuple[int, bytes]] = []
    while len(taken) < count:
        messages = consumer.poll(timeout=10.0)
        assert messages, f"{len(taken)} of {count}"
        taken += [(message.offset, message.body) for message in messages]
    return taken


def test_truncated_and_no_gap() -> None:
    files = FaultyFiles()
    with PullConsumer(ADDRESS, group="g", topic="t", timeout=30) as consumer:
        with broker_on(files) as broker:
            with Admin(ADDRESS) as admin:
                admin.create_topic("t", queues=1)
            send("kept", KEPT, "disk")
            broker.call(files.hold_syncs)
            send("lost", LOST, "memory")
            assert len(take(consumer, KEPT + LOST)) == KEPT + LOST
            left = broker.call(files.crash)
            broker.call(files.release_syncs)
        with broker_on(left):
            send("new", NEW, "memory")
            with pytest.raises(Truncated) as cut:
                take(consumer, 1)
            assert cut.value.next_offset == KEPT
            expected = [(KEPT + n, b"new-%d" % n) for n in range(NEW)]
            assert take(consumer, NEW) == expected
