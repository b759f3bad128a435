"""How many bytes the queues hold, and how old segments are: for whoever frees space.

What was once added up about a sealed segment is remembered, so that a look-up over all segments
gets on although few indexes fit into memory at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from cometmq.environment import Environment
from cometmq.interfaces import Storage
from cometmq.log.indexed_segments import CACHE_BYTES, IndexedSegments, NextOffsetsView
from cometmq.log.segment_index import QueueKey


class _Share(NamedTuple):
    """What one queue has in one segment."""

    start: int
    """Its next offset at the segment's start."""
    bytes: int


class QueueSizes(IndexedSegments):
    """Sums over the indexes of all segments. Each look-up may raise NotLoaded."""

    def __init__(
        self,
        storage: Storage,
        environment: Environment,
        seed: int,
        next_offsets: NextOffsetsView,
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        super().__init__(storage, environment, seed, next_offsets, cache_bytes=cache_bytes)
        self._shares: dict[int, dict[QueueKey, _Share]] = {}

    def newest_time(self, base: int) -> int | None:
        """The newest store time (ms since 1970) of a message in the segment at `base`; None if it
        has no messages, or is not there (any more)."""
        at = bisect_right(self._bases, base) - 1
        if self._bases[at : at + 1] != [base]:
            return None
        newest = self._newest_times.get(base)
        if newest is None:
            segment = self._segment(at)
            newest = segment.newest
        return newest if newest >= 0 else None

    def bytes_from(self, incarnation: int, queue: int, offset: int) -> int:
        """Bytes of the queue's batches that hold `offset` or lie behind it."""
        key = incarnation, queue
        total = 0
        for at in reversed(range(len(self._bases))):
            share = self._share(at, key)
            if share.start <= offset:
                return total + self._bytes_within(at, key, offset)
            total += share.bytes
        return total

    def newest_begin(self, keys: Sequence[QueueKey], max_bytes: int) -> int:
        """The position from which on these queues hold at most `max_bytes`; 0 if all fits."""
        left = max_bytes
        for at in reversed(range(len(self._bases))):
            total = sum(self._share(at, key).bytes for key in keys)
            if total > left:
                return self._begin_within(at, keys, left)
            left -= total
        return 0

    def cut(self, position: int) -> None:
        super().cut(position)
        self._shares.clear()

    def _share(self, at: int, key: QueueKey) -> _Share:
        base = self._bases[at]
        known = self._shares.get(base, {}).get(key)
        if known is not None:
            return known
        columns = self._columns(at, key)
        size = 0 if columns is None else sum(columns.sizes)
        share = _Share(self._start(at, key), size)
        if at < len(self._bases) - 1:
            self._shares.setdefault(base, {})[key] = share
        return share

    def _bytes_within(self, at: int, key: QueueKey, offset: int) -> int:
        columns = self._columns(at, key)
        if columns is None:
            return 0
        row = max(bisect_right(columns.bases, offset) - 1, 0)
        if columns.bases[row] + columns.spans[row] <= offset:
            row += 1
        return sum(columns.sizes[row:])

    def _begin_within(self, at: int, keys: Sequence[QueueKey], left: int) -> int:
        """The same as `newest_begin`, for the segment in which the bytes run out."""
        batches: list[tuple[int, int]] = []
        for key in keys:
            columns = self._columns(at, key)
            if columns is not None:
                batches.extend(zip(columns.positions, columns.sizes, strict=True))
        for position, size in sorted(batches, reverse=True):
            if size > left:
                return position + size
            left -= size
        return self._bases[at]

    def _forget(self, base: int) -> None:
        super()._forget(base)
        self._shares.pop(base, None)
