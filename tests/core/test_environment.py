"""The real environment, and the promises that the file layers share."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq.environment import Buffer, Environment, Files
from cometmq.memory_files import MemoryFiles
from cometmq.real_environment import RealEnvironment, RealThreads
from cometmq.real_files import IOV_MAX, RealFiles
from cometmq.testing.files import FaultyFiles


@pytest.fixture
def environment() -> Iterator[Environment]:
    environment = RealEnvironment()
    yield environment
    environment.threads.close()


@pytest.fixture(params=["real", "memory", "faulty"])
def layer(request: pytest.FixtureRequest, environment: Environment) -> Files:
    made: dict[str, Callable[[], Files]] = {
        "real": lambda: environment.files,
        "memory": MemoryFiles,
        "faulty": FaultyFiles,
    }
    return made[request.param]()


# --- clock, chance, threads ---------------------------------------------------------------------


def test_the_clock_is_the_systems(environment: Environment) -> None:
    async def run() -> None:
        clock = environment.clock
        assert abs(clock.wall_ms() - time.time() * 1000) < 5_000
        before = clock.monotonic_s()
        called: list[float] = []
        clock.call_at(before + 0.02, lambda: called.append(clock.monotonic_s()))
        clock.call_at(before + 0.01, lambda: called.append(0.0)).cancel()
        clock.call_at(before - 100, lambda: called.append(-1.0))
        while len(called) < 2:
            await clock.sleep(0.005)
        assert called[0] == -1.0
        assert called[1] >= before + 0.02

    asyncio.run(run())


def test_chance_is_not_the_same_twice(environment: Environment) -> None:
    assert len({environment.random.bytes(8) for _ in range(50)}) == 50
    numbers = [environment.random.uniform(2.0, 3.0) for _ in range(50)]
    assert all(2.0 <= number <= 3.0 for number in numbers)
    assert len(set(numbers)) > 40


def test_work_runs_in_another_thread(environment: Environment) -> None:
    async def run() -> None:
        names = await asyncio.gather(
            *(environment.threads.run(threading.current_thread) for _ in range(8))
        )
        assert threading.current_thread() not in names
        with pytest.raises(ZeroDivisionError):
            await environment.threads.run(lambda: 1 // 0)

    asyncio.run(run())


def wait(event: threading.Event) -> None:
    assert event.wait(10)


def test_a_started_thread_does_not_hold_up_the_exit(environment: Environment) -> None:
    done = threading.Event()
    thread = environment.threads.start("mq-test", lambda: wait(done))
    assert thread.daemon and thread.name == "mq-test"
    done.set()
    thread.join(10)
    assert not thread.is_alive()


def test_handed_over_work_is_done_in_order_and_in_one_thread() -> None:
    threads = RealThreads()
    seen: list[tuple[int, int]] = []

    async def run() -> None:
        def work(number: int) -> Callable[[], int]:
            def note() -> int:
                seen.append((number, threading.get_ident()))
                return number

            return note

        results = await asyncio.gather(*(threads.hand_over(work(n)) for n in range(100)))
        assert results == list(range(100))
        with pytest.raises(KeyError, match="here"):
            await threads.hand_over(lambda: dict[str, int]()["here"])

    asyncio.run(run())
    asyncio.run(run())
    threads.close()
    assert [number for number, _ in seen] == 2 * list(range(100))
    assert threading.get_ident() not in {ident for _, ident in seen[:100]}
    assert len({ident for _, ident in seen[:100]}) == 1


def test_a_cancelled_caller_does_no_harm_to_the_next() -> None:
    threads = RealThreads()
    go = threading.Event()

    async def run() -> None:
        first = threads.hand_over(lambda: go.wait(10))
        second = threads.hand_over(lambda: "second")
        await asyncio.sleep(0)
        first.cancel()
        go.set()
        assert await second == "second"

    asyncio.run(run())
    threads.close()


def test_closing_ends_all_threads_and_descriptors() -> None:
    before = threading.active_count()
    open_before = len(os.listdir("/proc/self/fd"))
    threads = RealThreads()

    async def run() -> None:
        await threads.run(lambda: None)
        await threads.hand_over(lambda: None)
        threads.close()

    asyncio.run(run())
    assert threading.active_count() == before
    assert len(os.listdir("/proc/self/fd")) == open_before


# --- what all file layers promise ----------------------------------------------------------------


@pytest.fixture
def folder(layer: Files, tmp_path: Path) -> str:
    layer.make_folder(str(tmp_path / "a" / "b"))
    return str(tmp_path / "a" / "b")


def test_writes_and_reads_at_places(layer: Files, folder: str) -> None:
    file = layer.open(f"{folder}/f", create=True)
    file.write(0, [b"hello ", bytearray(b"big "), memoryview(b"world")])
    file.write(20, [b"!"])
    file.write(6, [b"BIG"])
    assert file.size() == 21
    assert file.read(0, 100) == b"hello BIG world\0\0\0\0\0!"
    assert file.read(6, 3) == b"BIG"
    assert file.read(21, 5) == b"" == file.read(500, 5)


def test_more_buffers_than_one_write_takes(layer: Files, folder: str) -> None:
    file = layer.open(f"{folder}/f", create=True)
    for count in (IOV_MAX - 1, IOV_MAX, IOV_MAX + 1, 3 * IOV_MAX + 5):
        parts = [bytes([number % 251]) * (number % 5) for number in range(count)]
        file.truncate(0)
        file.write(3, parts)
        assert file.read(3, 1 << 20) == b"".join(parts)


def test_allocated_space_is_zeros_and_keeps_what_is_there(layer: Files, folder: str) -> None:
    file = layer.open(f"{folder}/f", create=True)
    file.write(0, [b"abc"])
    file.allocate(2, 10_000)
    assert file.size() == 10_002
    assert file.read(0, 20_000) == b"abc" + bytes(9_999)
    file.allocate(0, 5)
    assert file.size() == 10_002


def test_truncating_cuts_and_extends(layer: Files, folder: str) -> None:
    file = layer.open(f"{folder}/f", create=True)
    file.write(0, [b"abcdef"])
    file.truncate(3)
    file.truncate(5)
    assert file.read(0, 10) == b"abc\0\0"
    file.write(4, [b"x"])
    assert file.read(0, 10) == b"abc\0x"


def test_read_now_gives_the_bytes_or_none(layer: Files, folder: str) -> None:
    file = layer.open(f"{folder}/f", create=True)
    file.write(0, [b"abcdef"])
    assert file.read_now(1, 3) in (b"bcd", None)
    assert file.read_now(4, 10) in (b"ef", None)


def test_reading_handles_can_not_write(layer: Files, folder: str) -> None:
    layer.open(f"{folder}/f", create=True).write(0, [b"abc"])
    file = layer.open_for_reading(f"{folder}/f")
    with pytest.raises(OSError):
        file.write(0, [b"x"])
    with pytest.raises(OSError):
        file.truncate(0)
    assert file.read(0, 9) == b"abc"


def test_syncs(layer: Files, folder: str) -> None:
    file = layer.open(f"{folder}/f", create=True)
    file.write(0, [b"abc"])
    file.sync_blocking()

    async def run() -> None:
        await asyncio.gather(*(file.sync() for _ in range(5)))

    asyncio.run(run())
    layer.sync_folder(folder)
    file.close()


def test_creating_never_takes_an_old_file(layer: Files, folder: str) -> None:
    layer.open(f"{folder}/f", create=True)
    with pytest.raises(FileExistsError):
        layer.open(f"{folder}/f", create=True)
    for missing in (layer.open, layer.open_for_reading, layer.read_file, layer.unlink):
        with pytest.raises(FileNotFoundError, match="nothing"):
            missing(f"{folder}/nothing")


def test_names(layer: Files, folder: str) -> None:
    assert layer.list(f"{folder}/nowhere") == []
    layer.write_file(f"{folder}/b", [b"one", b"two"])
    layer.write_file(f"{folder}/b", [b"three"])
    layer.write_file(f"{folder}/a", [])
    assert layer.list(folder) == ["a", "b"]
    assert layer.read_file(f"{folder}/b") == b"three"
    layer.rename(f"{folder}/b", f"{folder}/a")
    assert layer.list(folder) == ["a"]
    assert layer.read_file(f"{folder}/a") == b"three"
    assert layer.exists(f"{folder}/a") and layer.exists(folder)
    layer.unlink(f"{folder}/a")
    assert not layer.exists(f"{folder}/a")
    assert layer.list(os.path.dirname(folder)) == ["b"]


def test_a_lock_has_one_holder(layer: Files, folder: str) -> None:
    release = layer.lock(f"{folder}/lock")
    assert release is not None
    assert layer.lock(f"{folder}/lock") is None
    release()
    again = layer.lock(f"{folder}/lock")
    assert again is not None
    again()


def test_space_is_reckoned_as_df_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that are free but kept for root or by a quota must not look like used ones."""

    class Found:
        f_frsize, f_blocks, f_bfree, f_bavail = 4096, 1000, 900, 300

    monkeypatch.setattr(os, "statvfs", lambda path: Found)
    assert RealFiles(RealThreads().hand_over).space("/") == (400 * 4096, 300 * 4096)


