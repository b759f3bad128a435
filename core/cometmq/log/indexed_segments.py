"""The indexes of all segments of a log: which are in memory, and how the other ones get there.

The open segment's index grows in memory with every append (and replay). A sealed segment's is
written beside it and loaded when needed, into a cache bounded by bytes. Nothing here blocks the
loop: loading, rebuilding and writing happen in a thread.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol, TypeVar

from cometmq.environment import Environment
from cometmq.interfaces import Storage
from cometmq.log.index_files import IndexFiles, Stretch
from cometmq.log.segment_index import SUFFIX, Columns, OpenSegment, QueueKey, SealedSegment

T = TypeVar("T")

CACHE_BYTES = 64 << 20
_HELD = 17
"""Indexes that one look-up may keep loaded, whatever the bytes: it bisects over the segments."""
_SLICE = 500
"""Queues per step of the loop while an index is prepared for writing."""


class NotLoaded(Exception):
    """A look-up needs the index of the segment at `base`, which is not in memory."""

    def __init__(self, base: int) -> None:
        super().__init__(f"the index of the segment at position {base} is not in memory")
        self.base = base


class NextOffsetsView(Protocol):
    """The state view `next-offsets`, as far as the index needs it."""

    def get(self, incarnation: int, queue: int) -> int:
        """The offset of the queue's next message; 0 for an unknown queue."""

    def items(self) -> Iterator[tuple[QueueKey, int]]:
        """((incarnation, queue), next offset) of all queues; the state may change meanwhile."""


