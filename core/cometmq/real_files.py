"""Files of the operating system, as `cometmq.environment.Files` wants them."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
import sys
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice

from cometmq import native
from cometmq.environment import Buffer

IOV_MAX = 1024
"""Buffers of one gathered write; one more is EINVAL."""
_ZEROS = bytes(1 << 20)
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS)
_MODE = 0o640
_UNREAD = bytearray(1 << 16)
"""Where bytes go that are read for the page cache's sake; nobody looks at them."""
_FOLDER_MODE = 0o750
_PID_WIDTH = 20
"""Always as long, so that the file of a lock need never be cut, which would give its block away."""

HandOver = Callable[[Callable[[], float]], Awaitable[float]]


class RealFile:
    """An open file. It closes itself when nobody holds it any more, so one thread may drop it
    while another one still reads from it."""

    def __init__(self, descriptor: int, path: str, files: RealFiles) -> None:
        self._fd = descriptor
        self._path = path
        self._files = files
        self._finalizer = weakref.finalize(self, os.close, descriptor)
        self._finalizer.atexit = False

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def write(self, at: int, buffers: Sequence[Buffer]) -> None:
        try:
            if len(buffers) <= IOV_MAX:
                written = os.pwritev(self._fd, buffers, at)
                if written == sum(map(len, buffers)):
                    return
                buffers = _behind(buffers, written)
                at += written
            self._write_in_parts(at, buffers)
        except OSError as error:
            raise self._named(error) from None

    def _write_in_parts(self, at: int, buffers: Sequence[Buffer]) -> None:
        rest = list(buffers)
        while rest:
            written = os.pwritev(self._fd, rest[:IOV_MAX], at)
            at += written
            rest = _behind(rest, written)
            if written == 0 and any(map(len, rest)):
                raise OSError(errno.EIO, "the file system wrote nothing and gave no reason")

    def read(self, at: int, size: int) -> bytes:
        try:
            data = os.pread(self._fd, size, at)
            while 0 < len(data) < size:
                more = os.pread(self._fd, size - len(data), at + len(data))
                if not more:
                    break
                data += more
            return data
        except OSError as error:
            raise self._named(error) from None

    def read_now(self, at: int, size: int) -> bytes | bytearray | None:
        if not self._files.can_read_now:
            return self.read(at, size)
        buffer = native.unfilled(size)
        try:
            count = os.preadv(self._fd, [buffer], at, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise self._named(error) from None
            self._files.can_read_now = False
            return self.read(at, size)
        return buffer if count == size else None

    def read_ahead(self, at: int, size: int) -> None:
        # By reading: told that it "will need" something the system takes single pages, not large
        # ones, and may stop early. All goes to one place, which the processor keeps at hand.
        whole, rest = divmod(size, len(_UNREAD))
        try:
            os.preadv(self._fd, [*[_UNREAD] * whole, memoryview(_UNREAD)[:rest]], at)
        except OSError as error:
            raise self._named(error) from None

    def allocate(self, at: int, size: int) -> None:
        before = self.size()
        try:
            try:
                self._files.fallocate(self._fd, at, size)
            except OSError as error:
                if error.errno not in _NO_FALLOCATE:
                    raise
                self._write_zeros(max(at, before), at + size)
        except OSError as error:
            # Some file systems keep what they got before the space ran out.
            if self.size() > before:
                os.ftruncate(self._fd, before)
            raise self._named(error) from None

    def _write_zeros(self, start: int, end: int) -> None:
        for at in range(start, end, len(_ZEROS)):
            self._write_in_parts(at, [_ZEROS[: end - at]])

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._named(error) from None

    async def sync(self) -> float:
        return await self._files.hand_over(self.sync_blocking)

    def sync_blocking(self) -> float:
        begun_s = time.monotonic()
        try:
            self._files.fdatasync(self._fd)
        except OSError as error:
            raise self._named(error) from None
        return time.monotonic() - begun_s

    def is_deleted(self) -> bool:
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        self._finalizer()
        self._fd = -1

    def _named(self, error: OSError) -> OSError:
        error.filename = self._path
        return error


def _behind(buffers: Sequence[Buffer], written: int) -> list[Buffer]:
    """What is left to write after the first `written` bytes."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *islice(buffers, index + 1, None)]
        written -= len(buffer)
    return []


def _descriptor(path: str, flags: int) -> int:
    """Opened without waiting for somebody at the other end, as a pipe would; what is no file and
    only has the name of one is refused by OSError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, _MODE)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", path)
    os.set_blocking(descriptor, True)
    return descriptor


