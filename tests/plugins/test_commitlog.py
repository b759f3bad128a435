"""`commitlog` keeps the storage contract, on real files and on files that misbehave."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from cometmq.environment import Environment
from cometmq.errors import DiskRefused, LogError, LogLocked, LogStopped, NoSpace
from cometmq.interfaces import Storage
from cometmq.real_environment import RealEnvironment
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.files import FaultyFiles, Operation, PowerCut
from cometmq.testing.storage_bench import append, bases, pattern
from cometmq.testing.storage_contract import StorageContract
from cometmq_plugins.commitlog import CommitLogOptions, CommitLogPlugin

STEP = 4096
RESERVE = 16_384


def commitlog(environment: Environment, folder: str) -> Storage:
    options = CommitLogOptions(allocate_step_bytes=STEP, reserve_bytes=RESERVE)
    return CommitLogPlugin(options).storage(environment, folder)


class TestOnRealFiles(StorageContract):
    @pytest.fixture(autouse=True)
    def environment(self) -> Iterator[None]:
        self._environment = RealEnvironment()
        yield
        self._environment.threads.close()

    def make(self, folder: str) -> Storage:
        return commitlog(self._environment, folder)


class TestOnVirtualFiles(StorageContract):
    @pytest.fixture(autouse=True)
    def environment(self) -> None:
        self._environment = VirtualEnvironment()

    def make(self, folder: str) -> Storage:
        return commitlog(self._environment, folder)


def on(files: FaultyFiles) -> Storage:
    """A storage on these files, opened."""
    storage = commitlog(VirtualEnvironment(files=files), "/data")
    storage.open()
    return storage


def begun(files: FaultyFiles) -> Storage:
    storage = on(files)
    storage.begin(0)
    return storage


# --- names and sizes ----------------------------------------------------------------------------


def test_the_folder_has_the_promised_names() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, b"abc")
    storage.seal(3)
    storage.begin(3)
    storage.write_side(0, "queue", [b"index"])
    storage.keep_node_id(b"12345678")
    storage.cut(2)
    assert files.list("/data") == ["cut", "lock", "log", "node"]
    assert files.list("/data/log") == [f"{0:020d}.seg", "reserve"]
    assert files.list("/data/cut") == [f"{2:020d}"]
    assert files.read_file("/data/cut/00000000000000000002") == b"c"


def test_foreign_names_are_left_alone() -> None:
    files = FaultyFiles()
    files.make_folder("/data/log/lost+found")
    files.make_folder("/data/lost+found")
    files.write_file("/data/log/notes.txt", [b"x"])
    storage = begun(files)
    assert bases(storage.segments()) == [0]
    assert "notes.txt" in files.list("/data/log")


def test_space_is_taken_in_steps() -> None:
    storage = begun(FaultyFiles())
    assert storage.segments()[0].size == STEP
    storage.allocate(STEP)
    assert storage.segments()[0].size == STEP
    storage.allocate(STEP + 1)
    assert storage.segments()[0].size == 2 * STEP


def test_what_a_crash_left_unfinished_goes_when_writing_begins() -> None:
    files = FaultyFiles()
    storage = begun(files)
    for name in (f"{0:020d}.queue.tmp", f"{77:020d}.queue", f"{77:020d}.queue.tmp"):
        files.write_file(f"/data/log/{name}", [b"x"])
    append(storage, 0, b"abc")
    storage.write_side(0, "queue", [b"index"])
    files.write_file(f"/data/log/{0:020d}.queue.tmp", [b"x"])
    storage.close()
    again = on(files)
    assert f"{77:020d}.queue" in files.list("/data/log")
    again.begin(3)
    assert [name for name in files.list("/data/log") if "queue" in name] == [f"{0:020d}.queue"]


def test_a_damaged_node_id_is_named() -> None:
    files = FaultyFiles()
    storage = on(files)
    files.write_file("/data/node", [b"\0\0\0"])
    with pytest.raises(LogError, match="/data/node is not a node id"):
        storage.node_id()


def test_a_copy_of_a_cut_has_each_byte_at_its_place() -> None:
    files = FaultyFiles()
    storage = begun(files)
    first, second = pattern(3_000), pattern(2_000, 5)
    append(storage, 0, first)
    storage.seal(3_000)
    storage.begin(3_000)
    append(storage, 3_000, second)
    kept = storage.cut(1_000)
    assert files.read_file(kept) == first[1_000:] + second


# --- a full disk --------------------------------------------------------------------------------


def full(files: FaultyFiles) -> None:
    total, free = files.space("/")
    files.capacity_bytes = total - free


@pytest.mark.parametrize("operation", ["create", "allocate"])
def test_a_segment_that_the_disk_refuses_leaves_no_file_and_the_old_one_active(
    operation: Operation,
) -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, b"abc")
    before = files.list("/data/log")
    files.fail(operation, errno.EIO, name=".seg")
    with pytest.raises(DiskRefused, match="check the disk"):
        storage.begin(3)
    assert files.list("/data/log") == before
    append(storage, 3, b"def")
    storage.begin(6)
    assert storage.read(0, 10) == b"abcdef"


def test_without_space_nothing_changes() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, b"abc")
    full(files)
    with pytest.raises(NoSpace, match="no room"):
        storage.allocate(STEP + 1)
    assert storage.segments()[0].size == STEP
    append(storage, 3, b"d")


def test_the_last_space_is_used_in_less_than_steps() -> None:
    files = FaultyFiles()
    storage = commitlog_with_big_step(files)
    full(files)
    files.capacity_bytes += 8_192
    storage.allocate(65_536 + 100)
    assert storage.segments()[0].size == 65_536 + 4_096
    with pytest.raises(NoSpace):
        storage.allocate(65_536 + 10_000)


def commitlog_with_big_step(files: FaultyFiles) -> Storage:
    options = CommitLogOptions(allocate_step_bytes=65_536, reserve_bytes=RESERVE)
    storage = CommitLogPlugin(options).storage(VirtualEnvironment(files=files), "/data")
    storage.open()
    storage.begin(0)
    return storage


def test_urgent_space_comes_from_the_reserve() -> None:
    files = FaultyFiles()
    storage = begun(files)
    full(files)
    with pytest.raises(NoSpace):
        storage.allocate(STEP + 1)
    storage.allocate(STEP + 1, urgent=True)
    assert storage.segments()[0].size == 2 * STEP
    storage.write(0, [pattern(STEP + 1)])
    with pytest.raises(NoSpace):
        storage.allocate(10 * RESERVE, urgent=True)


def test_a_roll_on_a_full_disk_takes_the_reserve() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, pattern(STEP))
    full(files)
    storage.begin(STEP)
    assert "reserve" not in files.list("/data/log")
    assert storage.segments()[-1].size == RESERVE
    storage.write(STEP, [pattern(RESERVE)])
    with pytest.raises(NoSpace):
        storage.begin(STEP + RESERVE)
    assert bases(storage.segments()) == [0, STEP]
    assert len(files.list("/data/log")) == 2


def test_a_start_on_a_full_disk_takes_the_reserve() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, pattern(STEP))
    storage.close()
    full(files)
    again = on(files)
    again.begin(STEP)
    append(again, STEP, b"started")
    assert again.read(STEP, 99) == b"started"


def test_a_begin_without_any_space_leaves_the_active_segment_as_it_is() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, pattern(STEP - 1))
    files.unlink("/data/log/reserve")
    full(files)
    with pytest.raises(NoSpace):
        storage.begin(STEP - 1)
    storage.write(STEP - 1, [b"x"])
    assert storage.read(0, 2 * STEP) == pattern(STEP - 1) + b"x"


def test_a_start_without_reserve_takes_what_little_there_is() -> None:
    files = FaultyFiles()
    options = CommitLogOptions(allocate_step_bytes=4 << 20, reserve_bytes=0)
    storage = CommitLogPlugin(options).storage(VirtualEnvironment(files=files), "/data")
    storage.open()
    files.capacity_bytes = 3 << 20
    storage.begin(0)
    assert storage.segments()[0].size == 1 << 20
    storage.allocate((3 << 20) - 10)
    assert storage.segments()[0].size == 3 << 20


def test_the_reserve_is_made_again_when_there_is_room() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, pattern(STEP))
    full(files)
    storage.begin(STEP)
    assert "reserve" not in files.list("/data/log")
    files.capacity_bytes += RESERVE + 2 * STEP
    storage.trim(STEP)
    file = files.open_for_reading("/data/log/reserve")
    assert file.size() == RESERVE
    assert file.read(0, RESERVE) == bytes(RESERVE)


def test_what_a_trim_deleted_before_it_failed_is_told_by_the_next_one() -> None:
    files = FaultyFiles()
    storage = begun(files)
    for base in range(3):
        append(storage, base, b"x")
        storage.begin(base + 1)
    files.fail("unlink", errno.EACCES, name=".seg", skip=1)
    with pytest.raises(DiskRefused, match="can't be deleted"):
        storage.trim(3)
    assert bases(storage.segments()) == [3]
    assert bases(storage.trim(3)) == [0, 1, 2]
    assert storage.trim(3) == []


def test_a_piece_of_the_reserve_is_made_up_for() -> None:
    files = FaultyFiles()
    storage = begun(files)
    full(files)
    storage.allocate(STEP + 1, urgent=True)
    storage.write(0, [pattern(STEP + 1)])
    assert files.open_for_reading("/data/log/reserve").size() < RESERVE
    files.capacity_bytes += RESERVE + 4 * STEP
    storage.begin(STEP + 1)
    assert files.open_for_reading("/data/log/reserve").size() == RESERVE


def test_a_reserve_taken_by_a_segment_never_comes_back_written() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, pattern(STEP))
    storage.sync_blocking()
    full(files)
    storage.begin(STEP)
    storage.write(STEP, [b"in the reserve"])
    after = files.crash(Random(3))
    assert "reserve" not in after.list("/data/log")
    assert f"{STEP:020d}.seg" in after.list("/data/log")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_reserve_whose_new_name_can_not_be_synced_for_lack_of_files_is_put_off(
    number: int,
) -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, pattern(STEP - 1))
    full(files)
    files.fail("sync_folder", number)
    with pytest.raises(DiskRefused, match="raise the limit"):
        storage.begin(STEP - 1)
    assert "reserve" not in files.list("/data/log")
    assert bases(storage.segments()) == [0]
    append(storage, STEP - 1, b"x")
    storage.begin(STEP)
    assert files.list("/data/log") == [f"{base:020d}.seg" for base in (0, STEP)]
    append(storage, STEP, b"y")
    assert storage.read(STEP - 1, 1) + storage.read(STEP, 9) == b"xy"


def test_a_failed_sync_of_the_name_that_the_reserve_got_is_the_end() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, pattern(STEP - 1))
    full(files)
    files.fail("sync_folder", errno.EIO)
    with pytest.raises(LogStopped, match="a sync of the log failed"):
        storage.begin(STEP - 1)
    with pytest.raises(LogStopped):
        append(storage, STEP - 1, b"x")
    storage.close()
    again = on(files)
    again.begin(STEP - 1)
    assert again.read(0, STEP) == pattern(STEP - 1)


def test_a_cut_that_can_not_be_kept_is_not_made() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, b"abc")
    full(files)
    with pytest.raises(LogError, match="can't be kept in /data/cut"):
        storage.cut(1)
    assert storage.read(0, 9) == b"abc"
    assert files.list("/data/cut") == []


# --- errors of the disk -------------------------------------------------------------------------


def test_after_a_failed_sync_nothing_is_written_any_more() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, b"abc")
    files.fail("sync", errno.EIO)

    async def run() -> None:
        with pytest.raises(OSError, match="Input/output error"):
            await storage.sync()
        with pytest.raises(LogStopped):
            await storage.sync()

    asyncio.run(run())
    calls = (
        lambda: storage.write(3, [b"d"]),
        lambda: storage.sync_blocking(),
        lambda: storage.begin(3),
        lambda: storage.seal(3),
        lambda: storage.cut(1),
        lambda: storage.trim(1),
        lambda: storage.allocate(10 * STEP),
    )
    for call in calls:
        with pytest.raises(LogStopped, match="a sync of the log failed"):
            call()
    assert storage.read(0, 9) == b"abc"


@pytest.mark.parametrize("operation", ["sync", "sync_folder"])
def test_a_failed_blocking_sync_stops_as_well(operation: str) -> None:
    files = FaultyFiles()
    storage = begun(files)
    files.fail("sync" if operation == "sync" else "sync_folder", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        storage.sync_blocking()
    with pytest.raises(LogStopped):
        storage.write(0, [b"a"])


def test_a_failed_write_can_be_cut_away() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, b"abc")
    files.fail("write", errno.EIO, after_bytes=2)
    with pytest.raises(OSError, match="Input/output error"):
        storage.write(3, [b"defg"])
    assert storage.read(0, 99) == b"abc"
    kept = storage.cut(3)
    assert files.read_file(kept) == b"de"
    storage.begin(3)
    append(storage, 3, b"x")
    assert storage.read(0, 9) + storage.read(3, 9) == b"abcx"


def test_a_read_error_reaches_the_caller() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, b"abc")
    files.fail("read", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        storage.read(0, 3)
    assert storage.read(0, 3) == b"abc"


def test_a_cold_cache_gives_none() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, b"abc")
    files.cold = True
    assert storage.read_now(0, 3) is None
    assert storage.read(0, 3) == b"abc"


def test_a_failed_rewrite_stops_the_start() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, b"abc")
    storage.close()
    again = on(files)
    files.fail("sync", errno.EIO)
    with pytest.raises(LogError, match="could not be written again"):
        again.rewrite(0, 3)
    with pytest.raises(LogStopped):
        again.begin(3)


def test_bytes_behind_the_next_name_are_no_prepared_space() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, b"abcdef")
    storage.close()
    files.rename(f"/data/log/{0:020d}.seg", f"/data/log/{100:020d}.seg")
    files.write_file(f"/data/log/{98:020d}.seg", [b"xyz"])
    again = on(files)
    with pytest.raises(LogError, match="behind position 100"):
        again.begin(106)
    assert len(files.list("/data/log")) == 3


def test_a_failed_open_names_the_folder_and_leaves_no_lock() -> None:
    files = FaultyFiles()
    begun(files).close()
    files.fail("open", errno.EACCES, name=".seg")
    storage = commitlog(VirtualEnvironment(files=files), "/data")
    with pytest.raises(LogError, match="/data can't be used"):
        storage.open()
    storage.open()


def test_there_must_be_a_log_to_be_inspected() -> None:
    storage = commitlog(VirtualEnvironment(), "/nowhere")
    with pytest.raises(LogError, match="/nowhere holds no log"):
        storage.open(read_only=True)


# --- power cuts ---------------------------------------------------------------------------------


def whole_log(files: FaultyFiles) -> bytes:
    """What a start finds, and that it finds no hole."""
    storage = commitlog(VirtualEnvironment(files=files), "/data")
    found = storage.open()
    data = b""
    for segment in found:
        data = data[: segment.base].ljust(segment.base, b"\0")
        data += storage.read(segment.base, segment.size)
    storage.close()
    return data


def work(files: FaultyFiles, synced: list[int], data: bytes) -> None:
    """Write `data`, rolling and syncing on the way; `synced` tells how far it is safe."""
    storage = begun(files)
    position = 0
    for number, size in enumerate((300, 2_000, 700, 5_000, 40, 900, 60)):
        append(storage, position, data[position : position + size])
        position += size
        if number % 3 == 2:
            storage.begin(position)
        if number % 2:
            storage.sync_blocking()
            synced.append(position)


def test_what_was_synced_survives_a_power_cut_at_any_point() -> None:
    data = pattern(9_000)
    for operations in range(200):
        files = FaultyFiles()
        files.cut_power_after(operations)
        synced = [0]
        try:
            work(files, synced, data)
        except PowerCut:
            pass
        else:
            assert operations > 20
            return
        for seed in range(6):
            after = files.crash(Random(seed) if seed else None)
            assert whole_log(after)[: synced[-1]] == data[: synced[-1]]
    raise AssertionError("the work never came to its end")


def test_a_cut_leaves_no_hole_whenever_the_power_goes() -> None:
    data = pattern(4_000)
    for operations in range(100):
        files = FaultyFiles()
        storage = begun(files)
        for position in range(0, 4_000, 1_000):
            append(storage, position, data[position : position + 1_000])
            storage.begin(position + 1_000)
        storage.sync_blocking()
        files.cut_power_after(operations)
        try:
            storage.cut(500)
        except PowerCut:
            pass
        else:
            assert whole_log(files.crash()) == data[:500]
            return
        for seed in range(6):
            after = files.crash(Random(seed) if seed else None)
            left = whole_log(after).rstrip(b"\0")
            assert left == data[: len(left)] and len(left) >= 500
    raise AssertionError("the cut never came to its end")


def test_what_is_cut_is_kept_before_anything_goes() -> None:
    data = pattern(2_000)
    for operations in range(100):
        files = FaultyFiles()
        storage = begun(files)
        append(storage, 0, data)
        storage.sync_blocking()
        files.cut_power_after(operations)
        try:
            storage.cut(500)
        except PowerCut:
            pass
        else:
            return
        after = files.crash(Random(operations))
        left = whole_log(after).rstrip(b"\0")
        if left != data:
            assert after.read_file("/data/cut/00000000000000000500") == data[500:]
    raise AssertionError("the cut never came to its end")


def test_a_sync_covers_only_what_was_there_when_it_was_called() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, b"abc")

    async def run() -> None:
        files.hold_syncs()
        sync = asyncio.ensure_future(storage.sync())
        while not files.held:
            await asyncio.sleep(0)
        append(storage, 3, b"def")
        files.release_syncs()
        await sync
        assert whole_log(files.crash()).rstrip(b"\0") == b"abc"
        await storage.sync()

    asyncio.run(run())
    assert whole_log(files.crash()).rstrip(b"\0") == b"abcdef"


def test_two_syncs_at_once_do_not_rely_on_each_other() -> None:
    files = FaultyFiles()
    storage = begun(files)
    append(storage, 0, b"abc")

    async def run() -> None:
        files.hold_syncs()
        first = asyncio.ensure_future(storage.sync())
        while not files.held:
            await asyncio.sleep(0)
        files.holding = False
        await storage.sync()
        assert whole_log(files.crash()).rstrip(b"\0") == b"abc"
        files.release_syncs()
        await first

    asyncio.run(run())


# --- real processes -----------------------------------------------------------------------------


def test_the_holder_of_a_folder_is_named(tmp_path: Path) -> None:
    environment = RealEnvironment()
    first, second = (commitlog(environment, str(tmp_path)) for _ in range(2))
    first.open()
    try:
        with pytest.raises(LogLocked, match=f"{tmp_path} is in use by process {os.getpid()};"):
            second.open()
    finally:
        first.close()


def test_an_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    storage = commitlog(RealEnvironment(), str(tmp_path / "file"))
    with pytest.raises(LogError, match="file can't be used"):
        storage.open()


def test_more_segments_than_open_files(tmp_path: Path) -> None:
    storage = commitlog(RealEnvironment(), str(tmp_path))
    storage.open()
    try:
        for position in range(150):
            storage.begin(position)
            append(storage, position, bytes([position]))
        storage.sync_blocking()
        before = len(os.listdir("/proc/self/fd"))
        for position in (*range(150), *range(149, -1, -1)):
            assert storage.read(position, 9) == bytes([position])
        assert len(os.listdir("/proc/self/fd")) <= before + 64
    finally:
        storage.close()
