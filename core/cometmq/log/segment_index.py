"""The queue index of one segment: in memory while the segment is open, one file once it is sealed.

The file, all of it derived from the segment:

    blocks       per queue with batches, back to back: the five columns of `Columns`
    directory    columns over all queues that the log knew: incarnation u64, queue u16, next offset
                 at the segment's start u64, batches u32, place of its block u64, CRC of it u32
    footer       `_FOOTER`

Numbers are in the machine's own byte order, the magic too, so a machine of the other order takes
the file for foreign. Every CRC-32C starts from the log's id and the segment's base and end: a file
of another log, or from before a cut, is refused like a damaged one, and made again.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from operator import sub

from crc32c import crc32c

SUFFIX = "queue"
"""Name of the side file."""

QueueKey = tuple[int, int]
"""(incarnation, queue)."""

_MAGIC = int.from_bytes(b"CMQ\x01", "little")
_FOOTER = struct.Struct("=IQQqqQII")
"""Magic, base, end, oldest and newest store time, queues, CRC of the directory, of the footer."""
_IDENTITY = struct.Struct("<QQ")
_COLUMNS = "QIQIq"
_DIRECTORY = "QHQIQI"
_ITEM_BYTES = {code: array(code).itemsize for code in "HIQq"}
_ENTRY_BYTES = sum(_ITEM_BYTES[code] for code in _COLUMNS)
_ROW_BYTES = sum(_ITEM_BYTES[code] for code in _DIRECTORY)
_ROW_MEMORY_BYTES = 150
"""About what a row costs in memory beyond the file."""
_NEVER = (1 << 63) - 1, -(1 << 63)
"""Oldest and newest store time of no batch."""


class BadIndex(Exception):
    """An index file that is not what this segment's would be: it is to be made again."""


class Columns:
    """The batches of one queue in one segment, by position; one row per batch."""

    __slots__ = ("bases", "positions", "sizes", "spans", "times")

    def __init__(self, columns: Sequence[Sequence[int]]) -> None:
        self.bases, self.spans, self.positions, self.sizes, self.times = columns

    bases: Sequence[int]
    """Base offset."""
    spans: Sequence[int]
    """Next offset minus base offset."""
    positions: Sequence[int]
    """Byte in the log."""
    sizes: Sequence[int]
    """Bytes."""
    times: Sequence[int]
    """The newest store time of the queue in this segment so far, ms since 1970: with it the first
    batch at or after a time is found by bisection although clocks step back."""

    @property
    def next_offset(self) -> int:
        """Behind the last batch."""
        return self.bases[-1] + self.spans[-1]


class OpenSegment:
    """The index of a segment whose batches are being appended or replayed."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.end = base
        """Behind the last batch; only right once the segment is sealed."""
        self.sealed = False
        self.oldest, self.newest = _NEVER
        """Store times, ms since 1970."""
        self._queues: dict[QueueKey, tuple[array[int], ...]] = {}

    def add(
        self, key: QueueKey, base_offset: int, span: int, position: int, size: int, store_time: int
    ) -> None:
        """Take one batch; see `Columns` for the values."""
        columns = self._queues.get(key)
        if columns is None:
            columns = self._queues[key] = tuple(array(code) for code in _COLUMNS)
        bases, spans, positions, sizes, times = columns
        # The newest so far, which is nearly always this one.
        times.append(max(store_time, times[-1]) if bases else store_time)
        bases.append(base_offset)
        spans.append(span)
        positions.append(position)
        sizes.append(size)
        if store_time < self.oldest:
            self.oldest = store_time
        if store_time > self.newest:
            self.newest = store_time

    def extend(
        self,
        key: QueueKey,
        bases: Sequence[int],
        following: Sequence[int],
        positions: Sequence[int],
        sizes: Sequence[int],
        times: Sequence[int],
    ) -> None:
        """Take batches of one queue, in order: base and next offsets, and as `Columns` has them;
        store times as they were stamped."""
        columns = self._queues.get(key)
        if columns is None:
            columns = self._queues[key] = tuple(array(code) for code in _COLUMNS)
        newest = columns[4][-1] if columns[4] else times[0]
        columns[0].extend(bases)
        columns[1].extend(map(sub, following, bases))
        columns[2].extend(positions)
        columns[3].extend(sizes)
        columns[4].extend(islice(accumulate(times, max, initial=newest), 1, None))
        self.oldest = min(self.oldest, *times)
        self.newest = max(self.newest, *times)

    def queue(self, key: QueueKey) -> Columns | None:
        """The batches of a queue, or None if it has none here."""
        columns = self._queues.get(key)
        return None if columns is None else Columns(columns)

    def keys(self) -> Iterable[QueueKey]:
        """The queues that have batches here."""
        return self._queues.keys()

    def first_offset(self, key: QueueKey) -> int | None:
        """The base offset of the queue's first batch here: its next offset at the start."""
        columns = self._queues.get(key)
        return None if columns is None else columns[0][0]

    def next_offset_up_to(self, key: QueueKey, position: int) -> int | None:
        """Behind the queue's last batch here, if that one ends at or below `position`, as nearly
        all do; None if it doesn't, or if there is none."""
        columns = self._queues.get(key)
        if columns is None:
            return None
        bases, spans, positions, sizes, _ = columns
        if positions[-1] + sizes[-1] > position:
            return None
        return bases[-1] + spans[-1]

    def cut(self, position: int) -> None:
        """Forget the batches that end behind `position`; the segment is open again."""
        self.sealed = False
        for key, columns in list(self._queues.items()):
            positions, sizes = columns[2], columns[3]
            row = bisect_left(positions, position)
            if row and positions[row - 1] + sizes[row - 1] > position:
                row -= 1
            for column in columns:
                del column[row:]
            if not row:
                del self._queues[key]

    def encode(self, starts: Mapping[QueueKey, int], seed: int) -> Iterator[bytes]:
        """The file's chunks, block by block. `starts`: next offset at the segment's start of every
        queue where it was above 0; what batches here show is taken from them."""
        seed = _identity(self.base, self.end, seed)
        rows: tuple[array[int], ...] = tuple(array(code) for code in _DIRECTORY)
        at = 0
        for key, columns in self._queues.items():
            block = b"".join([column.tobytes() for column in columns])
            start = min(starts.get(key, columns[0][0]), columns[0][0])
            row = *key, start, len(columns[0]), at, crc32c(block, seed)
            for column, value in zip(rows, row, strict=True):
                column.append(value)
            at += len(block)
            yield block
        for key, start in starts.items():
            if key not in self._queues:
                for column, value in zip(rows, (*key, start, 0, at, 0), strict=True):
                    column.append(value)
        directory = b"".join([column.tobytes() for column in rows])
        yield directory
        values = _MAGIC, self.base, self.end, self.oldest, self.newest, len(rows[0])
        footer = _FOOTER.pack(*values, crc32c(directory, seed), 0)
        yield footer[:-4] + struct.pack("=I", crc32c(footer[:-4], seed))


