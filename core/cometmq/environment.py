"""The only door to clock, sleep, randomness, threads and files.

No other module of the core or of a plugin calls those directly. So a test or a simulation can
move the clock, hold back a sync, fill a disk or replay a seed without patching anything.
The real ones are in `cometmq.real_environment`, the virtual ones in `cometmq.testing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class Timer(Protocol):
    """A callback that waits for its time."""

    def cancel(self) -> None:
        """Make sure that the callback is not called (no effect once it was)."""


class Clock(Protocol):
    """Time and waiting. Wall time may jump either way; monotonic time never goes back."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may step backwards or far ahead."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that only goes forward, without a defined start. Timers go by it; it
        may stand still while the machine sleeps."""

    def uptime_s(self) -> float:
        """The same, but it goes on while the machine sleeps, as far as the system can tell: what a
        step of the wall clock is measured by."""

    def call_at(self, monotonic_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the running event loop at `monotonic_s` or soon after."""

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""


class Random(Protocol):
    """The source of chance."""

    def bytes(self, count: int) -> bytes:
        """`count` random bytes (identities)."""

    def uniform(self, low: float, high: float) -> float:
        """A float between `low` and `high` (jitter)."""


class Threads(Protocol):
    """Work that must not block the event loop."""

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` in a worker thread; its result or exception comes back here."""

    def start(self, name: str, function: Callable[[], None]) -> Any:
        """Start a daemon thread and return it (`join(timeout)`)."""

    def close(self) -> None:
        """Let the worker threads end."""


class File(Protocol):
    """An open file, read and written at explicit places; short writes are completed inside."""

    def size(self) -> int:
        """Bytes from start to end, prepared zeros included."""

    def write(self, at: int, buffers: Sequence[Buffer]) -> None:
        """Write all `buffers`, gathered, beginning at byte `at`. Raises OSError; then any prefix
        may be there."""

    def read(self, at: int, size: int) -> bytes:
        """Up to `size` bytes from `at`; shorter only at the end of the file. May block."""

    def read_now(self, at: int, size: int) -> bytes | bytearray | None:
        """The same if it can be had without waiting for the disk, else None."""

    def read_ahead(self, at: int, size: int) -> None:
        """Bring [at, at + size), at most 32 MiB, to where `read_now` finds it. Blocks until the
        disk has answered. Raises OSError."""

    def allocate(self, at: int, size: int) -> None:
        """Give the file real space (zeros) for [at, at + size). Raises OSError ENOSPC."""

    def truncate(self, size: int) -> None:
        """Cut or extend the file to `size` bytes."""

    async def sync(self) -> float:
        """fdatasync without blocking the loop: what was written before the call is on disk after
        it. Returns the seconds that the disk took, without the way to a thread and back. Raises
        OSError; then nothing may be assumed any more."""

    def sync_blocking(self) -> float:
        """The same in the calling thread."""

    def is_deleted(self) -> bool:
        """Whether nobody can open it any more by any name, so that its bytes go when it is closed.
        Waits for no disk. Raises OSError."""

    def close(self) -> None:
        """Close; no sync is implied. A file that nobody holds any more closes by itself, so that
        one thread may drop it while another one still reads."""


class Files(Protocol):
    """A file system. Paths are absolute strings."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; `create` makes the file, which must not exist."""

    def open_for_reading(self, path: str) -> File:
        """Open without the right to write: for offline inspection and for a start in doubt."""

    def exists(self, path: str) -> bool: ...

    def list(self, folder: str) -> list[str]:
        """Names in a folder, sorted; empty if there is no folder."""

    def make_folder(self, path: str) -> None:
        """Make the folder and its parents, durably, if missing."""

    def read_file(self, path: str) -> bytes:
        """The whole (small) file."""

    def write_file(self, path: str, chunks: Sequence[Buffer]) -> None:
        """Write a new file under a temporary name, sync it, rename it over `path`, sync the
        folder: after a crash the old one or the new one is there, whole."""

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def sync_folder(self, path: str) -> None:
        """Make names made, renamed or removed in this folder durable."""

    def lock(self, path: str) -> Callable[[], None] | None:
        """Take the exclusive lock file; returns what releases it, or None if somebody has it."""

    def locked_by(self, path: str) -> str | None:
        """Who holds this lock file, as far as it says; None if nobody does. Changes nothing."""

    def refusal(self, path: str) -> OSError | None:
        """Why this process may not write this file, or make files in this folder; None if it may,
        as far as the system says beforehand. Changes nothing."""

    def space(self, path: str) -> tuple[int, int]:
        """(bytes used or free for us, bytes free for us) of the file system that holds `path`."""

    def open_max(self) -> int:
        """How many files and connections this process may have open, all in all."""


class Environment(Protocol):
    """What is handed to everything that needs the outside."""

    @property
    def clock(self) -> Clock: ...

    @property
    def random(self) -> Random: ...

    @property
    def threads(self) -> Threads: ...

    @property
    def files(self) -> Files: ...
