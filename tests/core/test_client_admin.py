"""The admin client before a real broker in process."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from cometmq import Admin, Message, Producer, PullConsumer, Refused
from cometmq.testing import EmbeddedBroker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


def test_topics_are_made_changed_listed_and_deleted(broker: EmbeddedBroker) -> None:
    with Admin(broker.address) as admin:
        assert admin.create_topic("orders", queues=3).info.queues == 3
        admin.create_topic("other", writable=False)
        assert [info.topic for info in admin.list_topics()] == ["orders", "other"]
        assert [info.topic for info in admin.list_topics("oth")] == ["other"]
        altered = admin.alter_topic("orders", queues=5, readable=False).info
        assert (altered.queues, altered.readable, altered.writable) == (5, False, True)
        assert len(admin.describe_topic("orders").queues) == 5
        admin.delete_topic("orders")
        assert [info.topic for info in admin.list_topics()] == ["other"]


def test_refusals_name_their_reason(broker: EmbeddedBroker) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("orders")
        with pytest.raises(Refused) as exists:
            admin.create_topic("orders")
        with pytest.raises(Refused) as missing:
            admin.describe_topic("missing")
        with pytest.raises(Refused) as bad:
            admin.create_topic("no spaces")
    codes = [caught.value.code for caught in (exists, missing, bad)]
    assert codes == ["TOPIC_EXISTS", "TOPIC_NOT_FOUND", "BAD_NAME"]


def test_offsets_of_a_group_are_shown_and_reset(broker: EmbeddedBroker) -> None:
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic("orders", queues=2)
        producer.send_many([Message("orders", b"x", sharding_key="a")] * 10)
        (full,) = (queue for queue, part in admin.offsets("orders").items() if part.max_offset)
        empty = 1 - full
        assert admin.committed("billing", "orders") == {0: None, 1: None}
        with PullConsumer(broker.address, group="billing", topic="orders") as consumer:
            assert len(consumer.poll(max_messages=4, timeout=10)) == 4
            consumer.commit()
        assert admin.committed("billing", "orders") == {full: 4, empty: None}
        assert admin.reset_offsets("billing", "orders", "latest") == {full: 10, empty: 0}
        assert admin.reset_offsets("billing", "orders", 7, queue=full) == {full: 7}
        past = datetime(2000, 1, 1, tzinfo=UTC)
        assert admin.reset_offsets("billing", "orders", past, queue=empty) == {empty: 0}
        assert admin.committed("billing", "orders") == {full: 7, empty: 0}
        with pytest.raises(Refused, match="0 to 1, not 2"):
            admin.reset_offsets("billing", "orders", "latest", queue=2)


def test_broker_info(broker: EmbeddedBroker) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("orders")
        info = admin.broker_info()
    assert (info.topics, info.sessions) == (1, 1) and info.positions["readable"] > 0
