"""Few descriptors: a broker's own segments leave enough of them for syncs and for connections."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq import Message, Producer, PullConsumer
from cometmq.errors import Retryable
from cometmq.protocol import FetchPart, Status
from cometmq.testing.embedded import EmbeddedBroker
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.files import FaultyFiles
from cometmq.testing.process import BrokerProcess, run_mq
from cometmq.testing.raw_client import batch_of, running_broker
from cometmq_plugins.segments import SegmentStorage
from cometmq_plugins.segments.files import Entry, SegmentTable

SEGMENTS = 50


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """As in a process with very many connections of its own: whatever opens one now gets a number
    above 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    opened: list[int] = []
    try:
        while not opened or opened[-1] < 1100:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "inproc://nobody", "tcp://0.0.0.0.0:1"])
def test_a_client_beside_very_many_descriptors_waits_for_its_broker(
    address: str, many_descriptors: None
) -> None:
    with Producer(address, send_timeout=1.0) as producer, pytest.raises(Retryable):
        producer.send(Message("t", b"x"))


def test_a_client_beside_very_many_descriptors_works(
    tmp_path: Path, many_descriptors: None
) -> None:
    with EmbeddedBroker(data=str(tmp_path), listen="tcp://127.0.0.1:0") as broker:
        with Producer(broker.address) as producer:
            producer.send(Message("t", b"x"))
            broker.restart()
            producer.send(Message("t", b"y"))
        with PullConsumer(broker.address, topic="t") as consumer:
            found: set[bytes] = set()
            while len(found) < 2:
                found |= {message.body for message in consumer.poll(timeout=20)}


@pytest.mark.parametrize(("descriptors", "most"), [(16, 2), (80, 10), (512, 64), (1 << 20, 64)])
def test_segments_kept_open_take_their_share_and_no_more(descriptors: int, most: int) -> None:
    files = FaultyFiles()
    files.descriptors = descriptors
    files.make_folder("/log")
    table = SegmentTable(files, "/log")
    for base in range(200):
        files.open(table.path(base), create=True).close()
        table.set([*table.entries, Entry(base, table.path(base), 1)])
    for entry in (*table.entries, *table.entries[:9]):
        table.file(entry)
        assert sum(each.file is not None for each in table.entries) <= most
    assert sum(each.file is not None for each in table.entries) == most


def test_many_segments_stop_neither_syncs_nor_new_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQ_LOG__SEGMENT_BYTES", str(1 << 20))
    monkeypatch.setenv("MQ_LIMITS__BATCH_BYTES", str(1 << 20))
    with BrokerProcess(tmp_path, prefix=["prlimit", "--nofile=40:40"]) as broker:
        with Producer(broker.address) as producer:
            for _ in range(SEGMENTS):
                assert producer.send(Message("t", bytes(1_000_000))).level == "disk"
        with PullConsumer(broker.address, topic="t", start="earliest") as consumer:
            count = 0
            while count < SEGMENTS:
                messages = consumer.poll(timeout=10)
                assert messages, f"only {count} came; {broker.log.read_text()}"
                count += len(messages)
        with Producer(broker.address) as producer:
            producer.send(Message("t", b"still there"))
        segments = [name for name in os.listdir(broker.data / "log") if name.endswith(".seg")]
        assert len(segments) > 24 and len(os.listdir(f"/proc/{broker.pid}/fd")) < 28
    run_mq("log", "verify", str(broker.data)).ok()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("cold", [False, True])
def test_who_can_open_no_file_does_not_call_what_is_in_it_damaged(number: int, cold: bool) -> None:
    """A consumer would give it up, by seeking past it, and it is all there."""

    async def scenario() -> None:
        environment = VirtualEnvironment()
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            for _ in range(3):
                await client.send(batch_of("t", 0, b"x"), batch_of("t", 1, b"y"))
            rig.broker.log.roll()
            files, storage = environment.files, rig.broker.log._storage
            assert isinstance(storage, SegmentStorage)
            files.cold = cold
            files.fail("open", number, name=".seg", times=None)
            for entry in storage._table.entries:
                entry.file = None
            parts = [FetchPart("t", 0, 0), FetchPart("t", 1, 0)]
            answer = await client.fetch(*parts)
            assert answer.status == Status.RETRY and answer.header.retry_after_ms
            assert "raise the limit on open files" in answer.header.detail
            files.mend()
            answer = await client.fetch(*parts)
            assert [part.next_offset for part in answer.header.results] == [3, 3]

    asyncio.run(scenario())
