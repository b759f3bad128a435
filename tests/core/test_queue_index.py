"""The queue index: the same answers from memory, from files, and from files made again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from cometmq.batch import Batch, Kind, encode_messages, parse
from cometmq.batch.rewrite import cut
from cometmq.environment import Buffer
from cometmq.interfaces import Storage
from cometmq.log import index_files, quick_scan
from cometmq.log.indexed_segments import NotLoaded
from cometmq.log.next_offsets import NextOffsets
from cometmq.log.queue_index import Entry, QueueIndex
from cometmq.log.records import CheckpointEnd, CheckpointSlice
from cometmq.log.segment_index import OpenSegment
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.log_bytes import LogBytes

KEYS = [(1, 0), (1, 1), (2, 0), (7, 3)]


class IndexedLog:
    """A log in memory with its index, and a plain list of what it holds to compare with."""

    def __init__(self, *, cache_bytes: int = 1 << 20) -> None:
        self.bytes = LogBytes()
        self.view = NextOffsets()
        self.environment = VirtualEnvironment()
        self.cache_bytes = cache_bytes
        self.batches: list[Batch] = []
        self.index = self.fresh_index()

    def fresh_index(self) -> QueueIndex:
        return QueueIndex(
            cast(Storage, self.bytes),
            self.environment,
            self.bytes.seed,
            self.view,
            cache_bytes=self.cache_bytes,
        )

    def roll(self, *, checkpoint: bool = True) -> None:
        """Seal the open segment and begin the next one, with its head checkpoint."""
        if self.bytes.segment_bytes:
            self.index.seal(max(self.bytes.segment_bytes), self.bytes.end)
        base = self.bytes.end
        self.bytes.begin()
        self.index.open(base)
        if checkpoint:
            slices = [CheckpointSlice(base, self.view.name, data) for data in self.view.slices()]
            for record in slices:
                self.bytes.control(Kind.CHECKPOINT_SLICE, [record])
            self.bytes.control(Kind.CHECKPOINT_END, [CheckpointEnd(base, len(slices))])

    def send(self, key: tuple[int, int], count: int = 1) -> Batch:
        return self._take(self.bytes.messages(*key, count))

    def send_cut(self, key: tuple[int, int], count: int, keep: list[int]) -> Batch:
        """A batch of which only some records are left, with the offsets they had."""
        base = self.view.get(*key)
        whole = LogBytes()
        whole.begin()
        whole.next_offsets[key] = base
        buffer = cut(whole.messages(*key, count), keep, log_id_seed=whole.seed)
        batch = self.bytes.append(buffer, key, base, flags=1)
        self.bytes.next_offsets[key] = batch.next_offset
        return self._take(batch)

    def _take(self, batch: Batch) -> Batch:
        self.batches.append(batch)
        self.view.apply(batch)
        place = batch.position, batch.length, batch.store_time
        key = batch.incarnation, batch.queue
        self.index.add(*key, batch.base_offset, batch.next_offset, *place)
        return batch

    def queue(self, key: tuple[int, int]) -> list[Batch]:
        return [b for b in self.batches if (b.incarnation, b.queue) == key]

    def roll_after_cut(self) -> None:
        """The log goes on in a new segment; the cut one is known as it is now."""
        base = self.bytes.end
        self.index.seal(max(self.bytes.segment_bytes), base)
        self.bytes.begin()
        self.index.open(base)

    def start_again(self) -> None:
        """As after a start: only the newest segment is replayed."""
        self.index = self.fresh_index()
        *older, newest = self.bytes.segments()
        for segment in older:
            self.index.known(segment.base, segment.base + segment.size)
        self.index.open(newest.base)
        replayed = [b for b in self.batches if b.position >= newest.base]
        self.batches = [b for b in self.batches if b.position < newest.base]
        for batch in replayed:
            self._take(batch)


def entry(batch: Batch) -> Entry:
    return Entry(batch.base_offset, batch.next_offset, batch.position, batch.length)


async def compare(log: IndexedLog) -> None:
    """Every look-up gives what a search through all batches gives."""
    index = log.index
    bases = sorted(log.bytes.segment_bytes)
    for key in KEYS:
        mine = log.queue(key)
        for offset in range(log.view.get(*key) + 2):
            got = await index.when_loaded(
                lambda: list(index.locate(*key, offset, log.bytes.end, 300))  # noqa: B023
            )
            rest = [b for b in mine if b.next_offset > offset]
            assert got == [entry(b) for b in rest[: len(got)]], (key, offset)
            assert bool(got) == bool(rest)
            assert len(got) <= 1 or sum(e.size for e in got) <= 300
        for position in sorted({*bases, log.bytes.end, *(b.position for b in log.batches)}):
            for place in (position, position + 1):
                before = [b.next_offset for b in mine if b.position + b.length <= place]
                next_offset = await index.when_loaded(
                    lambda: index.next_offset_before(*key, place)  # noqa: B023
                )
                assert next_offset == max(before, default=0), (key, place)
        for time in {b.store_time + step for b in log.batches for step in (-1, 0, 1)}:
            later = [b.base_offset for b in mine if b.store_time >= time]
            first = await index.when_loaded(lambda: index.offset_by_time(*key, time))  # noqa: B023
            assert first == (later[0] if later else log.view.get(*key)), (key, time)


def random_log(seed: int, *, cache_bytes: int = 1 << 20) -> IndexedLog:
    log = IndexedLog(cache_bytes=cache_bytes)
    dice = random.Random(seed)
    for _ in range(5):
        log.roll()
        for _ in range(dice.randrange(8)):
            log.bytes.store_time += dice.choice([-5, 0, 7])
            log.send(dice.choice(KEYS), dice.randrange(1, 4))
            if dice.random() < 0.2:
                log.bytes.control(Kind.MARK, [[0]])
    return log


def all_sides_gone(log: IndexedLog) -> None:
    log.bytes.sides.clear()


def all_sides_damaged(log: IndexedLog) -> None:
    for name, data in log.bytes.sides.items():
        log.bytes.sides[name] = data[:-1] + bytes([data[-1] ^ 1])


def nothing(log: IndexedLog) -> None:
    """The files are as they were written."""


@pytest.mark.parametrize("seed", range(6))
def test_open_and_unwritten_segments_answer_from_memory(seed: int) -> None:
    log = random_log(seed)
    asyncio.run(compare(log))
    assert log.bytes.sides == {}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("accident", [nothing, all_sides_gone, all_sides_damaged])
def test_files_give_the_same_answers_and_are_made_again(
    seed: int, accident: Callable[[IndexedLog], None]
) -> None:
    # Room for about one index: look-ups must work in a cache that holds no two.
    log = random_log(seed, cache_bytes=700)

    async def run() -> None:
        await log.index.write()
        await compare(log)
        written = dict(log.bytes.sides)
        assert len(written) == 4
        accident(log)
        log.start_again()
        await compare(log)
        assert log.bytes.sides == written

    asyncio.run(run())


def test_a_read_only_log_gets_no_index_file() -> None:
    log = random_log(1)
    log.index.read_only = True
    asyncio.run(log.index.write())
    log.start_again()
    log.index.read_only = True
    asyncio.run(compare(log))
    assert log.bytes.sides == {}


def test_min_offset_is_what_the_oldest_segment_begins_with() -> None:
    log = IndexedLog()
    log.roll()
    log.send((1, 0), 5)
    log.send((2, 0), 3)
    log.roll()
    middle = log.bytes.end
    log.send((1, 0), 2)
    log.roll()
    newest = max(log.bytes.segment_bytes)
    log.send((7, 3), 4)

    async def mins() -> list[int]:
        index = log.index
        return [await index.when_loaded(lambda: index.min_offset(*key)) for key in KEYS]  # noqa: B023

    async def run() -> None:
        await log.index.write()
        assert await mins() == [0, 0, 0, 0]
        del log.bytes.segment_bytes[0]
        await log.index.trim(max(base for base in log.bytes.segment_bytes if base < middle))
        assert await mins() == [5, 0, 3, 0]
        assert log.index.min_offset(1, 0) == 5
        await log.index.trim(newest)
        assert await mins() == [7, 0, 3, 0]

    asyncio.run(run())


def test_a_copy_that_begins_with_a_whole_checkpoint_needs_nothing_older() -> None:
    log = IndexedLog()
    log.roll()
    log.send((1, 0), 5)
    log.send((2, 0), 3)
    log.roll()
    log.send((1, 0), 2)
    log.roll()
    oldest = min(log.bytes.segment_bytes)
    del log.bytes.segment_bytes[oldest]
    log.start_again()

    async def run() -> None:
        index = log.index
        assert await index.when_loaded(lambda: index.min_offset(1, 0)) == 5
        assert await index.when_loaded(lambda: index.min_offset(2, 0)) == 3
        assert index.min_offset(1, 1) == 0

    asyncio.run(run())


def test_a_segment_without_a_checkpoint_takes_its_start_from_the_one_before() -> None:
    log = IndexedLog()
    log.roll()
    log.send((1, 0), 5)
    log.send((2, 0), 3)
    log.roll(checkpoint=False)
    log.send((1, 0), 2)
    log.roll()
    log.start_again()
    asyncio.run(compare(log))


def test_only_an_open_segment_is_sealed() -> None:
    log = random_log(0)
    asyncio.run(log.index.write())
    log.index.seal(0, log.bytes.end)
    log.index.seal(12_345_678, log.bytes.end)
    asyncio.run(compare(log))


def test_a_cut_in_memory_forgets_what_lies_behind() -> None:
    log = IndexedLog()
    log.roll()
    log.send((1, 0), 5)
    kept = log.send((1, 0), 5)
    lost = log.send((2, 0), 5)
    log.send((1, 0), 1)
    log.index.cut(lost.position)
    log.view.reset()
    log.view.advance(1, 0, 10)
    end = lost.position + 10_000
    assert list(log.index.locate(1, 0, 5, end, 1000)) == [entry(kept)]
    assert list(log.index.locate(1, 0, 10, end, 1000)) == []
    assert list(log.index.locate(2, 0, 0, end, 1000)) == []


def test_a_cut_that_takes_the_newest_segment_leaves_nothing_of_it() -> None:
    log = IndexedLog()
    log.roll()
    kept = log.send((1, 0), 5)
    log.roll()
    lost = log.send((1, 0), 5)
    end = lost.position + 10_000
    log.index.cut(kept.position + kept.length)
    log.view.reset()
    log.view.advance(1, 0, 5)
    assert log.index.next_offset_before(1, 0, end) == 5
    assert list(log.index.locate(1, 0, 5, end, 1000)) == []
    assert list(log.index.locate(1, 0, 0, end, 1000)) == [entry(kept)]


def test_a_cut_in_a_sealed_segment_makes_its_index_again() -> None:
    log = random_log(3)
    first = log.batches[0]
    position = next(b for b in log.batches if b.position > first.position).position

    async def run() -> None:
        await log.index.write()
        await compare(log)
        log.index.cut(position)
        log.batches = [b for b in log.batches if b.position < position]
        for base in [base for base in log.bytes.segment_bytes if base >= position]:
            del log.bytes.segment_bytes[base]
        del log.bytes.segment_bytes[0][position:]
        log.bytes.end = position
        log.view.reset()
        for batch in log.batches:
            log.view.apply(batch)
        log.roll_after_cut()
        await compare(log)

    asyncio.run(run())


def test_damage_is_a_gap_when_the_index_is_made_again() -> None:
    log = IndexedLog()
    log.roll()
    before = log.send((1, 0), 2)
    hit = log.send((1, 0), 2)
    behind = log.send((1, 0), 2)
    log.roll()
    log.bytes.flip(hit.position + 20)
    log.start_again()

    async def run() -> None:
        index, end = log.index, log.bytes.end
        await index.load(0)
        assert list(index.locate(1, 0, 0, end, 1000)) == [entry(before), entry(behind)]
        assert list(index.locate(1, 0, 2, end, 1000)) == [entry(behind)]

    asyncio.run(run())


@pytest.mark.parametrize("checkpoint", [True, False], ids=["with checkpoint", "torn segment"])
def test_the_damaged_first_batch_of_a_young_queue_is_a_gap_from_0(checkpoint: bool) -> None:
    """Not the queue's min offset: what was lost would look as if it had expired."""
    log = IndexedLog()
    log.roll()
    log.send((1, 0), 2)
    log.roll(checkpoint=checkpoint)
    log.send((1, 0), 1)
    hit = log.send((2, 0), 3)
    behind = log.send((2, 0), 2)
    log.roll()
    log.bytes.flip(hit.position + 20)
    log.start_again()

    async def run() -> None:
        index, end = log.index, log.bytes.end
        assert await index.when_loaded(lambda: index.min_offset(2, 0)) == 0
        found = await index.when_loaded(lambda: list(index.locate(2, 0, 0, end, 1000)))
        assert found == [entry(behind)]
        assert await index.when_loaded(lambda: index.min_offset(1, 0)) == 0

    asyncio.run(run())


