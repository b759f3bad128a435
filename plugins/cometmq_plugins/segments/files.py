"""The segments that are there: their names, their open files, reading from them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise

from cometmq.environment import Buffer, File, Files
from cometmq.errors import LogError
from cometmq.interfaces import BASE_MAX

_OPEN_FILES = 64
_OPEN_SHARE = 8
"""Segments kept open take at most one in so many descriptors: the others are for connections, and
for the folder, without which nothing can be synced."""
_NAME = re.compile(r"(\d{20})\.seg")
_SIDE = re.compile(r"(\d{20})\.(?!seg$)[a-z0-9.]+")
_SCAN_BYTES = 1 << 20


class Entry:
    """One segment."""

    __slots__ = ("base", "changes", "end", "file", "path", "size", "synced", "writer")

    def __init__(self, base: int, path: str, size: int) -> None:
        self.base = base
        self.path = path
        self.size = size
        """Bytes of the file, prepared zeros included."""
        self.end = base + size
        """Reading ends at this position."""
        self.file: File | None = None
        """Open for reading, as long as it is among the last ones opened."""
        self.writer: File | None = None
        """Open for writing, from `begin` until it is sealed and synced."""
        self.changes = 0
        self.synced = 0
        """The value of `changes` that is known to be on disk."""

    def require_writer(self) -> File:
        """The open file of a segment that is being written."""
        if self.writer is None:
            raise AssertionError(f"{self.path} is not open for writing")
        return self.writer


class SegmentTable:
    """All segments, oldest first. Other threads may read while the loop's thread changes it:
    each change puts a new tuple in place of the old one."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._view: tuple[tuple[int, ...], tuple[Entry, ...]] = ((), ())
        self._open: deque[Entry] = deque()
        self._open_max = min(_OPEN_FILES, files.open_max() // _OPEN_SHARE)
        self.leftovers: list[str] = []
        """Files that have the name of a segment and are none, see `load`."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Oldest first."""
        return self._view[1]

    @property
    def last(self) -> Entry | None:
        """The newest one."""
        return self.entries[-1] if self.entries else None

    def set(self, entries: Sequence[Entry]) -> None:
        """Put these in place of what was known."""
        self._view = tuple(entry.base for entry in entries), tuple(entries)

    def load(self) -> None:
        """List the folder. A file that goes on behind the next one's name is read up to there.
        A file of zeros before whose name the log did not end is no segment: the disk refused it
        when it was made, and the log went on in the one before."""
        entries: list[Entry] = []
        self.leftovers = []
        for name in self._files.list(self._folder):
            match = _NAME.fullmatch(name)
            if match is not None:
                path = f"{self._folder}/{name}"
                if int(match[1]) > BASE_MAX:
                    raise LogError(f"no log gets as far as the name of {path}; move the file away")
                file = self._files.open_for_reading(path)
                entry = Entry(int(match[1]), path, file.size())
                if entries and self._goes_on_past(entries[-1], entry.base, file, entry.size):
                    self.leftovers.append(path)
                else:
                    entries.append(entry)
                file.close()
        for entry, following in pairwise(entries):
            entry.end = min(entry.end, following.base)
        self.set(entries)

    def _goes_on_past(self, before: Entry, base: int, file: File, size: int) -> bool:
        """Whether `before` holds bytes behind `base`, and the file of that name nothing."""
        if before.base + before.size <= base or not only_zeros(file, 0, size):
            return False
        return not only_zeros(self.file(before), base - before.base, before.size)

    def path(self, base: int) -> str:
        """Where the segment that begins at `base` lies."""
        return f"{self._folder}/{base:020d}.seg"

    def side_path(self, base: int, suffix: str) -> str:
        """Where a side file of it lies."""
        return f"{self._folder}/{base:020d}.{suffix}"

    def side_files(self, base: int | None = None) -> list[str]:
        """Paths of the side files of one segment, or of all."""
        matches = [_SIDE.fullmatch(name) for name in self._files.list(self._folder)]
        return [
            f"{self._folder}/{match[0]}"
            for match in matches
            if match is not None and base in (None, int(match[1]))
        ]

    def strays(self) -> list[str]:
        """Side files without a segment and unfinished ones: what a crash left behind."""
        kept = {f"{self._folder}/{entry.base:020d}" for entry in self.entries}
        return [
            path
            for path in self.side_files()
            if path.endswith(".tmp") or path[: len(self._folder) + 21] not in kept
        ]

    def find(self, position: int) -> Entry | None:
        """The segment that holds `position`, or would if it went on."""
        bases, entries = self._view
        index = bisect_right(bases, position)
        return entries[index - 1] if index else None

    def file(self, entry: Entry) -> File:
        """Its file, open for reading. Old ones are dropped, not closed: somebody may just read."""
        file = entry.file
        if file is None:
            file = self._files.open_for_reading(entry.path)
            self.adopt(entry, file)
        return file

    def adopt(self, entry: Entry, file: File) -> None:
        """Keep `file` among the open ones."""
        entry.file = file
        self._open.append(entry)
        if len(self._open) > self._open_max:
            self._open.popleft().file = None

    def drop_files(self) -> None:
        """Let go of all open files."""
        for entry in self.entries:
            entry.file = entry.writer = None
        self._open.clear()

    def chunks(self, position: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The bytes of [position, end) over all segments, as (position, bytes), a chunk each;
        the last segment up to the end of its file. Stops short where there are none."""
        for entry in self.entries:
            stop = min(end, entry.base + entry.size if entry is self.last else entry.end)
            at = max(position, entry.base)
            while at < stop:
                size = min(_SCAN_BYTES, stop - at)
                data = self.file(entry).read(at - entry.base, size)
                if not data:
                    break
                yield at, data
                at += len(data)


def write_side_file(files: Files, path: str, chunks: Sequence[Buffer]) -> None:
    """Write a file under another name, then rename it; not synced. Raises OSError; then nothing is
    left, since a full disk needs the room that half a file takes."""
    temporary = path + ".tmp"
    if files.exists(temporary):
        files.unlink(temporary)
    file = files.open(temporary, create=True)
    try:
        file.write(0, chunks)
    except OSError:
        files.unlink(temporary)
        raise
    finally:
        file.close()
    files.rename(temporary, path)


def only_zeros(file: File, at: int, end: int) -> bool:
    """Whether bytes [at, end) of the file are all zero."""
    zeros = bytes(_SCAN_BYTES)
    while at < end:
        data = file.read(at, min(_SCAN_BYTES, end - at))
        if not data:
            break
        if data != zeros[: len(data)]:
            return False
        at += len(data)
    return True
