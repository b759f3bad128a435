"""Programs that use the client in ways nobody thought of: an error with a name, and no harm."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import cometmq.aio
from cometmq import Admin, Message, Producer, PullConsumer
from cometmq.batch import encode_messages
from cometmq.batch.layout import SEALED_AT, seal
from cometmq.client.batching import SendResult
from cometmq.errors import Closed, ConfigError, Fenced, OutcomeUnknown, Refused, Unreadable
from cometmq.message import UnreadableMessage
from cometmq.testing import EmbeddedBroker
from cometmq.testing.scripted_broker import ScriptedBroker


def read_all(broker: EmbeddedBroker, topic: str, count: int) -> list[Any]:
    """The first messages of a topic."""
    found: list[Any] = []
    with PullConsumer(broker.address, topic=topic) as consumer:
        while len(found) < count:
            polled = consumer.poll(timeout=10)
            assert polled, f"only {len(found)} of {count} came"
            found += polled
    return found


def test_a_message_is_what_it_was_when_it_was_sent(mq_broker: EmbeddedBroker) -> None:
    keys = ["0"]
    properties = {"n": "0"}
    with Producer(mq_broker.address, linger_ms=1000) as producer:
        for number in range(200):
            keys[0] = properties["n"] = str(number)
            producer.send_soon(Message("t", b"%d" % number, keys=keys, properties=properties))
        many = []
        for number in range(200, 400):
            keys[0] = properties["n"] = str(number)
            many.append(Message("t", b"%d" % number, keys=list(keys), properties=dict(properties)))
        producer.send_many(many)
    for message in read_all(mq_broker, "t", 400):
        text = message.body.decode()
        assert (message.keys, message.properties) == ((text,), {"n": text})


BAD_FIELDS: list[dict[str, Any]] = [
    {"sharding_key": 42},
    {"sharding_key": "\ud800"},
    {"sharding_key": b"bytes"},
    {"keys": 5},
    {"keys": "text"},
    {"keys": [None]},
    {"tag": 7},
    {"tag": "a || b"},
    {"tag": "*"},
    {"properties": [("a", "b")]},
    {"properties": {"a": 1}},
    {"properties": {b"a": "1"}},
]


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=str)
def test_a_field_of_another_type_is_refused_in_its_place(
    mq_broker: EmbeddedBroker, fields: dict[str, Any]
) -> None:
    with Producer(mq_broker.address) as producer:
        bad = Message("t", b"bad", **fields)
        good = Message("t", b"good")
        first, second, third = producer.send_many([good, bad, good])
        assert isinstance(first, SendResult) and isinstance(third, SendResult)
        assert isinstance(second, Refused)
        for send in (producer.send, producer.send_soon, producer.send_one_way):
            with pytest.raises(Refused):
                send(bad)
        assert producer.send(good).offset >= 0


def test_messages_that_end_in_the_middle_do_not_cost_the_buffer(mq_broker: EmbeddedBroker) -> None:
    class Broken(list[Message]):
        def __iter__(self) -> Iterator[Message]:
            yield Message("t", bytes(30_000))
            raise KeyError("the list's own mistake")

    with Producer(mq_broker.address, buffer_bytes=100_000, when_full="raise") as producer:
        for _ in range(10):
            with pytest.raises(KeyError):
                producer.send_many(Broken())
        assert producer.send(Message("t", bytes(60_000))).offset >= 0


def test_a_cancelled_send_many_does_not_cost_the_buffer() -> None:
    scripted = ScriptedBroker()

    async def scenario() -> None:
        async with cometmq.aio.Producer(
            "scripted://x", connect=scripted.connect, buffer_bytes=200_000
        ) as producer:
            await producer.send(Message("t", b"known"))
            scripted.full = True
            flood = [Message("t", bytes(40_000)) for _ in range(30)]
            task = asyncio.create_task(producer.send_many(flood))
            await asyncio.sleep(0.05)
            assert not task.done(), "it waits for room"
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            scripted.full = False
            await producer.flush(5)
            assert producer._accumulator.room.used_bytes == 0

    asyncio.run(scenario())


def test_sizes_that_would_read_nothing_for_ever_are_refused() -> None:
    for options in ({"fetch_bytes": 0}, {"read_ahead_bytes": 0}, {"fetch_wait": -1.0}):
        with pytest.raises(ConfigError):
            PullConsumer("inproc://nobody", topic="t", **options)


def test_a_topic_made_again_under_a_consumer_is_read_after_a_seek_or_an_assign(
    mq_broker: EmbeddedBroker,
) -> None:
    with (
        Producer(mq_broker.address) as producer,
        PullConsumer(mq_broker.address, group="g", topic="t") as seeking,
        PullConsumer(mq_broker.address, group="h", topic="t") as assigning,
        Admin(mq_broker.address) as admin,
    ):
        admin.create_topic("t", queues=1)
        producer.send_many([Message("t", b"old")] * 5)
        for consumer in (seeking, assigning):
            assert len(consumer.poll(timeout=10)) == 5
            consumer.commit()
        admin.delete_topic("t")
        for consumer in (seeking, assigning):
            with pytest.raises(Refused) as gone:
                consumer.poll(timeout=10)
            assert gone.value.code in ("TOPIC_GONE", "TOPIC_NOT_FOUND")
        with pytest.raises(Refused):
            seeking.seek(0)  # there is no new life yet
        admin.create_topic("t", queues=1)
        with pytest.raises(Refused):
            producer.send(Message("t", b"for the old one"))
        assert producer.send(Message("t", b"new")).offset == 0
        seeking.seek(0)
        assigning.assign(topic="t")
        for consumer in (seeking, assigning):
            (message,) = consumer.poll(timeout=10)
            assert (message.body, message.offset) == (b"new", 0)
            consumer.commit()
            assert consumer.committed() == {("t", 0): 1}


def put_poisoned(scripted: ScriptedBroker, codec: int) -> None:
    """A batch that says it is compressed and is not, under a good CRC, and one behind it."""
    compressed = encode_messages("t", 0, [(0, b"x", "", (), {})] * 3)
    compressed[SEALED_AT] |= codec
    seal(compressed)
    scripted.put("t", 0, compressed)
    scripted.put("t", 0, encode_messages("t", 0, [(0, b"after", "", (), {})]))


@pytest.mark.parametrize(("codec", "name"), [(1, "zstd"), (2, "lz4")])
def test_a_batch_that_can_not_be_decompressed_does_not_jam_its_queue(codec: int, name: str) -> None:
    scripted = ScriptedBroker(queues=1)
    put_poisoned(scripted, codec)
    seen: list[UnreadableMessage] = []
    with PullConsumer(
        "scripted://x", topic="t", connect=scripted.connect, unreadable=seen.append
    ) as consumer:
        (message,) = consumer.poll(timeout=10)
        assert (message.body, message.offset) == (b"after", 3)
    assert [(message.topic, message.queue, message.offset) for message in seen] == [
        ("t", 0, offset) for offset in range(3)
    ]
    assert f"no {name}" in seen[0].reason


def test_who_wants_to_hear_of_it_is_told_where_it_lies() -> None:
    scripted = ScriptedBroker(queues=1)
    put_poisoned(scripted, 2)
    with PullConsumer(
        "scripted://x", topic="t", connect=scripted.connect, unreadable="raise"
    ) as consumer:
        with pytest.raises(Unreadable, match="offset 0 of queue 0 of t.* no lz4") as error:
            consumer.poll(timeout=10)
        assert (error.value.topic, error.value.queue, error.value.next_offset) == ("t", 0, 1)
        consumer.seek(3)
        assert [message.body for message in consumer.poll(timeout=10)] == [b"after"]


async def _send(producer: cometmq.aio.Producer) -> int:
    return (await producer.send(Message("t", b"x"))).offset


def test_a_client_of_an_event_loop_that_has_ended_says_so_instead_of_hanging(
    mq_broker: EmbeddedBroker,
) -> None:
    producer = cometmq.aio.Producer(mq_broker.address)
    assert asyncio.run(_send(producer)) == 0
    for _ in range(2):
        with pytest.raises(Closed, match="another event loop"):
            asyncio.run(_send(producer))
    asyncio.run(producer.close())
    with pytest.raises(Closed, match="is closed"):
        asyncio.run(_send(producer))


def test_what_an_aio_producer_could_not_send_is_reported_at_exit() -> None:
    program = """
import asyncio
import subprocess
import sys
from cometmq import Message
from cometmq.aio import Producer
from cometmq.testing.scripted_broker import ScriptedBroker

broker = ScriptedBroker()

async def main():
    producer = Producer("scripted://x", connect=broker.connect)
    await producer.send(Message("t", b"known"))
    broker.full = True
    for _ in range(5):
        await producer.send_soon(Message("t", b"left"))

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "5 messages were not acknowledged" in done.stderr


@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:0"])
def test_of_two_clients_with_one_id_the_older_is_told_and_does_not_fight(
    listen: str | None,
) -> None:
    with (
        EmbeddedBroker(listen=listen) as broker,
        Producer(broker.address, client_id="twin") as older,
    ):
        assert older.send(Message("t", b"1")).offset == 0
        with Producer(broker.address, client_id="twin") as newer:
            for number in range(5):
                newer.send(Message("t", b"2"))
                with pytest.raises((Fenced, OutcomeUnknown)):
                    older.send(Message("t", b"%d" % number))
            with pytest.raises(Fenced, match="newer connection"):
                older.send(Message("t", b"3"))
        # One that is made after the end of the other takes over at once.
        with Producer(broker.address, client_id="twin") as newest:
            newest.send(Message("t", b"4"))
