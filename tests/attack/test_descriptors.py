"""Few descriptors: a broker's own segments leave enough of them for syncs and for connections."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cometmq import Message, Producer, PullConsumer
from cometmq.testing.files import FaultyFiles
from cometmq.testing.process import BrokerProcess, run_mq
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
