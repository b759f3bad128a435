"""Reading ahead: who goes through a cold log waits for the disk once, and never on the loop."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

from cometmq.memory_files import MemoryFile, MemoryFiles
from cometmq.testing.environment import InlineThreads, VirtualEnvironment
from cometmq.testing.files import FaultyFiles
from cometmq_plugins.commitlog import CommitLogOptions, CommitLogPlugin
from cometmq_plugins.segments.files import Entry
from cometmq_plugins.segments.read_ahead import ReadAhead

T = TypeVar("T")
KIB, MIB = 1 << 10, 1 << 20
PIECE = 256 * KIB
LIMIT = 8 * MIB


class SlowThreads(InlineThreads):
    """Threads that do nothing until they are let."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def run(self, function: Callable[[], T]) -> T:
        await self.gate.wait()
        return function()


class ColdFile:
    """A file of which nothing is in the page cache at first, that tells what was asked of it."""

    def __init__(self) -> None:
        self.cached: set[int] = set()
        """Numbers of the pieces that are."""
        self.looked = 0
        self.missed: list[int] = []
        """Where a look on the loop found nothing."""
        self.asked: list[tuple[int, int]] = []
        """What was read ahead: start and size."""
        self.error: OSError | None = None

    def load(self, at: int, size: int) -> None:
        self.cached.update(range(at // PIECE, -(-(at + size) // PIECE)))

    def read_now(self, at: int, size: int) -> bytes | None:
        self.looked += 1
        if set(range(at // PIECE, -(-(at + size) // PIECE))) <= self.cached:
            return bytes(size)
        self.missed.append(at)
        return None

    def read_ahead(self, at: int, size: int) -> None:
        if self.error is not None:
            raise self.error
        self.asked.append((at, size))
        self.load(at, size)

    def __getattr__(self, name: str) -> Any:  # the rest of a `File`, which nobody may use here
        raise AssertionError(f"{name} was used")


def entry(size: int) -> Entry:
    return Entry(7 * MIB, "/data/log/7.seg", size)


async def go_through(
    ahead: ReadAhead, segment: Entry, file: ColdFile, places: Iterable[int], size: int = PIECE
) -> None:
    """Read as the broker does: on the loop, or what is not there in a thread."""
    for at in places:
        if ahead.read_now(segment, file, at, size) is None:
            file.load(at, size)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def test_a_reader_from_the_start_misses_twice() -> None:
    file, ahead = ColdFile(), ReadAhead(InlineThreads(), LIMIT)
    segment = entry(64 * MIB)
    asyncio.run(go_through(ahead, segment, file, range(0, 64 * MIB, PIECE)))
    assert file.missed == [0, PIECE]
    ends = [start + size for start, size in file.asked]
    assert [start for start, _ in file.asked] == [PIECE, *ends[:-1]]
    assert ends[-1] == 64 * MIB
    assert max(size for _, size in file.asked) == LIMIT


def test_queues_that_are_read_in_turn_are_one_stream() -> None:
    """Four queues, batch by batch in the log; a fetch gets four batches of one queue."""
    file, ahead = ColdFile(), ReadAhead(InlineThreads(), LIMIT)
    places = [
        at + queue * PIECE + batch * 4 * PIECE
        for at in range(0, 64 * MIB, 16 * PIECE)
        for queue in range(4)
        for batch in range(4)
    ]
    asyncio.run(go_through(ahead, entry(64 * MIB), file, places))
    assert len(file.missed) <= 8
    assert all(at < 8 * MIB for at in file.missed)


def test_what_is_on_its_way_is_not_looked_for_on_the_loop() -> None:
    async def check() -> None:
        threads = SlowThreads()
        file, ahead = ColdFile(), ReadAhead(threads, LIMIT)
        segment = entry(64 * MIB)
        await go_through(ahead, segment, file, range(0, MIB, PIECE))
        assert file.missed == [0, PIECE]
        assert file.looked == 2
        threads.gate.set()
        await asyncio.sleep(0.01)
        await go_through(ahead, segment, file, range(MIB // 2, MIB, PIECE))
        assert file.looked == 4
        assert len(file.missed) == 2

    asyncio.run(check())


def test_a_few_batches_here_and_there_ask_for_little() -> None:
    """One KiB of 16 is wanted, or a batch in a MiB: it isn't worth bringing the rest."""
    near, far = ColdFile(), ColdFile()
    ahead = ReadAhead(InlineThreads(), LIMIT)
    places = range(0, 64 * MIB, 16 * KIB)
    asyncio.run(go_through(ahead, entry(64 * MIB), near, places, KIB))
    asyncio.run(go_through(ahead, entry(64 * MIB), far, range(0, 64 * MIB, MIB)))
    assert near.asked == far.asked == []


def test_who_reads_what_is_in_memory_asks_for_nothing() -> None:
    file, ahead = ColdFile(), ReadAhead(InlineThreads(), LIMIT)
    file.load(0, 64 * MIB)
    asyncio.run(go_through(ahead, entry(64 * MIB), file, range(0, 64 * MIB, PIECE)))
    assert file.asked == []


def test_a_stream_ends_where_the_segment_ends() -> None:
    """The active segment's end is always in memory: who has arrived there costs nothing more."""
    file, ahead = ColdFile(), ReadAhead(InlineThreads(), LIMIT)
    segment = entry(16 * MIB)
    segment.end = segment.base + 3 * MIB  # the rest is prepared space
    asyncio.run(go_through(ahead, segment, file, range(0, 3 * MIB, PIECE)))
    assert sum(size for _, size in file.asked) == 3 * MIB - PIECE
    segment.end += MIB
    file.load(3 * MIB, MIB)
    asked = len(file.asked)
    asyncio.run(go_through(ahead, segment, file, range(3 * MIB, 4 * MIB, PIECE)))
    assert len(file.asked) == asked


def test_segments_have_streams_of_their_own() -> None:
    file, ahead = ColdFile(), ReadAhead(InlineThreads(), LIMIT)
    other = ColdFile()
    first, second = entry(16 * MIB), entry(16 * MIB)

    async def both() -> None:
        for at in range(0, 16 * MIB, PIECE):
            await go_through(ahead, first, file, [at])
            await go_through(ahead, second, other, [at])

    asyncio.run(both())
    assert file.missed == other.missed == [0, PIECE]


def test_not_all_threads_read_ahead() -> None:
    """Whoever finds no room asks with his next read."""

    async def check() -> None:
        threads = SlowThreads()
        ahead = ReadAhead(threads, LIMIT)
        readers = [(entry(16 * MIB), ColdFile()) for _ in range(5)]
        for segment, file in readers:
            await go_through(ahead, segment, file, [0, PIECE])
        assert len(asyncio.all_tasks()) == 3
        threads.gate.set()
        await asyncio.sleep(0.01)
        assert [len(file.asked) for _, file in readers] == [1, 1, 0, 0, 0]
        for segment, file in readers[2:]:
            await go_through(ahead, segment, file, [2 * PIECE])
        assert [len(file.asked) for _, file in readers] == [1] * 5

    asyncio.run(check())


@pytest.mark.parametrize(("option", "expected"), [(MIB, [(1, MIB + 1)]), (0, [])])
def test_the_storage_reads_through_it(
    option: int, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(MemoryFile, "read_ahead", lambda _, *stretch: asked.append(stretch))

    async def check() -> None:
        files = FaultyFiles()
        options = CommitLogOptions(read_ahead_bytes=option)
        storage = CommitLogPlugin(options).storage(VirtualEnvironment(files=files), "/data")
        storage.open()
        storage.begin(0)
        storage.write(0, [bytes(2 * MIB)])
        files.cold = True
        assert [storage.read_now(at, 1) for at in range(3)] == [None] * 3
        await asyncio.sleep(0.01)
        storage.close()

    asyncio.run(check())
    assert asked == expected


def test_it_can_be_left_to_the_system() -> None:
    file, ahead = ColdFile(), ReadAhead(InlineThreads(), 0)
    asyncio.run(go_through(ahead, entry(4 * MIB), file, range(0, 4 * MIB, PIECE)))
    assert file.asked == []
    assert len(file.missed) == 16


def test_a_disk_that_refuses_is_read_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    file, ahead = ColdFile(), ReadAhead(InlineThreads(), LIMIT)
    file.error = OSError(errno.EIO, "Input/output error")
    with caplog.at_level(logging.DEBUG, "cometmq.storage"):
        asyncio.run(go_through(ahead, entry(4 * MIB), file, range(0, 4 * MIB, PIECE)))
    assert len(file.cached) == 16
    assert "reading ahead in /data/log/7.seg failed: [Errno 5]" in caplog.text


def test_closing_leaves_nothing_behind() -> None:
    async def check() -> None:
        file, ahead = ColdFile(), ReadAhead(SlowThreads(), LIMIT)
        segment = entry(4 * MIB)
        assert ahead.read_now(segment, file, 0, PIECE) is None
        assert ahead.read_now(segment, file, PIECE, PIECE) is None
        assert len(asyncio.all_tasks()) == 2
        ahead.close()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        assert file.asked == []

    asyncio.run(check())


def test_files_in_memory_have_it_at_hand() -> None:
    files = MemoryFiles()
    files.make_folder("/data")
    file = files.open("/data/f", create=True)
    file.write(0, [b"abc"])
    file.read_ahead(0, 3)
    assert file.read_now(0, 3) == b"abc"
