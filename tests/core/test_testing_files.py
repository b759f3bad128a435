"""The test kit's files and clock do what they promise, since other tests rely on it."""

from __future__ import annotations

import asyncio
import errno
import threading
from random import Random

import pytest

from cometmq.environment import Environment
from cometmq.memory_files import MemoryFiles
from cometmq.testing.clock import VirtualClock
from cometmq.testing.environment import InlineThreads, SeededRandom, VirtualEnvironment
from cometmq.testing.files import SECTOR_BYTES, FaultyFiles, PowerCut

PATH = "/d/f"


@pytest.fixture
def files() -> FaultyFiles:
    files = FaultyFiles()
    files.make_folder("/d")
    return files


# --- power cuts ---------------------------------------------------------------------------------


def test_a_crash_takes_what_was_not_synced(files: FaultyFiles) -> None:
    file = files.open(PATH, create=True)
    file.write(0, [b"abc"])
    assert files.crash().list("/d") == []
    file.sync_blocking()
    assert files.crash().list("/d") == []
    files.sync_folder("/d")
    file.write(3, [b"def"])
    file.truncate(5)
    assert files.crash().read_file(PATH) == b"abc"
    file.sync_blocking()
    assert files.crash().read_file(PATH) == b"abcde"
    assert files.read_file(PATH) == b"abcde"


def test_a_name_may_survive_without_the_bytes(files: FaultyFiles) -> None:
    files.open(PATH, create=True).write(0, [b"abc"])
    files.sync_folder("/d")
    assert files.crash().read_file(PATH) == b""


def test_renames_and_unlinks_need_the_folders_sync(files: FaultyFiles) -> None:
    files.write_file(PATH, [b"abc"])
    files.rename(PATH, "/d/g")
    assert files.crash().list("/d") == ["f"]
    files.sync_folder("/d")
    assert files.crash().list("/d") == ["g"]
    files.unlink("/d/g")
    assert files.crash().list("/d") == ["g"]
    files.sync_folder("/d")
    assert files.crash().list("/d") == []


def test_a_whole_file_is_the_old_or_the_new_one(files: FaultyFiles) -> None:
    files.write_file(PATH, [b"old"])
    for operations in range(20):
        files = files.crash()
        files.cut_power_after(operations)
        try:
            files.write_file(PATH, [b"newer"])
        except PowerCut:
            assert files.crash(Random(operations)).read_file(PATH) in (b"old", b"newer")
        else:
            assert files.crash().read_file(PATH) == b"newer"
            return
    raise AssertionError("the write never came to its end")


def test_dice_tear_what_was_not_synced_at_sectors(files: FaultyFiles) -> None:
    file = files.open(PATH, create=True)
    file.write(0, [b"a" * 4 * SECTOR_BYTES])
    file.sync_blocking()
    files.sync_folder("/d")
    file.write(100, [b"b" * 3 * SECTOR_BYTES])
    seen = set()
    for seed in range(100):
        left = files.crash(Random(seed)).read_file(PATH)
        assert left == files.crash(Random(seed)).read_file(PATH)
        assert len(left) == 4 * SECTOR_BYTES
        for at in range(0, len(left), SECTOR_BYTES):
            sector = left[at : at + SECTOR_BYTES]
            assert sector in (b"a" * SECTOR_BYTES, file.read(at, SECTOR_BYTES))
        seen.add(left)
    assert len(seen) > 8


def test_power_goes_at_the_chosen_change_and_stays_away(files: FaultyFiles) -> None:
    file = files.open(PATH, create=True)
    files.cut_power_after(1)
    file.write(0, [b"a"])
    for _ in range(2):
        with pytest.raises(PowerCut):
            file.write(1, [b"b"])
    assert file.read(0, 9) == b"a"


def test_a_sync_takes_with_it_what_was_there_when_it_was_called(files: FaultyFiles) -> None:
    file = files.open(PATH, create=True)
    files.sync_folder("/d")

    async def run() -> None:
        files.hold_syncs()
        file.write(0, [b"abc"])
        first = asyncio.ensure_future(file.sync())
        await asyncio.sleep(0.001)
        file.write(3, [b"def"])
        second = asyncio.ensure_future(file.sync())
        await asyncio.sleep(0.001)
        assert files.held == 2 and not first.done()
        with pytest.raises(RuntimeError, match="held back"):
            file.sync_blocking()
        files.release_syncs(1)
        await first
        assert files.crash().read_file(PATH) == b"abc"
        assert not second.done()
        files.release_syncs()
        await second
        await file.sync()
        assert files.crash().read_file(PATH) == b"abcdef"

    asyncio.run(run())
    assert files.synced == 3


# --- faults -------------------------------------------------------------------------------------


def test_a_full_disk_takes_a_part_of_a_write() -> None:
    files = FaultyFiles(capacity_bytes=10)
    files.make_folder("/d")
    file = files.open(PATH, create=True)
    with pytest.raises(OSError) as caught:
        file.write(0, [b"12345", b"67890123"])
    assert caught.value.errno == errno.ENOSPC
    assert file.read(0, 99) == b"1234567890"
    file.write(0, [b"overwriting is free"[:10]])
    with pytest.raises(OSError):
        file.allocate(10, 1)
    assert files.space("/") == (10, 0)
    files.capacity_bytes = 20
    file.allocate(10, 10)
    files.unlink(PATH)
    assert files.space("/") == (20, 20)


