"""The queue index: where the batches of a queue lie. Derived from the log, and disposable.

Per queue, next offsets grow from segment to segment, so a look-up bisects over the segments by
each one's next offset at its start, then over the batches within. It may meet an index that is not
in memory: then it raises `NotLoaded`, and `when_loaded` does it again after loading that index.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cometmq.environment import Environment
from cometmq.interfaces import Storage
from cometmq.log.indexed_segments import CACHE_BYTES, NextOffsetsView
from cometmq.log.queue_sizes import QueueSizes
from cometmq.log.segment_index import Columns, QueueKey

HINTS_MAX = 100_000
"""Queues whose last place is remembered; hints only, and deleted topics leave theirs behind."""


class Entry(NamedTuple):
    """One batch of a queue."""

    base_offset: int
    next_offset: int
    position: int
    """Byte in the log."""
    size: int
    """Bytes."""


class QueueIndex(QueueSizes):
    """Look-ups over the indexes of all segments. Each may raise NotLoaded."""

    def __init__(
        self,
        storage: Storage,
        environment: Environment,
        seed: int,
        next_offsets: NextOffsetsView,
        *,
        floor: Callable[[int, int], int] | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """`seed` is `cometmq.batch.seed(log_id)`; `floor(incarnation, queue)` the offset up to
        which a queue was given up although its bytes may still be there."""
        super().__init__(storage, environment, seed, next_offsets, cache_bytes=cache_bytes)
        self._floor = floor or _nothing_given_up
        self._last_found: dict[QueueKey, int] = {}

    def locate(
        self, incarnation: int, queue: int, offset: int, readable: int, max_bytes: int
    ) -> Iterator[Entry]:
        """The queue's batches from `offset` on that end at or below the position `readable`, of
        one segment: at least one if there is any, and no more than `max_bytes` but for that one.

        Empty: nothing is there. The first one begins above `offset` when batches are missing.
        To be used up at once: what is appended or cut meanwhile may show.
        """
        key = incarnation, queue
        columns = self._open.queue(key)
        if columns is None or columns.bases[0] > offset:
            # Not in the newest segment, where those are who have read all the rest.
            columns = self._columns(self._find(key, offset), key)
        if columns is None:
            return iter(())
        row = max(bisect_right(columns.bases, offset) - 1, 0)
        if columns.bases[row] + columns.spans[row] <= offset:
            row += 1
        return _rows(columns, row, readable, max_bytes)

    def next_after_gap(self, incarnation: int, queue: int, offset: int) -> int | None:
        """Where the queue goes on in a later segment, when `locate` has nothing at `offset`; None
        if there is no later one."""
        key = incarnation, queue
        following = self._find(key, offset) + 1
        return self._start(following, key) if following < len(self._bases) else None

    def min_offset(self, incarnation: int, queue: int) -> int:
        """The first offset that the oldest segment has or would have (0 for a queue that is younger
        than that segment), but none that was given up. Before the first segment of all there was
        nothing, also if the first batch that can be read is a later one."""
        first = self._start(0, (incarnation, queue)) if self._bases[0] else 0
        return max(first, self._floor(incarnation, queue))

    def next_offset_before(self, incarnation: int, queue: int, position: int) -> int:
        """The queue's next offset, counting only batches that end at or below `position`."""
        key = incarnation, queue
        newest = self._open.next_offset_up_to(key, position)
        if newest is not None:
            return newest
        at = bisect_right(self._bases, position) - 1
        if at < 0:
            return self._start(0, key)
        columns = self._columns(at, key)
        if columns is None:
            return self._start(at, key)
        row = bisect_right(columns.positions, position) - 1
        if row >= 0 and columns.positions[row] + columns.sizes[row] > position:
            row -= 1
        return columns.bases[row] + columns.spans[row] if row >= 0 else self._start(at, key)

    def offset_by_time(self, incarnation: int, queue: int, time_ms: int) -> int:
        """The base offset of the queue's first batch stored at or after `time_ms` (since 1970) in
        the oldest segment that has one, but none that was given up; the queue's next offset if
        none has."""
        key = incarnation, queue
        for at, base in enumerate(self._bases):
            newest = self._newest_times.get(base)
            if newest is None:
                newest = self._segment(at).newest
            columns = self._columns(at, key) if newest >= time_ms else None
            row = 0 if columns is None else bisect_left(columns.times, time_ms)
            if columns is not None and row < len(columns.times):
                return max(columns.bases[row], self._floor(incarnation, queue))
        return self._next_offsets.get(incarnation, queue)

    def time_at(self, incarnation: int, queue: int, offset: int) -> int | None:
        """The newest store time (ms since 1970) that the queue has up to the batch of `offset`, in
        the segment where that lies; None if there is no such batch."""
        key = incarnation, queue
        columns = self._columns(self._find(key, offset), key)
        row = -1 if columns is None else bisect_right(columns.bases, offset) - 1
        if columns is None or row < 0 or columns.bases[row] + columns.spans[row] <= offset:
            return None
        return columns.times[row]

    def _find(self, key: QueueKey, offset: int) -> int:
        """The number of the last segment at whose start the queue's next offset was at or below
        `offset`; 0 if there is none."""
        last = len(self._bases) - 1
        if self._start(last, key) <= offset:
            return last
        hint = self._last_found.get(key, -1)
        at = bisect_left(self._bases, hint)
        if self._bases[at : at + 1] == [hint] and self._holds(at, key, offset):
            return at
        low, high = 0, last - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._start(middle, key) <= offset:
                low = middle
            else:
                high = middle - 1
        if len(self._last_found) >= HINTS_MAX:
            self._last_found.clear()
        self._last_found[key] = self._bases[low]
        return low

    def _holds(self, at: int, key: QueueKey, offset: int) -> bool:
        """Whether the segment has the batch of this offset, so that no other needs to be asked."""
        columns = self._columns(at, key)
        return columns is not None and columns.bases[0] <= offset < columns.next_offset


def _nothing_given_up(incarnation: int, queue: int) -> int:
    return 0


def _rows(columns: Columns, row: int, readable: int, max_bytes: int) -> Iterator[Entry]:
    """The rows from `row` on, as far as both limits allow; the first one whatever its size."""
    bases, spans, positions = columns.bases, columns.spans, columns.positions
    left = max(max_bytes, columns.sizes[row]) if row < len(bases) else 0
    for at in range(row, len(bases)):
        base, position, size = bases[at], positions[at], columns.sizes[at]
        left -= size
        if left < 0 or position + size > readable:
            return
        yield Entry(base, base + spans[at], position, size)
