"""Few descriptors: a broker's own segments leave enough of them for syncs and for connections."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from cometmq import Message, Producer, PullConsumer
from cometmq.protocol import FetchPart, Status
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.files import FaultyFiles
from cometmq.testing.process import BrokerProcess, run_mq
from cometmq.testing.raw_client import batch_of, running_broker
from cometmq_plugins.segments import SegmentStorage
from cometmq_plugins.segments.files import Entry, SegmentTable

SEGMENTS = 50


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