def test_faults_to_order(files: FaultyFiles) -> None:
    one, two = files.open("/d/one", create=True), files.open("/d/two", create=True)
    files.fail("write", errno.EIO, name="two", skip=1, times=2, after_bytes=2)
    for _ in range(3):
        one.write(0, [b"abc"])
    two.write(0, [b"abc"])
    for _ in range(2):
        with pytest.raises(OSError, match="/d/two"):
            two.write(3, [b"d", b"efg"])
    assert two.read(0, 9) == b"abcde"
    two.write(3, [b"xyz"])
    files.fail("read", errno.EIO, times=None)
    for _ in range(5):
        with pytest.raises(OSError):
            one.read(0, 1)
    files.mend()
    assert one.read(0, 1) == b"a"


def test_every_operation_can_fail(files: FaultyFiles) -> None:
    file = files.open(PATH, create=True)
    for operation, call in (
        ("create", lambda: files.open("/d/new", create=True)),
        ("open", lambda: files.open(PATH)),
        ("allocate", lambda: file.allocate(0, 5)),
        ("truncate", lambda: file.truncate(0)),
        ("sync", lambda: file.sync_blocking()),
        ("sync", lambda: asyncio.run(file.sync())),
        ("rename", lambda: files.rename(PATH, "/d/new")),
        ("unlink", lambda: files.unlink(PATH)),
        ("sync_folder", lambda: files.sync_folder("/d")),
    ):
        files.fail(operation, errno.EIO)  # type: ignore[arg-type]
        with pytest.raises(OSError, match="Input/output error"):
            call()
    assert files.list("/d") == ["f"]


def test_memory_is_taken_by_what_was_written_only() -> None:
    files = MemoryFiles()
    files.make_folder("/d")
    file = files.open(PATH, create=True)
    file.allocate(0, 1 << 30)
    file.write(5, [b"abc"])
    assert file.size() == 1 << 30
    assert file.read((1 << 30) - 3, 10) == bytes(3)
    assert file.read(4, 6) == b"\0abc\0\0"


# --- clock and the rest -------------------------------------------------------------------------


def test_timers_fire_in_order_and_each_at_its_time() -> None:
    async def run() -> None:
        clock = VirtualClock(wall_ms=5_000, monotonic_s=10.0)
        seen: list[tuple[str, float]] = []
        for name, at in (("c", 13.0), ("a", 11.0), ("b", 12.0), ("b2", 12.0), ("d", 14.5)):
            clock.call_at(at, lambda name=name: seen.append((name, clock.monotonic_s())))  # type: ignore[misc]
        clock.call_at(11.5, lambda: seen.append(("never", 0))).cancel()
        clock.advance(4.0)
        assert seen == [("a", 11.0), ("b", 12.0), ("b2", 12.0), ("c", 13.0)]
        assert (clock.monotonic_s(), clock.wall_ms()) == (14.0, 9_000)

    asyncio.run(run())


def test_sleepers_wake_while_time_goes_on() -> None:
    async def run() -> None:
        clock = VirtualClock(monotonic_s=0.0)
        seen: list[float] = []

        async def tick() -> None:
            while True:
                await clock.sleep(2.0)
                seen.append(clock.monotonic_s())

        task = asyncio.ensure_future(tick())
        await clock.sleep(0)
        await clock.run_for(7.0)
        assert seen == [2.0, 4.0, 6.0]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await clock.run_for(10.0)
        assert len(seen) == 3

    asyncio.run(run())


def test_the_wall_clock_jumps_alone() -> None:
    clock = VirtualClock(wall_ms=10_000_000, monotonic_s=5.0)
    clock.step_wall(-3_600_000)
    assert (clock.wall_ms(), clock.monotonic_s()) == (6_400_000, 5.0)
    clock.advance(1.5)
    assert (clock.wall_ms(), clock.monotonic_s()) == (6_401_500, 6.5)


def test_the_clock_can_be_moved_from_another_thread() -> None:
    async def run() -> None:
        clock = VirtualClock()
        mover = threading.Thread(target=lambda: clock.advance(60.0))
        sleeper = asyncio.ensure_future(clock.sleep(59.0))
        await asyncio.sleep(0)
        mover.start()
        await asyncio.wait_for(sleeper, 10)
        mover.join()

    asyncio.run(run())


def test_a_virtual_environment_repeats_itself() -> None:
    first, second = SeededRandom(5), SeededRandom(5)
    assert first.bytes(8) == second.bytes(8) != SeededRandom(6).bytes(8)
    assert first.uniform(1, 2) == second.uniform(1, 2)

    async def run() -> None:
        threads = InlineThreads()
        assert await threads.run(threading.get_ident) == threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
        threads.start("mq-test", lambda: None).join(10)
        threads.close()

    asyncio.run(run())
    environment: Environment = VirtualEnvironment()
    assert environment.files.list("/") == []
