"""Compression as producers and consumers have it, before scripted brokers and real ones."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cometmq import Consumer, Message, Producer, PullConsumer, ReceivedMessage, aio
from cometmq.batch import Batch, amend, decode_records, encode_messages, parse, renumber
from cometmq.batch.compression import compress
from cometmq.cli import cli
from cometmq.client.codecs import codec_for, make_codec, maker_of
from cometmq.client.producer_options import ProducerOptions
from cometmq.client.producing import Accumulator
from cometmq.errors import CometError, ConfigError, Unreadable
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Replace, SessionInfo
from cometmq.plugins import Plugin
from cometmq.protocol import Status
from cometmq.testing import EmbeddedBroker
from cometmq.testing.client_rig import ClientRig
from cometmq.testing.raw_client import batch_of, running_broker
from cometmq.testing.scripted_broker import ScriptedBroker

NAMES = ("zstd", "lz4")
each_codec = pytest.mark.parametrize("name", NAMES)
NUMBERS: dict[str | None, int] = {None: 0, "zstd": 1, "lz4": 2}


def body(number: int) -> bytes:
    return json.dumps({"order": number, "state": "paid", "city": "Ulm", "items": [1] * 30}).encode()


def packed(name: str, *bodies: bytes, queue: int = 0) -> bytearray:
    """A compressed batch for topic `t`."""
    found = compress(batch_of("t", queue, *bodies), name, make_codec(name))
    assert parse(found).codec == NUMBERS[name]
    return found


def read(address: str, topic: str, count: int, **fields: Any) -> list[ReceivedMessage]:
    """The first messages of a topic."""
    found: list[ReceivedMessage] = []
    with PullConsumer(address, topic=topic, **fields) as consumer:
        while len(found) < count:
            polled = consumer.poll(timeout=10)
            assert polled, f"only {len(found)} of {count} came"
            found += polled
    return found


class ProducerRig(ClientRig):
    """The producer's inside."""

    def __init__(self, **options: Any) -> None:
        super().__init__(queues=1)
        self.producer = Accumulator(self.engine, ProducerOptions(**options), self, nullcontext())

    def stored(self) -> list[Batch]:
        return [parse(bytes(each)) for each in self.broker.stored[("t", 0)]]


# --- what is sent -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [None, *NAMES])
def test_batches_of_every_kind_of_send_are_compressed(name: str | None) -> None:
    rig = ProducerRig(compression=name)
    rig.run(rig.producer.append(Message("t", body(0)), None))
    rig.run(rig.producer.send_many([Message("t", body(number)) for number in range(20)], None))
    rig.run(rig.producer.send_one_way(Message("t", body(0))))
    rig.step()
    batches = rig.stored()
    assert [batch.count for batch in batches] == [1, 20, 1]
    assert {batch.codec for batch in batches} == {NUMBERS[name]}


@each_codec
def test_what_is_random_goes_as_it_is(name: str) -> None:
    rig = ProducerRig(compression=name)
    noise = rig.environment.random.bytes(2_000)
    rig.run(rig.producer.append(Message("t", noise), None))
    rig.step()
    assert [batch.codec for batch in rig.stored()] == [0]


@pytest.mark.parametrize(
    ("compression", "level", "reason"),
    [
        ("gzip", None, "'gzip': choose 'zstd' or 'lz4'"),
        ("none", None, "'none': choose 'zstd' or 'lz4'"),
        ("", None, "'': choose"),
        (None, 3, "compression_level=3 without a compression"),
        ("zstd", 23, "compression_level=23: zstd has -131072 to 22, 3 by default"),
        ("zstd", -131073, "compression_level=-131073: zstd has"),
        ("zstd", "9", "compression_level='9': a whole number"),
        ("zstd", True, "compression_level=True: a whole number"),
        ("lz4", -1, "compression_level=-1: lz4 has 0"),
        ("lz4", 13, r"compression_level=13: lz4 has 0 \(fast, the default\) to 12"),
    ],
)
def test_what_can_not_be_is_refused_at_once(compression: Any, level: Any, reason: str) -> None:
    scripted = ScriptedBroker()
    for face in (Producer, aio.Producer):
        with pytest.raises(ConfigError, match=reason):
            face(
                "scripted://x",
                compression=compression,
                compression_level=level,
                connect=scripted.connect,
            )
    assert scripted.channels == []