class IndexedSegments:
    """The indexes of all segments of one log. All methods are called on the loop's thread.

    Tell it of the segments oldest first: `known` for those that are not replayed, `open`, `add`
    and `seal` for those that are, and from then on for what is appended. After `seal`, let
    `write` run as a task.
    """

    def __init__(
        self,
        storage: Storage,
        environment: Environment,
        seed: int,
        next_offsets: NextOffsetsView,
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """`seed` is `cometmq.batch.seed(log_id)`."""
        self._storage = storage
        self._environment = environment
        self._next_offsets = next_offsets
        self._files = IndexFiles(storage, seed)
        self._cache_bytes = cache_bytes
        self._bases: list[int] = []
        self._ends: dict[int, int] = {}
        self._memory: dict[int, OpenSegment] = {}
        self._open = OpenSegment(0)
        self.take = self._open.add
        """The same as `add`, as the open segment itself has it."""
        self._cache: OrderedDict[int, SealedSegment] = OrderedDict()
        self._cached_bytes = 0
        self._oldest: SealedSegment | None = None
        self._newest_times: dict[int, int] = {}
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._looking = 0
        self.changes = 0
        """Counts cuts and trims: what was decided before one may not hold after it."""
        self._writing = asyncio.Lock()

    # --- growing ------------------------------------------------------------------------------

    @property
    def read_only(self) -> bool:
        """True: no index file is written (a log in doubt)."""
        return self._files.read_only

    @read_only.setter
    def read_only(self, value: bool) -> None:
        self._files.read_only = value

    def known(self, base: int, end: int) -> None:
        """There is a sealed segment with the bytes [base, end), newer than all told before."""
        self._bases.append(base)
        self._ends[base] = end

    def open(self, base: int) -> None:
        """A segment begins at `base`: batches come by `add`. What was known from there on is
        forgotten (it is replayed)."""
        if self._bases and base <= self._bases[-1]:
            self.changes += 1
        self._drop(bisect_left(self._bases, base), len(self._bases))
        self._bases.append(base)
        self._memory[base] = OpenSegment(base)
        self._begin(self._memory[base])

    def _begin(self, segment: OpenSegment) -> None:
        """It is the newest one, and batches come to it."""
        self._open = segment
        self.take = segment.add

    def add(
        self,
        incarnation: int,
        queue: int,
        base_offset: int,
        next_offset: int,
        position: int,
        size: int,
        store_time: int,
    ) -> None:
        """A batch of messages of `size` bytes was appended at `position` to the open segment."""
        span = next_offset - base_offset
        self.take((incarnation, queue), base_offset, span, position, size, store_time)

    def seal(self, base: int, end: int) -> None:
        """The open segment is complete: it has the bytes [base, end). `write` is to be run.
        Nothing happens if the segment at `base` is not open (sealed before, cut, or gone)."""
        segment = self._memory.get(base)
        if segment is not None and not segment.sealed:
            segment.sealed = True
            segment.end = self._ends[base] = end

    def cut(self, position: int) -> None:
        """The log was cut at `position`: what lies behind it is forgotten."""
        self.changes += 1
        self._drop(bisect_left(self._bases, position), len(self._bases))
        if self._memory.get(self._open.base) is not self._open:
            self._begin(OpenSegment(0))
        if not self._bases:
            return
        base = self._bases[-1]
        segment = self._memory.get(base)
        if segment is not None:
            segment.cut(position)
            self._ends.pop(base, None)
        elif position < self._ends[base]:
            self._ends[base] = position
            self._forget(base)
            self._storage.remove_side(base, SUFFIX)

    async def trim(self, position: int) -> None:
        """The log begins at `position` now, the base of a segment: older segments are forgotten,
        min offsets move."""
        at = bisect_left(self._bases, position, 0, len(self._bases) - 1)
        if self._bases[at] not in self._memory:
            # Loaded first, so that min offsets are known at every moment.
            await self.load(self._bases[at])
        self._drop(0, bisect_left(self._bases, position, 0, len(self._bases) - 1))
        self.changes += 1
        self._oldest = self._cache.get(self._bases[0])

    async def write(self) -> None:
        """Write the index of every sealed segment that has no file yet; until then look-ups are
        served from memory. Bounded work per step of the loop, the rest in a thread."""
        async with self._writing:
            while not self.read_only:
                segment = next((s for s in self._memory.values() if s.sealed), None)
                if segment is None:
                    return
                await self._write(segment)

    async def load(self, base: int) -> None:
        """Bring the index of a sealed segment into memory, made again if its file is missing or
        damaged. Raises OSError when the segment can't be read."""
        task = self._loads.get(base)
        if task is None:
            task = self._loads[base] = asyncio.create_task(self._load(base))
            task.add_done_callback(lambda _: self._loads.pop(base))
        await asyncio.shield(task)

    async def when_loaded(self, look_up: Callable[[], T]) -> T:
        """What `look_up` returns, once the indexes that it needs are in memory."""
        self._looking += 1
        try:
            while True:
                try:
                    return look_up()
                except NotLoaded as missing:
                    await self.load(missing.base)
        finally:
            self._looking -= 1
            self._evict()

    # --- for look-ups -------------------------------------------------------------------------

    def _segment(self, at: int) -> OpenSegment | SealedSegment:
        """The index of the segment number `at`. Raises NotLoaded."""
        segment = self._memory.get(self._bases[at])
        return self._sealed(at) if segment is None else segment

    def _sealed(self, at: int) -> SealedSegment:
        """The same, of one that is not in memory as long as it is open. Raises NotLoaded."""
        base = self._bases[at]
        sealed = self._cache.get(base)
        if sealed is not None:
            self._cache.move_to_end(base)
            return sealed
        if at == 0 and self._oldest is not None:
            return self._oldest
        raise NotLoaded(base)

    def _columns(self, at: int, key: QueueKey) -> Columns | None:
        """The batches of a queue in the segment number `at`. Raises NotLoaded."""
        return self._segment(at).queue(key)

    def _start(self, at: int, key: QueueKey) -> int:
        """The queue's next offset at the start of the segment number `at`. Raises NotLoaded.

        A segment in memory has no list of them: a queue without batches in it still had the next
        offset that it has where its next batch lies, or now."""
        for following in range(at, len(self._bases)):
            segment = self._memory.get(self._bases[following])
            if segment is None:
                return self._sealed(following).start(key)
            first = segment.first_offset(key)
            if first is not None:
                return first
        return self._next_offsets.get(*key)

    # --- within -------------------------------------------------------------------------------

    async def _write(self, segment: OpenSegment) -> None:
        changes = self.changes
        starts: dict[QueueKey, int] = {}
        queues = self._next_offsets.items()
        while part := list(islice(queues, _SLICE)):
            at = bisect_left(self._bases, segment.base)
            for key, _ in part:
                start = self._start(at, key)
                if start:
                    starts[key] = start
            await self._environment.clock.sleep(0)
            if changes != self.changes:
                # Next offsets may have fallen: begin again.
                return
        end = segment.end
        sealed = await self._environment.threads.run(lambda: self._files.write(segment, starts))
        if self._memory.get(segment.base) is segment and self._ends.get(segment.base) == end:
            del self._memory[segment.base]
            self._keep(sealed)
        elif segment.base not in self._bases:
            self._storage.remove_side(segment.base, SUFFIX)

    async def _load(self, base: int) -> None:
        at = bisect_left(self._bases, base)
        if self._bases[at : at + 1] != [base] or base in self._memory or base in self._cache:
            return
        stretches = [Stretch(b, self._ends[b]) for b in self._bases[: at + 1]]
        sealed = await self._environment.threads.run(lambda: self._files.load(stretches))
        if self._ends.get(base) == sealed.end and base not in self._memory:
            self._keep(sealed)
        elif base not in self._bases:
            self._storage.remove_side(base, SUFFIX)

    def _keep(self, sealed: SealedSegment) -> None:
        self._cache[sealed.base] = sealed
        self._cached_bytes += sealed.memory_bytes
        self._newest_times[sealed.base] = sealed.newest
        if sealed.base == self._bases[0]:
            # Every fetch asks for the min offset.
            self._oldest = sealed
        self._evict()

    def _evict(self) -> None:
        least = _HELD if self._looking else 1
        while self._cached_bytes > self._cache_bytes and len(self._cache) > least:
            _, sealed = self._cache.popitem(last=False)
            self._cached_bytes -= sealed.memory_bytes

    def _drop(self, first: int, last: int) -> None:
        """Forget the segments number `first` up to `last`."""
        for base in self._bases[first:last]:
            self._ends.pop(base, None)
            self._memory.pop(base, None)
            self._forget(base)
        del self._bases[first:last]

    def _forget(self, base: int) -> None:
        """Forget the loaded index of a segment."""
        sealed = self._cache.pop(base, None)
        if sealed is not None:
            self._cached_bytes -= sealed.memory_bytes
        self._newest_times.pop(base, None)
        if self._oldest is not None and self._oldest.base == base:
            self._oldest = None
