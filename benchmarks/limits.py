"""What the machine itself can do: the bounds that no broker on it can pass."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import zmq

from benchmarks.controller import warm_memory
from benchmarks.processes import free_port
from benchmarks.results import Limit
from benchmarks.steps import MIB
from cometmq import native

WRITE_WARM, WRITE_NEW = "sequential write, warm pages", "sequential write, new pages"
WRITE_SYNCED = "sequential write, 1 MiB at a time, each synced"
SYNC_THREAD = "fdatasync in a thread, p50"
ROUND_TRIP, ROUND_TRIP_P99 = "bare ROUTER/DEALER round trip, p50", "the same, p99"
MEMCPY = "memcpy"

SYNCS, ROUND_TRIPS = 1000, 10_000
BODY = os.urandom(1024)


def machine() -> str:
    """The machine, in a sentence."""
    text = Path("/proc/cpuinfo").read_text()
    models = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return (
        f"{os.cpu_count()} cores ({models[0] if models else platform.machine()}), "
        f"{memory_kib >> 20} GiB, Linux {platform.release()}, Python {platform.python_version()}, "
        f"pyzmq {zmq.pyzmq_version()}, CometMQ {'with' if native.loaded else 'without'} C"
    )


def measure(folder: Path, repetition: int, scale: float = 1.0) -> list[Limit]:
    """All limits, once; about ten seconds. `scale` is that of the steps' counts."""
    mib = max(16, int(1024 * scale))
    limits = [
        Limit(WRITE_NEW, repetition, _write(folder, mib, warm=False), "MB/s"),
        Limit(WRITE_WARM, repetition, _write(folder, mib, warm=True), "MB/s"),
        Limit(WRITE_SYNCED, repetition, _write_synced(folder, max(16, mib // 4)), "MB/s"),
        Limit(SYNC_THREAD, repetition, _sync_in_thread(folder, max(20, int(SYNCS * scale))), "us"),
        Limit(MEMCPY, repetition, _memcpy(max(16, mib // 4)), "MB/s"),
    ]
    p50_us, p99_us = _round_trip(max(100, int(ROUND_TRIPS * scale)))
    limits.append(Limit(ROUND_TRIP, repetition, p50_us, "us"))
    limits.append(Limit(ROUND_TRIP_P99, repetition, p99_us, "us"))
    return limits


def _write(folder: Path, mib: int, warm: bool) -> float:
    """Into the page cache; new pages are those that free memory happens to give."""
    chunk, path = os.urandom(MIB), folder / "write"
    if warm:
        warm_memory(2 * mib * MIB)
    with path.open("wb", buffering=0) as file:
        start_s = time.perf_counter()
        for _ in range(mib):
            file.write(chunk)
        elapsed_s = time.perf_counter() - start_s
    path.unlink()
    return mib * MIB / elapsed_s / 1e6


def _write_synced(folder: Path, mib: int) -> float:
    chunk, path = os.urandom(MIB), folder / "write"
    with path.open("wb", buffering=0) as file:
        start_s = time.perf_counter()
        for _ in range(mib):
            file.write(chunk)
            os.fdatasync(file.fileno())
        elapsed_s = time.perf_counter() - start_s
    path.unlink()
    return mib * MIB / elapsed_s / 1e6


def _sync_in_thread(folder: Path, times: int) -> float:
    """Append 1 KiB and wait until a thread has synced it: the floor of a synced send."""
    path = folder / "sync"
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(1) as pool:

        def write() -> None:
            file.write(BODY)
            pool.submit(os.fdatasync, file.fileno()).result()

        took_us = times_us(write, times)
    path.unlink()
    return took_us[len(took_us) // 2]


def _memcpy(mib: int, times: int = 5) -> float:
    source, target = ctypes.create_string_buffer(mib * MIB), ctypes.create_string_buffer(mib * MIB)
    ctypes.memset(source, 1, mib * MIB)
    ctypes.memset(target, 1, mib * MIB)
    copies_us = times_us(lambda: ctypes.memmove(target, source, mib * MIB), times)
    return mib * MIB / copies_us[times // 2]


@contextlib.contextmanager
def bare_round_trip() -> Iterator[Callable[[], None]]:
    """A blocking DEALER here and a blocking ROUTER in another process: one call is 1 KiB each
    way."""
    address = f"tcp://127.0.0.1:{free_port()}"
    echo = subprocess.Popen([sys.executable, "-m", "benchmarks.echo", address])
    try:
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.connect(address)

            def trip() -> None:
                dealer.send(BODY)
                dealer.recv()

            yield trip
    finally:
        echo.terminate()
        echo.wait()


def _round_trip(times: int) -> tuple[float, float]:
    with bare_round_trip() as trip:
        times_us(trip, times // 10)
        took_us = times_us(trip, times)
    return took_us[len(took_us) // 2], took_us[len(took_us) * 99 // 100]


def times_us(work: Callable[[], object], times: int) -> list[float]:
    """How long each call took, in ascending order."""
    return sorted(_each_us(work, times))


def _each_us(work: Callable[[], object], times: int) -> Iterator[float]:
    for _ in range(times):
        start_ns = time.perf_counter_ns()
        work()
        yield (time.perf_counter_ns() - start_ns) / 1e3