def test_also_in_the_segment_that_the_log_begins_with() -> None:
    log = IndexedLog()
    log.roll(checkpoint=False)
    hit = log.send((1, 0), 2)
    log.send((1, 0), 2)
    log.roll()
    log.bytes.flip(hit.position + 20)
    log.start_again()
    asyncio.run(log.index.load(0))
    assert log.index.min_offset(1, 0) == 0


def test_a_checkpoint_with_a_damaged_slice_names_nobody_as_new() -> None:
    """Where nothing older is left to ask, what is there is all that is known."""
    log = IndexedLog()
    log.roll()
    log.send((1, 0), 5)
    log.roll()
    base = max(log.bytes.segment_bytes)
    log.send((1, 0), 2)
    log.roll()
    del log.bytes.segment_bytes[0]
    start = parse(memoryview(bytes(log.bytes.segment_bytes[base])))
    log.bytes.flip(start.position + start.length + 90)
    log.start_again()
    asyncio.run(log.index.load(base))
    assert log.index.min_offset(1, 0) == 5


def test_an_index_of_what_the_disk_refused_to_read_is_not_kept_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = IndexedLog()
    log.roll()
    first, hit = log.send((1, 0), 2), log.send((1, 0), 2)
    log.roll()
    log.start_again()
    good = log.bytes.read

    def read(position: int, size: int) -> bytes:
        if position < hit.position + hit.length and position + size > hit.position:
            raise OSError(5, "Input/output error")
        return good(position, size)

    monkeypatch.setattr(log.bytes, "read", read)
    asyncio.run(log.index.load(0))
    assert list(log.index.locate(1, 0, 0, log.bytes.end, 1000)) == [entry(first)]
    assert log.bytes.sides == {}
    monkeypatch.setattr(log.bytes, "read", good)
    log.start_again()
    asyncio.run(log.index.load(0))
    assert list(log.index.locate(1, 0, 0, log.bytes.end, 1000)) == [entry(first), entry(hit)]


