"""What a start and a new index cost: counted, and as ratios of what the same machine does bare."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from cometmq.batch import encode_messages, parse
from cometmq.log import Log, LogSettings
from cometmq.log.index_files import Stretch, scan_index
from cometmq.memory_files import MemoryFile
from cometmq.real_environment import RealEnvironment
from cometmq.testing.log_bytes import LogBytes
from cometmq.testing.log_kit import LogKit, in_loop
from cometmq_plugins.group_commit import GroupCommit
from cometmq_plugins.segments import SegmentStorage

GIB = 1 << 30


@in_loop
async def test_a_start_reads_the_newest_segment_and_the_heads_of_the_others(
    kit: LogKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kit.open(settings=LogSettings(segment_bytes=200_000))
    for _ in range(60):
        await kit.send(body=bytes(50_000))
    *old, newest = kit.storage.segments()
    assert len(old) >= 10
    await kit.log.close()
    kit.kill()
    read: dict[str, int] = {}
    plain = MemoryFile.read

    def counted(file: MemoryFile, at: int, size: int) -> bytes:
        data = plain(file, at, size)
        read[file._path] = read.get(file._path, 0) + len(data)
        return data

    monkeypatch.setattr(MemoryFile, "read", counted)
    await kit.open()
    # A few times over: for the checkpoint, the replay, what isn't proven to be on disk, its zeros.
    assert read[newest.name] <= 8 * newest.size
    assert max(read.get(segment.name, 0) for segment in old) <= 16 << 10 < old[0].size


def bare_checks(data: bytes, size: int) -> float:
    """CPU seconds for the least that every batch costs: its header taken apart, two CRCs."""
    view, unpack = memoryview(data), struct.Struct("<III QQQQqQ H x B 8x I H 2x I").unpack_from
    begun = time.thread_time()
    for at in range(0, len(data) - size, size):
        unpack(data, at)
        crc32c(data[at + 8 : at + 76], 1)
        crc32c(view[at + 76 : at + size])
    return time.thread_time() - begun


@pytest.mark.long
@pytest.mark.parametrize("body_bytes", [100, 1024])
def test_an_index_is_made_again_at_a_pace_near_that_of_its_checks(body_bytes: int) -> None:
    """One-message batches: 3.4 to 4.9 was measured, and 7 with the careful scan of before."""
    log = LogBytes()
    log.begin()
    body = Random(1).randbytes(body_bytes)
    count = 100_000
    for at in range(count):
        batch = log.messages(1, at % 4, body=body)
    data = bytes(log.segment_bytes[0])
    log.segment_bytes[0] = bytearray(data)
    ratios = []
    for _ in range(5):
        bare_s = bare_checks(data, batch.length)
        begun = time.thread_time()
        found = scan_index(lambda at, size: data[at : at + size], Stretch(0, log.end), log.seed)
        taken_s = time.thread_time() - begun
        assert sum(len(found.index._queues[key][0]) for key in found.index.keys()) == count
        ratios.append(taken_s / bare_s)
        rate, pace = count / taken_s, len(data) / taken_s / 1e6
        print(f"{body_bytes} B: {rate:,.0f} batches/s, {pace:,.0f} MB/s, {ratios[-1]:.2f} x bare")
    assert min(ratios) < 6


async def _filled(folder: Path, size_bytes: int) -> None:
    """A log of batches of 256 KiB that was stopped cleanly, its newest segment near its start."""
    environment = RealEnvironment()
    log = _log(environment, folder)
    await log.open()
    body = os.urandom(1024)
    raw = encode_messages("topic", 0, [(1_700_000_000_000, body, "", (), {})] * 230)
    while log.appended < size_bytes:
        for _ in range(16):
            log.append(parse(raw), incarnation=1, queue=0)
        log.write()
        await asyncio.sleep(0)
    await log.close()
    environment.threads.close()


def _log(environment: RealEnvironment, folder: Path) -> Log:
    storage = SegmentStorage(environment, environment.files, str(folder), persistent=True)
    return Log(storage, GroupCommit("memory", 500), environment)


def _opened_s(folder: Path) -> float:
    async def opened() -> float:
        environment = RealEnvironment()
        log = _log(environment, folder)
        begun = time.process_time()
        await log.open()
        taken_s = time.process_time() - begun
        await log.close()
        environment.threads.close()
        return taken_s

    return asyncio.run(opened())


@pytest.mark.long
def test_a_clean_start_over_5_gib_costs_what_one_over_a_small_log_does(tmp_path: Path) -> None:
    """Each start opens a segment of its own, so both replay what the one before left."""
    asyncio.run(_filled(tmp_path / "small", 8 << 20))
    asyncio.run(_filled(tmp_path / "large", 5 * GIB))
    _opened_s(tmp_path / "small"), _opened_s(tmp_path / "large")
    pairs = [(_opened_s(tmp_path / "small"), _opened_s(tmp_path / "large")) for _ in range(5)]
    for small_s, large_s in pairs:
        print(f"start: {small_s * 1e3:.1f} ms CPU, over 5 GiB {large_s * 1e3:.1f} ms")
    assert min(large for _, large in pairs) < 3 * min(small for small, _ in pairs)