class SealedSegment:
    """The index of a sealed segment, read from its file's bytes; complete and unchanging."""

    def __init__(self, data: bytes, base: int, end: int, seed: int) -> None:
        """Proves all of the file's CRCs. Raises BadIndex."""
        self.base = base
        self.end = end
        self._data = memoryview(data)
        seed = _identity(base, end, seed)
        self.oldest, self.newest, directory = self._directory(seed)
        incarnations, queues, starts, counts, places, crcs = directory
        self._rows = {key: at for at, key in enumerate(zip(incarnations, queues, strict=True))}
        self._starts, self._counts, self._places = starts, counts, places
        for count, place, crc in zip(counts, places, crcs, strict=True):
            if count and crc32c(self._data[place : place + count * _ENTRY_BYTES], seed) != crc:
                raise BadIndex(f"the block at byte {place} is damaged")
        self.memory_bytes = len(data) + _ROW_MEMORY_BYTES * len(counts)
        """About what it takes in memory."""

    def queue(self, key: QueueKey) -> Columns | None:
        """The batches of a queue, or None if it has none here."""
        row = self._rows.get(key)
        if row is None or not self._counts[row]:
            return None
        place, count = self._places[row], self._counts[row]
        return Columns(_columns(self._data, place, count, _COLUMNS))

    def start(self, key: QueueKey) -> int:
        """The queue's next offset at the segment's start; 0 if it wasn't known then."""
        row = self._rows.get(key)
        return 0 if row is None else self._starts[row]

    def starts(self) -> dict[QueueKey, int]:
        """The same for all queues."""
        return {key: self._starts[row] for key, row in self._rows.items()}

    def ends(self) -> dict[QueueKey, int]:
        """Each queue's next offset at the segment's end, as far as this segment shows."""
        ends = self.starts()
        for key in ends:
            columns = self.queue(key)
            if columns is not None:
                ends[key] = columns.next_offset
        return ends

    def _directory(self, seed: int) -> tuple[int, int, list[Sequence[int]]]:
        """Oldest and newest store time, and the directory's columns."""
        footer_at = len(self._data) - _FOOTER.size
        if footer_at < 0:
            raise BadIndex(f"{len(self._data)} bytes, less than a footer has")
        footer = _FOOTER.unpack_from(self._data, footer_at)
        magic, base, end, oldest, newest, queues, directory_crc, crc = footer
        if magic != _MAGIC or (base, end) != (self.base, self.end):
            raise BadIndex("the footer is of another segment, or of none")
        if crc32c(self._data[footer_at:-4], seed) != crc:
            raise BadIndex("the footer is damaged")
        directory_at = footer_at - queues * _ROW_BYTES
        if crc32c(self._data[max(directory_at, 0) : footer_at], seed) != directory_crc:
            raise BadIndex("the directory is damaged")
        return oldest, newest, _columns(self._data, directory_at, queues, _DIRECTORY)


def _identity(base: int, end: int, seed: int) -> int:
    """Where the CRCs of the index of this very stretch of this log start from."""
    return crc32c(_IDENTITY.pack(base, end), seed)


def _columns(data: memoryview, at: int, count: int, codes: str) -> list[Sequence[int]]:
    """Views of columns that lie back to back from byte `at` on, `count` values each."""
    columns: list[Sequence[int]] = []
    for code in codes:
        end = at + count * _ITEM_BYTES[code]
        columns.append(data[at:end].cast(code))  # type: ignore[call-overload]
        at = end
    return columns
