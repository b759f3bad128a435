"""What a reader sends, and what it says when bytes are missing or lie."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from cometmq.batch import Batch, RecordTuple, encode_messages, parse
from cometmq.interfaces import Storage
from cometmq.log import reader as reader_module
from cometmq.log.log import Log
from cometmq.log.next_offsets import NextOffsets
from cometmq.log.queue_index import QueueIndex
from cometmq.log.reader import Reader, ReadResult
from cometmq.log.settings import LogSettings
from cometmq.protocol import Status
from cometmq.real_environment import RealEnvironment
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.log_bytes import LogBytes
from cometmq_plugins.group_commit import GroupCommit
from cometmq_plugins.segments import SegmentStorage

PLENTY = 1 << 20


class Readable:
    """A log in memory, its index and a reader; `read` is for queue (1, 0)."""

    def __init__(self) -> None:
        self.bytes = LogBytes()
        self.view = NextOffsets()
        environment = VirtualEnvironment()
        storage = cast(Storage, self.bytes)
        self.index = QueueIndex(storage, environment, self.bytes.seed, self.view)
        self.reader = Reader(storage, environment, self.index, self.bytes.seed)
        self.roll()

    def roll(self) -> None:
        if self.bytes.segment_bytes:
            self.index.seal(max(self.bytes.segment_bytes), self.bytes.end)
        self.index.open(self.bytes.end)
        self.bytes.begin()
        self.bytes.reads = 0

    def send(self, count: int = 1, *, queue: int = 0, body: bytes = b"body") -> Batch:
        batch = self.bytes.messages(1, queue, count, body)
        self.view.apply(batch)
        place = batch.position, batch.length, batch.store_time
        self.index.add(1, queue, batch.base_offset, batch.next_offset, *place)
        return batch

    def read(
        self,
        offset: int,
        *,
        max_bytes: int = PLENTY,
        readable: int | None = None,
        at_least_one: bool = True,
    ) -> ReadResult:
        """What both ways of reading say; the one that needs the disk must say the same."""
        end = self.bytes.end if readable is None else readable
        asked = 1, 0, offset, max_bytes, end
        now = self.reader.read_now(*asked, at_least_one=at_least_one)
        waiting = asyncio.run(self.reader.read(*asked, at_least_one=at_least_one))
        assert now == waiting
        return waiting


@pytest.fixture
def log() -> Readable:
    return Readable()


def sent(result: ReadResult) -> list[bytes]:
    return [bytes(batch) for batch in result.batches]


def whole(batches: Sequence[Batch]) -> list[bytes]:
    return [bytes(batch.view) for batch in batches]


def test_batches_go_out_as_they_lie(log: Readable) -> None:
    batches = [log.send(count) for count in (2, 3, 1, 2)]
    result = log.read(0)
    assert result.status == Status.OK
    assert sent(result) == whole(batches)
    assert result.next_offset == 8
    assert (result.min_offset, result.max_offset) == (0, 8)


def test_the_batch_that_holds_the_offset_comes_first(log: Readable) -> None:
    batches = [log.send(3) for _ in range(4)]
    for offset in range(12):
        result = log.read(offset)
        assert sent(result) == whole(batches[offset // 3 :])
        assert parse(result.batches[0]).base_offset <= offset


def test_nothing_there_is_no_error(log: Readable) -> None:
    assert log.read(0) == ReadResult(Status.OK, (), 0, 0, 0)
    log.send(3)
    assert log.read(3) == ReadResult(Status.OK, (), 3, 0, 3)
    assert log.read(99).next_offset == 99


def test_one_batch_goes_out_however_large(log: Readable) -> None:
    batches = [log.send(body=bytes(5000)) for _ in range(3)]
    assert sent(log.read(0, max_bytes=1)) == whole(batches[:1])
    fitting = batches[0].length + batches[1].length
    assert sent(log.read(0, max_bytes=fitting)) == whole(batches[:2])
    assert sent(log.read(0, max_bytes=fitting - 1)) == whole(batches[:1])


def test_a_batch_that_does_not_fit_is_not_even_read_where_none_has_to_go(log: Readable) -> None:
    batches = [log.send(body=bytes(5000)) for _ in range(2)]
    size = batches[0].length
    reads = log.bytes.reads
    result = log.read(0, max_bytes=size - 1, at_least_one=False)
    assert result == ReadResult(Status.OK, (), 0, 0, 2)
    assert log.bytes.reads == reads
    assert sent(log.read(0, max_bytes=size, at_least_one=False)) == whole(batches[:1])


def test_what_is_not_readable_stays_here(log: Readable) -> None:
    first, second = log.send(2), log.send(2)
    end = second.position + second.length
    result = log.read(0, readable=end - 1)
    assert sent(result) == whole([first])
    assert result.max_offset == 2
    assert log.read(2, readable=end - 1) == ReadResult(Status.OK, (), 2, 0, 2)
    assert sent(log.read(2, readable=end)) == whole([second])


def test_reading_goes_on_over_a_roll(log: Readable) -> None:
    batches = [log.send(2)]
    log.roll()
    batches.append(log.send(2))
    asyncio.run(log.index.write())
    assert sent(log.read(0)) + sent(log.read(2)) == whole(batches)


def test_neighbours_are_read_at_once(log: Readable) -> None:
    mine = []
    for _ in range(20):
        mine.append(log.send(body=bytes(1000)))
        log.send(queue=1, body=bytes(500))
    log.bytes.reads = 0
    result = log.reader.read_now(1, 0, 0, PLENTY, log.bytes.end)
    assert result is not None
    assert sent(result) == whole(mine)
    assert log.bytes.reads == 1


def test_far_neighbours_are_read_one_by_one_in_bounded_number(
    log: Readable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "RUNS_MAX", 5)
    mine = []
    for _ in range(9):
        mine.append(log.send())
        log.send(queue=1, body=bytes(3000))
    log.bytes.reads = 0
    result = log.reader.read_now(1, 0, 0, PLENTY, log.bytes.end)
    assert result is not None
    assert sent(result) == whole(mine[:5])
    assert log.bytes.reads == 5
    assert sent(log.read(result.next_offset)) == whole(mine[5:])


def test_a_cold_page_cache_sends_to_the_disk(log: Readable) -> None:
    batch = log.send()
    log.bytes.cold = True
    assert log.reader.read_now(1, 0, 0, PLENTY, log.bytes.end) is None
    result = asyncio.run(log.reader.read(1, 0, 0, PLENTY, log.bytes.end))
    assert sent(result) == whole([batch])


def test_an_index_that_is_not_in_memory_sends_to_the_disk(log: Readable) -> None:
    batch = log.send()
    log.roll()
    asyncio.run(log.index.write())
    fresh = QueueIndex(cast(Storage, log.bytes), VirtualEnvironment(), log.bytes.seed, log.view)
    first, last = log.bytes.segments()
    fresh.known(first.base, last.base)
    fresh.open(last.base)
    reader = Reader(cast(Storage, log.bytes), VirtualEnvironment(), fresh, log.bytes.seed)
    assert reader.read_now(1, 0, 0, PLENTY, log.bytes.end) is None
    result = asyncio.run(reader.read(1, 0, 0, PLENTY, log.bytes.end))
    assert sent(result) == whole([batch])
    assert reader.read_now(1, 0, 0, PLENTY, log.bytes.end) == result


def test_below_the_min_offset_is_expired(log: Readable) -> None:
    log.send(5)
    log.roll()
    log.send(2)

    async def trim() -> None:
        await log.index.write()
        newest = max(log.bytes.segment_bytes)
        del log.bytes.segment_bytes[0]
        await log.index.trim(newest)

    asyncio.run(trim())
    result = log.read(3)
    assert (result.status, result.next_offset, result.min_offset) == (Status.EXPIRED, 5, 5)
    assert log.read(5).status == Status.OK


def test_a_damaged_header_is_never_sent_nor_skipped(log: Readable) -> None:
    first, hit, third = log.send(2), log.send(2), log.send(2)
    log.bytes.flip(hit.position + 40)
    before = log.read(0)
    assert (sent(before), before.next_offset) == (whole([first]), 2)
    result = log.read(2)
    assert (result.status, result.next_offset) == (Status.DAMAGED, 4)
    assert f"offsets 2 to 3 are damaged at position {hit.position} of" in result.detail
    assert "00000000000000000000.seg" in result.detail
    assert sent(log.read(4)) == whole([third])


def test_reading_may_go_on_at_the_next_good_batch(log: Readable) -> None:
    batches = [log.send(2) for _ in range(5)]
    for hit in batches[1:3]:
        log.bytes.flip(hit.position + 40)
    assert log.read(2).next_offset == 6
    for hit in batches[3:]:
        log.bytes.flip(hit.position + 40)
    assert log.read(2).next_offset == 10


def test_every_flipped_byte_of_a_header_is_seen(log: Readable) -> None:
    hit = log.send(2)
    log.send(2)
    for at in range(76):
        log.bytes.flip(hit.position + at)
        assert log.read(0).status == Status.DAMAGED, at
        log.bytes.flip(hit.position + at)


def test_an_intact_batch_of_another_queue_or_place_is_not_sent(log: Readable) -> None:
    mine, other = log.send(2), log.send(2, queue=1)
    data = log.bytes.segment_bytes[0]
    data[mine.position : mine.position + mine.length] = other.view
    result = log.read(0)
    assert (result.status, result.next_offset) == (Status.DAMAGED, 2)
    assert "the header names" in result.detail


def test_a_bad_body_is_the_consumers_to_find(log: Readable) -> None:
    batch = log.send(2)
    log.bytes.flip(batch.position + batch.length - 1)
    result = log.read(0)
    assert (result.status, len(result.batches)) == (Status.OK, 1)


def test_a_hole_in_the_index_is_damage(log: Readable) -> None:
    first = log.send(2)
    log.bytes.next_offsets[1, 0] = 5
    behind = log.send(2)
    assert sent(log.read(0)) == whole([first])
    result = log.read(2)
    assert (result.status, result.next_offset) == (Status.DAMAGED, 5)
    assert f"offsets 2 to 4 are missing before position {behind.position}" in result.detail
    assert sent(log.read(5)) == whole([behind])


def test_offsets_lost_behind_the_last_batch_are_damage(log: Readable) -> None:
    first = log.send(2)
    lost = log.send(2)
    log.roll()
    log.bytes.flip(lost.position + 20)
    fresh = QueueIndex(cast(Storage, log.bytes), VirtualEnvironment(), log.bytes.seed, log.view)
    fresh.known(0, log.bytes.segments()[1].base)
    fresh.open(log.bytes.segments()[1].base)
    log.reader = Reader(cast(Storage, log.bytes), VirtualEnvironment(), fresh, log.bytes.seed)
    asyncio.run(fresh.load(0))
    assert sent(log.read(0)) == whole([first])
    result = log.read(2)
    assert (result.status, result.next_offset) == (Status.DAMAGED, 4)
    assert log.read(4).status == Status.OK


def test_bytes_trimmed_while_they_are_read_are_expired_not_damaged(log: Readable) -> None:
    log.send(5)
    log.roll()
    log.send(2)

    async def run() -> ReadResult:
        await log.index.write()
        newest = max(log.bytes.segment_bytes)
        reading = asyncio.create_task(log.reader.read(1, 0, 3, PLENTY, log.bytes.end))
        # The read was planned, its thread has not come to the bytes yet.
        await asyncio.sleep(0)
        del log.bytes.segment_bytes[0][:]
        await log.index.trim(newest)
        return await reading

    result = asyncio.run(run())
    assert (result.status, result.next_offset) == (Status.EXPIRED, 5)


def test_a_bad_sector_costs_only_its_batch(log: Readable, monkeypatch: pytest.MonkeyPatch) -> None:
    first, hit, third = log.send(2), log.send(2), log.send(2)
    good = LogBytes.read

    def read(self: LogBytes, position: int, size: int) -> bytes:
        if position < hit.position + hit.length and position + size > hit.position:
            raise OSError(5, "Input/output error")
        return good(self, position, size)

    monkeypatch.setattr(LogBytes, "read", read)
    assert sent(log.read(0)) == whole([first])
    result = log.read(2)
    assert (result.status, result.next_offset) == (Status.DAMAGED, 4)
    assert "Input/output error" in result.detail
    assert sent(log.read(4)) == whole([third])


def test_a_segment_that_ends_early_is_damage(log: Readable) -> None:
    log.send(2)
    last = log.send(2)
    del log.bytes.segment_bytes[0][-10:]
    result = log.read(2)
    assert (result.status, result.next_offset) == (Status.DAMAGED, 4)
    assert f"10 of its {last.length} bytes are missing" in result.detail


def test_a_log_without_its_index_files_gives_the_same_answers(tmp_path: Path) -> None:
    environment = RealEnvironment()

    def make() -> Log:
        storage = SegmentStorage(
            environment,
            environment.files,
            str(tmp_path / "data"),
            persistent=True,
            step_bytes=64 << 10,
            reserve_bytes=0,
        )
        settings = LogSettings(mark_idle_ms=60_000)
        return Log(storage, GroupCommit("disk", 500, 0), environment, settings=settings)

    async def answers(log: Log) -> list[tuple[list[bytes], tuple[int, int], int]]:
        results = []
        for queue in range(3):
            for offset in range(log.next_offset(1, queue)):
                result = await log.reader.read(1, queue, offset, 500, log.appended)
                batch = parse(result.batches[0])
                time = batch.store_time
                by_time = await log.when_loaded(
                    lambda: log.index.offset_by_time(1, queue, time)  # noqa: B023
                )
                places = result.next_offset, result.min_offset
                results.append((sent(result), places, by_time))
        return results

    async def run() -> None:
        log = make()
        await log.open()
        for number in range(12):
            record: RecordTuple = (0, b"body %d" % number, "", (), {})
            batch = parse(encode_messages("topic", number % 3, [record] * (1 + number % 2)))
            log.append(batch, incarnation=1, queue=number % 3)
            log.write()
            if number % 4 == 3:
                log.roll()
        expected = await answers(log)
        await log.close()
        files = sorted((tmp_path / "data" / "log").glob("*.queue"))
        assert len(files) >= 2
        written = [path.read_bytes() for path in files]
        for path in files:
            path.unlink()
        log = make()
        await log.open()
        assert await answers(log) == expected
        await log.close()
        assert [path.read_bytes() for path in files] == written, "made again as they were"

    asyncio.run(run())
    environment.threads.close()