def _no_fallocate(descriptor: int, at: int, size: int) -> None:
    raise OSError(errno.EOPNOTSUPP, "this system has no fallocate")


_FALLOCATE: Callable[[int, int, int], None] = getattr(os, "posix_fallocate", _no_fallocate)
_FDATASYNC: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class RealFiles:
    """The operating system's files.

    `hand_over` calls a function in a thread, for syncs. `fallocate` and `fdatasync` are the
    system's, unless a test passes its own.
    """

    def __init__(
        self,
        hand_over: HandOver,
        *,
        fallocate: Callable[[int, int, int], None] | None = None,
        fdatasync: Callable[[int], None] | None = None,
    ) -> None:
        self.hand_over = hand_over
        self.fallocate: Callable[[int, int, int], None] = fallocate or _FALLOCATE
        self.fdatasync: Callable[[int], None] = fdatasync or _FDATASYNC
        self.can_read_now = hasattr(os, "RWF_NOWAIT")
        """False, for good, once the file system said that it can't (tmpfs)."""

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        return RealFile(_descriptor(path, flags), path, self)

    def open_for_reading(self, path: str) -> RealFile:
        return RealFile(_descriptor(path, os.O_RDONLY), path, self)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def list(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def make_folder(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.make_folder(parent)
        try:
            os.mkdir(path, _FOLDER_MODE)
        except FileExistsError:  # made by somebody else just now, or a file of that name
            if not os.path.isdir(path):
                raise
        self.sync_folder(parent)

    def read_file(self, path: str) -> bytes:
        with open(_descriptor(path, os.O_RDONLY), "rb") as file:
            return file.read()

    def write_file(self, path: str, chunks: Sequence[Buffer]) -> None:
        temporary = path + ".tmp"
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        file = self.open(temporary, create=True)
        try:
            file.write(0, chunks)
            file.sync_blocking()
        except OSError:
            os.unlink(temporary)
            raise
        finally:
            file.close()
        os.rename(temporary, path)
        self.sync_folder(os.path.dirname(path))

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_folder(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(descriptor)

    def lock(self, path: str) -> Callable[[], None] | None:
        # By the file itself (flock), so a second way to it, another mount say, meets it too.
        descriptor = _descriptor(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(OSError):  # it is for people, and a full disk has no room even for that
                os.pwrite(descriptor, f"{os.getpid():<{_PID_WIDTH}}\n".encode(), 0)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        return lambda: os.close(descriptor)

    def locked_by(self, path: str) -> str | None:
        try:
            descriptor = _descriptor(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            # Shared and for a moment: those who look don't meet each other.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            return f"process {holder}" if holder else "another process"
        finally:
            os.close(descriptor)
        return None

    def refusal(self, path: str) -> OSError | None:
        mode = os.W_OK | os.X_OK if os.path.isdir(path) else os.W_OK
        if os.access(path, mode, effective_ids=os.access in os.supports_effective_ids):
            return None
        number = errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES
        return OSError(number, os.strerror(number), path)

    def space(self, path: str) -> tuple[int, int]:
        found = os.statvfs(path)
        used = found.f_blocks - found.f_bfree
        # As `df` reckons: blocks kept for root or a quota are neither used nor ours to use.
        return (used + found.f_bavail) * found.f_frsize, found.f_bavail * found.f_frsize

    def open_max(self) -> int:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return sys.maxsize if soft == resource.RLIM_INFINITY else soft
