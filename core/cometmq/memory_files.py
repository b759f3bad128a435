"""Files in memory: a file layer for brokers that keep nothing, and the ground that the test kit's
faulty files stand on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from cometmq.environment import Buffer


class Content:
    """The bytes of one file. What lies behind `data`, up to `size`, is zeros that cost nothing."""

    def __init__(self, data: Buffer = b"", size: int = 0) -> None:
        self.data = bytearray(data)
        self.size = max(size, len(self.data))

    def put(self, at: int, part: Buffer) -> None:
        """Write `part` at byte `at`, extending the file if it ends behind."""
        if at > len(self.data):
            self.data.extend(bytes(at - len(self.data)))
        if at == len(self.data):
            self.data += part
        else:
            self.data[at : at + len(part)] = part
        self.size = max(self.size, len(self.data))

    def resize(self, size: int) -> None:
        """Cut or extend with zeros."""
        del self.data[size:]
        self.size = size

    def get(self, at: int, size: int) -> bytes:
        """Up to `size` bytes from `at`; shorter at the end."""
        end = min(at + size, self.size)
        found = bytes(self.data[at:end])
        return found + bytes(max(0, end - at - len(found)))


class MemoryFile:
    """A handle on the content of one file."""

    def __init__(self, files: MemoryFiles, path: str, content: Content, writable: bool) -> None:
        self._files = files
        self._path = path
        self._content = content
        self._writable = writable

    def size(self) -> int:
        return self._content.size

    def write(self, at: int, buffers: Sequence[Buffer]) -> None:
        self._must_be_writable()
        for buffer in buffers:
            room = self._files.room_up_to(self._content, at + len(buffer)) - at
            if room > 0:
                self._content.put(at, buffer[:room] if room < len(buffer) else buffer)
            if room < len(buffer):
                raise self._files.error(errno.ENOSPC, self._path)
            at += len(buffer)

    def read(self, at: int, size: int) -> bytes:
        return self._content.get(at, size)

    def read_now(self, at: int, size: int) -> bytes | bytearray | None:
        return self.read(at, size)

    def read_ahead(self, at: int, size: int) -> None:
        """Nothing to do: all of it is in memory."""

    def allocate(self, at: int, size: int) -> None:
        self._must_be_writable()
        end = at + size
        if self._files.room_up_to(self._content, end) < end:
            raise self._files.error(errno.ENOSPC, self._path)
        if end > self._content.size:
            self._content.resize(end)

    def truncate(self, size: int) -> None:
        self._must_be_writable()
        self._content.resize(size)

    async def sync(self) -> float:
        return self.sync_blocking()

    def sync_blocking(self) -> float:
        """Nothing to do: there is nothing that memory would survive."""
        return 0.0

    def is_deleted(self) -> bool:
        return not self._files.holds(self._content)

    def close(self) -> None:
        """Nothing to do: the content lives as long as its name or a handle."""

    def _must_be_writable(self) -> None:
        if not self._writable:
            raise self._files.error(errno.EBADF, self._path)


class MemoryFiles:
    """A file system in memory that holds at most `capacity_bytes`."""

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.descriptors = 1 << 20
        """How many open files it claims to allow."""
        self._names: dict[str, Content] = {}
        self._folders: set[str] = {"/"}
        self._locks: set[str] = set()

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if create:
            self._create(path)
        return self._handle(path, writable=True)

    def open_for_reading(self, path: str) -> MemoryFile:
        return self._handle(path, writable=False)

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._folders

    def list(self, folder: str) -> list[str]:
        held = {*self._names, *self._folders} - {"/"}
        return sorted(os.path.basename(one) for one in held if os.path.dirname(one) == folder)

    def make_folder(self, path: str) -> None:
        while path not in self._folders:
            self._folders.add(path)
            path = os.path.dirname(path)

    def read_file(self, path: str) -> bytes:
        content = self._content(path)
        return content.get(0, content.size)

    def write_file(self, path: str, chunks: Sequence[Buffer]) -> None:
        temporary = path + ".tmp"
        if self.exists(temporary):
            self.unlink(temporary)
        file = self.open(temporary, create=True)
        try:
            file.write(0, chunks)
            file.sync_blocking()
        except OSError:
            self.unlink(temporary)
            raise
        self.rename(temporary, path)
        self.sync_folder(os.path.dirname(path))

    def rename(self, old: str, new: str) -> None:
        self._names[new] = self._content(old)
        del self._names[old]

    def unlink(self, path: str) -> None:
        self._content(path)
        del self._names[path]

    def sync_folder(self, path: str) -> None:
        if path not in self._folders:
            raise self.error(errno.ENOENT, path)

    def lock(self, path: str) -> Callable[[], None] | None:
        if path in self._locks:
            return None
        if path not in self._names:
            self._create(path)
        self._locks.add(path)
        return lambda: self._locks.discard(path)

    def locked_by(self, path: str) -> str | None:
        return "another process" if path in self._locks else None

    def refusal(self, path: str) -> OSError | None:
        return None

    def space(self, path: str) -> tuple[int, int]:
        return self.capacity_bytes, self.capacity_bytes - self._used()

    def open_max(self) -> int:
        return self.descriptors

    def room_up_to(self, content: Content, end: int) -> int:
        """How far, at most `end`, this file may reach before the space runs out."""
        if end <= content.size:
            return end
        return min(end, content.size + max(0, self.capacity_bytes - self._used()))

    def holds(self, content: Content) -> bool:
        """Whether some name leads to it."""
        return content in self._names.values()

    def error(self, number: int, path: str) -> OSError:
        return OSError(number, os.strerror(number), path)

    def _used(self) -> int:
        return sum(content.size for content in self._names.values())

    def _create(self, path: str) -> None:
        if path in self._names:
            raise self.error(errno.EEXIST, path)
        if os.path.dirname(path) not in self._folders:
            raise self.error(errno.ENOENT, path)
        self._names[path] = self._new_content()

    def _new_content(self) -> Content:
        return Content()

    def _content(self, path: str) -> Content:
        if path not in self._names:
            raise self.error(errno.ENOENT, path)
        return self._names[path]

    def _handle(self, path: str, *, writable: bool) -> MemoryFile:
        return MemoryFile(self, path, self._content(path), writable)