def test_space(layer: Files, folder: str) -> None:
    total, free = layer.space(folder)
    assert total >= free > 0


# --- the real files alone -----------------------------------------------------------------------


def test_a_short_write_is_completed(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwritev

    def short(descriptor: int, buffers: list[bytes], at: int) -> int:
        first = next((buffer for buffer in buffers if len(buffer)), b"")
        return whole(descriptor, [first[:3]], at)

    monkeypatch.setattr(os, "pwritev", short)
    file = environment.files.open(str(tmp_path / "f"), create=True)
    parts: list[Buffer] = [b"", b"abcd", b"", memoryview(b"efghijk"), bytearray(b"l"), b""]
    file.write(2, parts)
    assert file.read(2, 99) == b"abcdefghijkl"


def test_a_write_that_gets_nowhere_is_an_error(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    file = environment.files.open(str(tmp_path / "f"), create=True)
    with pytest.raises(OSError, match="wrote nothing"):
        file.write(0, [b"abc"])


def test_errors_name_the_file(tmp_path: Path) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    files = RealFiles(RealThreads().hand_over, fdatasync=broken)
    file = files.open(str(tmp_path / "f"), create=True)
    with pytest.raises(OSError, match=str(tmp_path / "f")):
        file.sync_blocking()


def test_what_has_the_name_of_a_file_and_is_none_is_refused_at_once(
    environment: Environment, tmp_path: Path
) -> None:
    files = environment.files
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # to open one waits for somebody at its other end
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    opened = files.open, files.open_for_reading, files.read_file, files.lock, files.locked_by
    for name in ("folder", "pipe", "device"):
        for way in opened:
            with pytest.raises(OSError, match=name):
                way(str(tmp_path / name))
    for way in (files.open, files.open_for_reading, files.read_file):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            way(str(tmp_path / "nowhere"))


def test_a_full_disk_does_not_keep_anybody_from_locking(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = str(tmp_path / "lock")
    release = environment.files.lock(path)
    assert release is not None
    size_bytes = os.path.getsize(path)
    release()
    monkeypatch.setattr(os, "ftruncate", full)  # who gives a block away may not get it back
    monkeypatch.setattr(os, "pwrite", full)
    release = environment.files.lock(path)
    assert release is not None and environment.files.lock(path) is None
    assert os.path.getsize(path) == size_bytes
    release()


def test_without_fallocate_zeros_are_written(tmp_path: Path) -> None:
    def unsupported(descriptor: int, at: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    files = RealFiles(RealThreads().hand_over, fallocate=unsupported)
    file = files.open(str(tmp_path / "f"), create=True)
    file.write(0, [b"abc"])
    file.allocate(1, 3_000_000)
    assert file.size() == 3_000_001
    assert file.read(0, 4_000_000) == b"abc" + bytes(2_999_998)
    assert os.stat(tmp_path / "f").st_blocks * 512 >= 3_000_000


def test_a_failed_allocation_changes_nothing(tmp_path: Path) -> None:
    def half(descriptor: int, at: int, size: int) -> None:
        os.ftruncate(descriptor, at + size // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    files = RealFiles(RealThreads().hand_over, fallocate=half)
    file = files.open(str(tmp_path / "f"), create=True)
    file.write(0, [b"abc"])
    with pytest.raises(OSError, match="No space left"):
        file.allocate(3, 1_000)
    assert file.size() == 3


def test_read_now_asks_once_whether_the_file_system_can(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def unsupported(*arguments: object) -> int:
        asked.append(1)
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "preadv", unsupported)
    file = environment.files.open(str(tmp_path / "f"), create=True)
    file.write(0, [b"abc"])
    assert [file.read_now(0, 3) for _ in range(3)] == [b"abc"] * 3
    assert len(asked) == 1


@pytest.mark.parametrize("answer", [BlockingIOError(errno.EAGAIN, "cold"), 2])
def test_what_is_not_cached_is_none(
    environment: Environment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: BlockingIOError | int,
) -> None:
    def cold(*arguments: object) -> int:
        if isinstance(answer, int):
            return answer
        raise answer

    monkeypatch.setattr(os, "preadv", cold)
    file = environment.files.open(str(tmp_path / "f"), create=True)
    file.write(0, [b"abc"])
    assert file.read_now(0, 3) is None


@pytest.mark.parametrize("size", [1, 1 << 16, (1 << 16) + 1, 32 << 20])
def test_reading_ahead_reads_it_all_at_once(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    read: list[tuple[int, int]] = []
    preadv = os.preadv

    def spy(descriptor: int, buffers: list[bytearray], at: int) -> int:
        read.append((at, preadv(descriptor, buffers, at)))
        return read[-1][1]

    file = environment.files.open(str(tmp_path / "f"), create=True)
    file.truncate(100 + size + 5)
    monkeypatch.setattr(os, "preadv", spy)
    file.read_ahead(100, size)
    assert read == [(100, size)]


def test_reading_ahead_leaves_the_bytes_as_they_are(
    environment: Environment, tmp_path: Path
) -> None:
    file = environment.files.open(str(tmp_path / "f"), create=True)
    file.write(0, [b"abc" * 50_000])
    file.read_ahead(0, 150_000)
    file.read_ahead(149_999, 10)  # beyond the end there is nothing, which is no error
    assert file.read_now(0, 150_000) in (b"abc" * 50_000, None)


def test_reading_ahead_names_the_file_that_fails(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    file = environment.files.open(str(tmp_path / "f"), create=True)
    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(OSError, match="Input/output error") as caught:
        file.read_ahead(0, 10)
    assert caught.value.filename == str(tmp_path / "f")


def test_a_file_that_nobody_holds_is_closed(environment: Environment, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = environment.files.open(str(tmp_path / "f"), create=True)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del file
    assert len(os.listdir("/proc/self/fd")) == before
    closed = environment.files.open(str(tmp_path / "f"))
    closed.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        closed.read(0, 1)


def test_a_failed_whole_write_leaves_the_old_file(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "f")
    environment.files.write_file(path, [b"old"])

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="No space left"):
        environment.files.write_file(path, [b"new"])
    assert environment.files.read_file(path) == b"old"
    assert environment.files.list(str(tmp_path)) == ["f"]


def test_a_file_where_a_folder_should_be_is_an_error(
    environment: Environment, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(OSError, match="f"):
        environment.files.make_folder(str(tmp_path / "f"))


def test_a_lock_holds_between_processes_and_ends_with_them(
    environment: Environment, tmp_path: Path
) -> None:
    path = str(tmp_path / "lock")
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        held = environment.files.lock(path)
        os.write(write_fd, b"y" if held else b"n")
        threading.Event().wait(60)
        os._exit(0)
    try:
        assert os.read(read_fd, 1) == b"y"
        assert environment.files.lock(path) is None
        assert int(environment.files.read_file(path)) == child
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(read_fd)
        os.close(write_fd)
    release = environment.files.lock(path)
    assert release is not None
    release()