def test_a_producer_that_was_refused_leaves_nothing_to_do_at_exit() -> None:
    code = (
        "from cometmq import Producer, ConfigError\n"
        "try: Producer('inproc://x', compression='gzip')\n"
        "except ConfigError: print('refused')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "refused\n", "")


@pytest.mark.parametrize(
    ("name", "level"), [("zstd", -131072), ("zstd", 22), ("lz4", 0), ("lz4", 12)]
)
def test_the_outermost_levels_work(name: str, level: int) -> None:
    codec = make_codec(name, level)
    data = body(1) * 100
    assert codec.decompress(codec.compress(data), len(data)) == data


# --- there and back ---------------------------------------------------------------------------


def test_a_mixed_topic_reads_as_one(mq_broker: EmbeddedBroker, tmp_path: Path) -> None:
    count = 0
    for name in (*NAMES, None, *NAMES):
        with Producer(mq_broker.address, compression=name) as producer:
            messages = [Message("t", body(count + at), sharding_key="k") for at in range(50)]
            results = producer.send_many(messages)
            assert [type(result).__name__ for result in results] == ["SendResult"] * 50
            count += 50
    assert [message.body for message in read(mq_broker.address, "t", count)] == [
        body(number) for number in range(count)
    ]


@each_codec
def test_an_event_loop_does_the_same(name: str, mq_broker: EmbeddedBroker) -> None:
    async def run() -> list[bytes]:
        async with aio.Producer(mq_broker.address, compression=name) as producer:
            await producer.send_many([Message("t", body(at), sharding_key="k") for at in range(50)])
        async with aio.PullConsumer(mq_broker.address, topic="t") as consumer:
            found: list[bytes] = []
            while len(found) < 50:
                found += [message.body for message in await consumer.poll(timeout=10)]
            return found

    assert asyncio.run(run()) == [body(number) for number in range(50)]


@each_codec
def test_it_is_all_there_after_a_restart_and_from_any_offset(name: str, tmp_path: Path) -> None:
    with EmbeddedBroker(data=str(tmp_path / "data")) as broker:
        with Producer(broker.address, compression=name) as producer:
            producer.send_many([Message("t", body(at), sharding_key="k") for at in range(60)])
        broker.restart()
        (queue,) = {message.queue for message in read(broker.address, "t", 60)}
        found = read(broker.address, "t", 23, queues=[queue], start=37)
    assert [(message.offset, message.body) for message in found] == [
        (number, body(number)) for number in range(37, 60)
    ]
    listed = CliRunner().invoke(cli, ["log", "inspect", str(tmp_path / "data"), "--batches"])
    assert re.search(rf"offsets 0 to 59  {name} of \d+ B", listed.stdout) and not listed.exit_code
    lines = CliRunner().invoke(
        cli, ["log", "inspect", str(tmp_path / "data"), "--batches", "--json"]
    )
    (batch,) = [it for it in map(json.loads, lines.stdout.splitlines()) if it.get("topic") == "t"]
    assert batch["codec"] == name and batch["uncompressed_size"] > 2 * batch["length"]


@each_codec
def test_tags_select_the_same_messages(name: str, mq_broker: EmbeddedBroker) -> None:
    tags = ["paid", "open", "", "lost"]
    with Producer(mq_broker.address, compression=name) as producer:
        messages = [Message("t", body(at), tag=tags[at % 4], sharding_key="k") for at in range(80)]
        # Batches with all tags, with none of those wanted, and with only them.
        for part in (messages, messages[1::4], messages[0::4]):
            producer.send_many(part)
    seen: list[tuple[str, bytes]] = []
    all_there = threading.Event()
    wanted = 20 + 20 + 20

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.tag, message.body))
        if len(seen) >= wanted:
            all_there.set()

    with Consumer(mq_broker.address, group="g") as consumer:
        consumer.subscribe("t", tags="paid || lost", handler=handle, workers=1)
        consumer.start()
        assert all_there.wait(20)
    parts = (*messages, *messages[1::4], *messages[0::4])
    assert seen == [(it.tag, it.body) for it in parts if it.tag in ("paid", "lost")]


@each_codec
def test_a_repeat_of_a_compressed_batch_is_stored_once(name: str) -> None:
    async def run() -> None:
        async with running_broker(plugins=["dedup"]) as rig:
            client = await rig.client()
            plain = encode_messages("t", 0, [(0, body(0), "", (), {})] * 3, producer=(7, 0, 0))
            first = compress(plain, name, make_codec(name))
            assert parse(first).codec == NUMBERS[name]
            answers = await client.send(first, first, renumber(first, (7, 0, 3)))
            again = await client.send(first)
            assert {part.status for part in (*answers, *again)} == {Status.OK}
            assert [part.base_offset for part in (*answers, *again)] == [0, 0, 3, 0]
            # Compressed or not: a number is a number.
            (plain_again,) = await client.send(plain)
            assert plain_again.base_offset == 0

    asyncio.run(run())


class Capitals(Plugin):
    """Reads and changes messages: a broker has no codec for it, a plugin may bring its own."""

    name = "capitals"

    @hookimpl
    def before_append(self, session: SessionInfo, batch: Batch) -> Replace:
        records = decode_records(batch, codec=make_codec("zstd") if batch.codec == 1 else None)
        changed = [(at, body.upper(), tag, keys, more) for at, body, tag, keys, more in records]
        return Replace(amend(batch, records=changed))


def test_a_plugin_can_read_what_is_compressed_if_it_brings_the_codec() -> None:
    with EmbeddedBroker(extra_plugins={"capitals": Capitals}) as broker:
        for name in ("zstd", None):
            with Producer(broker.address, compression=name) as producer:
                producer.send(Message("t", body(0)))
        with Producer(broker.address, compression="lz4") as producer:
            with pytest.raises(CometError, match="codec is lz4, expected none"):
                producer.send(Message("t", body(0)))
        assert [message.body for message in read(broker.address, "t", 2)] == [body(0).upper()] * 2