def test_offsets_lost_at_a_segments_end_are_known_from_the_next_start() -> None:
    log = IndexedLog()
    log.roll()
    log.send((1, 0), 2)
    hit = log.send((1, 0), 2)
    log.roll()
    log.bytes.flip(hit.position + 20)
    log.start_again()

    async def run() -> None:
        index, end = log.index, log.bytes.end
        await index.load(0)
        assert list(index.locate(1, 0, 2, end, 1000)) == []
        assert index.next_after_gap(1, 0, 2) == 4
        assert index.next_offset_before(1, 0, end) == 4
        assert list(index.locate(1, 0, 4, end, 1000)) == []
        assert index.next_after_gap(1, 0, 4) is None

    asyncio.run(run())


def test_holes_of_a_cut_batch_are_no_gap() -> None:
    log = IndexedLog()
    log.roll()
    log.send((1, 0), 2)
    holes = log.send_cut((1, 0), 6, [1, 4])
    assert (holes.base_offset, holes.next_offset) == (2, 7)
    for offset in range(2, 7):
        assert list(log.index.locate(1, 0, offset, log.bytes.end, 1000)) == [entry(holes)]


def test_nothing_beyond_readable_is_found() -> None:
    log = IndexedLog()
    log.roll()
    first = log.send((1, 0))
    second = log.send((1, 0))
    assert list(log.index.locate(1, 0, 0, second.position + second.length - 1, 10_000)) == [
        entry(first)
    ]
    assert list(log.index.locate(1, 0, 1, second.position, 10_000)) == []


