"""The log is the whole broker: without indexes, without its oldest segments, or copied elsewhere,
it answers the same.

Method: an embedded broker on a folder, with small segments, some topics and groups; its whole
answer (topics, bounds, committed offsets, every message) is compared before and after.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from cometmq import Admin, Message, Producer, PullConsumer
from cometmq.errors import Expired
from cometmq.testing import EmbeddedBroker

SETTINGS = {"log.segment_bytes": 1 << 20}
BODY = b"x" * 1000
ROUNDS = 30
PER_ROUND = 200
TOPICS = {"orders": 2, "invoices": 1}


class Answer(NamedTuple):
    """What a broker says of itself."""

    topics: dict[str, tuple[int, int]]
    """Name to (incarnation, queues)."""
    bounds: dict[tuple[str, int], tuple[int, int]]
    """(topic, queue) to (min offset, next offset)."""
    committed: dict[tuple[str, int], int | None]
    bodies: dict[tuple[str, int], list[tuple[int, bytes]]]


def start(folder: Path) -> EmbeddedBroker:
    return EmbeddedBroker(data=str(folder), settings=SETTINGS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with some segments, topics, messages and committed offsets; closed."""
    folder = tmp_path / "data"
    with (
        start(folder) as broker,
        Admin(broker.address) as admin,
        Producer(broker.address) as producer,
    ):
        for topic, queues in TOPICS.items():
            admin.create_topic(topic, queues=queues)
        for number in range(ROUNDS):
            for topic in TOPICS:
                producer.send_many(
                    [Message(topic, b"%d-%d-" % (number, i) + BODY) for i in range(PER_ROUND)]
                )
            with PullConsumer(broker.address, group="billing", topic="orders") as consumer:
                consumer.poll(max_messages=PER_ROUND, timeout=5.0)
                consumer.commit()
    assert len(segments(folder)) > 5
    return folder


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "log").glob("*.seg"))


def ask(broker: EmbeddedBroker) -> Answer:
    """Everything, over the public API."""
    answer = Answer({}, {}, {}, {})
    topics, bounds, committed, bodies = answer
    with Admin(broker.address) as admin:
        for info in admin.list_topics():
            topics[info.topic] = (info.incarnation, info.queues)
            for its in admin.describe_topic(info.topic).queues:
                bounds[info.topic, its.queue] = (its.min_offset, its.next_offset)
    for topic, (_, queues) in topics.items():
        with PullConsumer(broker.address, group="billing", topic=topic) as consumer:
            committed.update(consumer.committed())
        for queue in range(queues):
            bodies[topic, queue] = read_all(broker, topic, queue, bounds[topic, queue])
    return answer


def read_all(
    broker: EmbeddedBroker, topic: str, queue: int, bounds: tuple[int, int]
) -> list[tuple[int, bytes]]:
    low, high = bounds
    found: list[tuple[int, bytes]] = []
    with PullConsumer(broker.address, topic=topic, queues=[queue], start=low) as consumer:
        while len(found) < high - low:
            messages = consumer.poll(max_messages=1000, timeout=5.0)
            assert messages, f"{topic} {queue} ends at {len(found)} of {high - low}"
            found += [(message.offset, message.body) for message in messages]
    return found


def test_without_any_index_file(folder: Path) -> None:
    with start(folder) as broker:
        before = ask(broker)
    indexes = list((folder / "log").glob("*.queue"))
    assert indexes
    for index in indexes:
        index.unlink()
    with start(folder) as broker:
        assert ask(broker) == before


def test_without_the_oldest_segments(folder: Path) -> None:
    """Trimmed as the broker does it; what is left must not have moved."""
    with start(folder) as broker:
        before = ask(broker)
        middle = int(segments(folder)[len(segments(folder)) // 2].stem)
        broker.await_(lambda: broker.broker.log.trim(middle))
        count = len(segments(folder))
    with start(folder) as broker:
        after = ask(broker)
    assert count < ROUNDS and int(segments(folder)[0].stem) > 0
    check_suffix(before, after)


def test_copied_from_a_segment_on(folder: Path, tmp_path: Path) -> None:
    """A backup is "the segments from here on": it knows all topics and offsets, serves what its
    segments hold, and says what is missing below."""
    with start(folder) as broker:
        before = ask(broker)
    copy = tmp_path / "copy"
    (copy / "log").mkdir(parents=True)
    kept = segments(folder)[3:]
    for segment in kept:
        shutil.copy(segment, copy / "log")
    with start(copy) as broker:
        after = ask(broker)
        report = broker.broker.report
        assert report.missing_below == int(kept[0].stem)
        assert any("missing" in line for line in broker.call(broker.broker.banner))
        with (
            pytest.raises(Expired),
            PullConsumer(broker.address, topic="orders", queues=[0], start=0) as consumer,
        ):
            consumer.poll(timeout=5.0)
    check_suffix(before, after)


def check_suffix(before: Answer, after: Answer) -> None:
    """Topics, next offsets and committed offsets are the same; messages are those from the new
    min offset on."""
    assert after.topics == before.topics
    assert after.committed == before.committed
    assert any(low > 0 for low, _ in after.bounds.values())
    for place, (low, high) in after.bounds.items():
        assert high == before.bounds[place][1]
        assert after.bodies[place] == before.bodies[place][low - before.bounds[place][0] :]