@each_codec
def test_a_poll_takes_no_more_memory_than_reading_ahead_may(name: str) -> None:
    scripted = ScriptedBroker(queues=1)
    large = bytes(256 << 10)
    for _ in range(20):
        scripted.put("t", 0, packed(name, large, large))
    polls: list[int] = []
    with PullConsumer(
        "scripted://x", topic="t", connect=scripted.connect, read_ahead_bytes=1 << 20
    ) as consumer:
        while sum(polls) < 40:
            messages = consumer.poll(max_messages=1000, timeout=10)
            assert [message.offset for message in messages] == list(
                range(sum(polls), sum(polls) + len(messages))
            )
            polls.append(len(messages))
    # Two batches are a little less than what it may take, so a third comes too.
    assert max(polls) == 6 and min(polls) >= 1


def test_batches_that_are_not_compressed_are_not_counted() -> None:
    scripted = ScriptedBroker(queues=1)
    for _ in range(20):
        scripted.put("t", 0, batch_of("t", 0, bytes(50_000)))
    with PullConsumer(
        "scripted://x", topic="t", connect=scripted.connect, fetch_bytes=4 << 20
    ) as consumer:
        assert len(consumer.poll(max_messages=1000, timeout=10)) == 20


# --- what is not installed --------------------------------------------------------------------


@pytest.fixture
def without_lz4(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing can import the package."""
    monkeypatch.delitem(sys.modules, "cometmq_plugins.codecs.lz4", raising=False)
    monkeypatch.setitem(sys.modules, "lz4", None)
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    for known in (codec_for, maker_of):
        known.cache_clear()
    yield
    for known in (codec_for, maker_of):
        known.cache_clear()


INSTALL = (
    r"needs a package that is not installed: pip install '\.\[lz4\]' in a checkout of cometmq, "
    r"else pip install 'cometmq\[lz4\]'"
)


def test_a_producer_without_the_package_is_told_which(without_lz4: None) -> None:
    with pytest.raises(ConfigError, match=INSTALL):
        Producer("scripted://x", compression="lz4", connect=ScriptedBroker().connect)


@pytest.mark.parametrize("unreadable", ["skip", "raise", lambda message: None])
def test_a_reader_without_the_package_stops_and_loses_nothing(
    unreadable: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    scripted = ScriptedBroker(queues=2)
    scripted.put("t", 0, batch_of("t", 0, b"before"))
    scripted.put("t", 0, packed("lz4", body(1), body(2)))
    scripted.put("t", 0, batch_of("t", 0, b"behind"))
    scripted.put("t", 1, batch_of("t", 1, b"other"))
    request.getfixturevalue("without_lz4")
    with PullConsumer(
        "scripted://x", topic="t", connect=scripted.connect, unreadable=unreadable
    ) as consumer:
        found: list[bytes] = []
        with pytest.raises(
            Unreadable, match=f"offsets 1 to 2 of queue 0 of t .*{INSTALL}"
        ) as error:
            while True:
                found += [message.body for message in consumer.poll(timeout=10)]
        assert (error.value.queue, error.value.next_offset) == (0, 3)
        assert set(found) <= {b"before", b"other"} and b"before" in found
        assert consumer.position(0) == 1
        while b"other" not in found:
            found += [message.body for message in consumer.poll(timeout=10)]
        consumer.seek(error.value.next_offset, 0)
        assert [message.body for message in consumer.poll(timeout=10)] == [b"behind"]


def test_a_group_stops_there_too_and_commits_nothing_behind(
    mq_broker: EmbeddedBroker, request: pytest.FixtureRequest
) -> None:
    with Producer(mq_broker.address) as producer:
        producer.send(Message("t", b"before", sharding_key="k"))
    with Producer(mq_broker.address, compression="lz4") as producer:
        queue = producer.send(Message("t", body(1), sharding_key="k")).queue
    request.getfixturevalue("without_lz4")
    told: list[CometError] = []
    heard = threading.Event()

    def on_error(error: CometError) -> None:
        told.append(error)
        heard.set()

    seen: list[bytes] = []
    with Consumer(mq_broker.address, group="g", on_error=on_error) as consumer:
        consumer.subscribe("t", handler=lambda message: seen.append(message.body))
        consumer.start()
        assert heard.wait(20)
    assert seen == [b"before"]
    assert isinstance(told[0], Unreadable) and "pip install 'cometmq[lz4]'" in str(told[0])
    with PullConsumer(mq_broker.address, group="g", topic="t") as reader:
        assert reader.committed()["t", queue] == 1


def test_who_reads_nothing_compressed_needs_no_package(without_lz4: None) -> None:
    scripted = ScriptedBroker(queues=1)
    scripted.put("t", 0, batch_of("t", 0, b"plain"))
    with PullConsumer("scripted://x", topic="t", connect=scripted.connect) as consumer:
        assert [message.body for message in consumer.poll(timeout=10)] == [b"plain"]
    assert "cometmq_plugins.codecs.lz4" not in sys.modules
