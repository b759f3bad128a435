"""The real environment: the machine's clock, chance, threads and files."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from cometmq.environment import Clock, Files, Random, Threads, Timer
from cometmq.real_files import RealFiles

T = TypeVar("T")
_WORKERS = 4
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
"""Not every system has a clock that goes on while it sleeps."""
_ONE_EVENT = (1).to_bytes(8, "little")


class RealClock:
    """System time; timers and sleeps on the running event loop."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic_s = staticmethod(time.monotonic)
    """Itself: it is asked for several times in each request."""

    def uptime_s(self) -> float:
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def call_at(self, monotonic_s: float, callback: Callable[[], None]) -> Timer:
        delay_s = max(0.0, monotonic_s - time.monotonic())
        return asyncio.get_running_loop().call_later(delay_s, callback)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class RealRandom:
    """Chance from the operating system."""

    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)


class Handover:
    """One thread that works for one event loop: a queue there, an eventfd back.

    Measured against an executor it saves some 50 us a call, which is a third of a fast disk's
    sync. Calls are done one after the other, in order.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._work: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._work = SimpleQueue()
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._read_fd, self._write_fd = _event_descriptors()
        loop.add_reader(self._read_fd, self._deliver)
        self._thread = threading.Thread(target=self._serve, name="mq-sync", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Have `function` called in the thread; the future gets its result or exception."""
        future: asyncio.Future[T] = self.loop.create_future()
        self._work.put((function, future))
        return future

    def close(self) -> None:
        """Finish what was handed over and end the thread."""
        self._work.put(None)
        self._thread.join()
        self.loop.remove_reader(self._read_fd)
        for descriptor in {self._read_fd, self._write_fd}:
            os.close(descriptor)

    def _serve(self) -> None:
        while (job := self._work.get()) is not None:
            function, future = job
            try:
                self._done.append((future, function(), None))
            except BaseException as error:  # whatever it was belongs to the caller
                self._done.append((future, None, error))
            os.write(self._write_fd, _ONE_EVENT)

    def _deliver(self) -> None:
        os.read(self._read_fd, 8)
        while self._done:
            future, result, error = self._done.popleft()
            if future.done():  # the caller was cancelled meanwhile
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


def _event_descriptors() -> tuple[int, int]:
    """What to read from and what to write to; a pipe where there is no eventfd."""
    if hasattr(os, "eventfd"):
        descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return descriptor, descriptor
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    return read_fd, write_fd


class RealThreads:
    """A small pool for blocking work, and a dedicated thread per loop for syncs."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._handovers: list[Handover] = []

    async def run(self, function: Callable[[], T]) -> T:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="mq-worker")
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def hand_over(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Like `run`, in the one thread that serves the running loop: cheaper, and in order."""
        loop = asyncio.get_running_loop()
        for handover in self._handovers:
            if handover.loop is loop:
                return handover.call(function)
        for handover in [one for one in self._handovers if one.loop.is_closed()]:
            self._handovers.remove(handover)
            handover.close()
        self._handovers.append(Handover(loop))
        return self._handovers[-1].call(function)

    def start(self, name: str, function: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=function, name=name, daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        while self._handovers:
            self._handovers.pop().close()


@dataclass
class RealEnvironment:
    """What a broker runs with outside of tests. Call `threads.close()` at the end."""

    clock: Clock = field(default_factory=RealClock)
    random: Random = field(default_factory=RealRandom)
    threads: Threads = field(init=False)
    files: Files = field(init=False)

    def __post_init__(self) -> None:
        threads = RealThreads()
        self.threads = threads
        self.files = RealFiles(threads.hand_over)