def test_a_look_up_says_which_index_it_needs() -> None:
    log = random_log(2)
    asyncio.run(log.index.write())
    log.start_again()
    with pytest.raises(NotLoaded) as missing:
        log.index.next_offset_before(1, 0, 1)
    assert missing.value.base == 0
    assert log.index.min_offset(1, 0) == 0, "before the first segment there was nothing"


def test_a_file_from_before_a_cut_or_of_another_log_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = random_log(4)
    asyncio.run(log.index.write())
    other = IndexedLog()
    other.bytes = LogBytes(b"another!")
    other.index = other.fresh_index()
    for _ in range(2):
        other.roll()
    other.bytes.sides[0, "queue"] = log.bytes.sides[0, "queue"]
    other.start_again()
    asyncio.run(other.index.load(0))
    assert "made again" in caplog.text
    assert other.bytes.sides[0, "queue"] != log.bytes.sides[0, "queue"]


def test_every_flipped_byte_of_a_file_is_seen() -> None:
    log = IndexedLog()
    log.roll()
    log.send((1, 0), 2)
    log.send((2, 0), 2)
    log.roll()
    asyncio.run(log.index.write())
    good = log.bytes.sides[0, "queue"]
    for at in range(len(good)):
        log.bytes.sides[0, "queue"] = good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :]
        log.start_again()
        asyncio.run(log.index.load(0))
        assert log.bytes.sides[0, "queue"] == good, at


def test_an_index_that_can_not_be_written_still_answers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = random_log(5)

    def full(base: int, suffix: str, chunks: Sequence[Buffer]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log.bytes, "write_side", full)

    async def run() -> None:
        await log.index.write()
        await compare(log)

    asyncio.run(run())
    assert "was not written" in caplog.text


def test_appends_and_rolls_while_an_index_is_being_written() -> None:
    log = IndexedLog()
    log.roll()
    for queue in range(1200):
        log.send((1, queue))
    log.roll()

    async def run() -> None:
        writing = asyncio.create_task(log.index.write())
        for step in range(6):
            await asyncio.sleep(0)
            log.send((1, step * 200), 3)
            log.send((9, step))
            if step == 3:
                log.roll()
        await writing
        starts = [
            log.index.next_offset_before(1, queue, log.bytes.segments()[1].base)
            for queue in range(1200)
        ]
        assert starts == [1] * 1200

    asyncio.run(run())
    second = log.bytes.segments()[1].base
    del log.bytes.segment_bytes[0]
    log.start_again()

    async def mins() -> list[int]:
        await log.index.load(second)
        return [log.index.min_offset(1, queue) for queue in range(1200)]

    assert asyncio.run(mins()) == [1] * 1200


def test_empty_payload_batches_of_no_topic_are_in_no_queue() -> None:
    log = IndexedLog()
    log.roll()
    log.bytes.append(encode_messages("topic", 0, [(0, b"", "", (), {})]), (0, 0), 0)
    log.send((1, 0))
    log.roll()
    log.start_again()
    asyncio.run(log.index.load(0))
    assert log.index.next_offset_before(0, 0, log.bytes.end) == 0


@pytest.mark.parametrize("rows", [1, 3, 10_000])
def test_an_index_made_again_is_the_one_that_grew(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batches come in many at once, the clock of some having stepped back."""
    monkeypatch.setattr(quick_scan, "ROWS", rows)
    dice = random.Random(rows)
    log = LogBytes()
    log.begin()
    grown = OpenSegment(0)
    for _ in range(50):
        log.store_time += dice.randint(-5, 5)
        batch = log.messages(dice.randint(0, 2), dice.randint(0, 3), dice.randint(1, 3))
        if batch.incarnation:
            key = batch.incarnation, batch.queue
            span = batch.next_offset - batch.base_offset
            grown.add(key, batch.base_offset, span, batch.position, batch.length, batch.store_time)
    grown.end = log.end
    found = index_files.scan_index(log.read, index_files.Stretch(0, log.end), log.seed).index
    assert (found.oldest, found.newest) == (grown.oldest, grown.newest)
    assert b"".join(found.encode({}, 1)) == b"".join(grown.encode({}, 1))
