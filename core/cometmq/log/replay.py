"""From the batches in the segments to the state and the index of the queues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from cometmq.batch import Batch
from cometmq.log.checkpoint import Checkpoint, read_checkpoint
from cometmq.log.quick_scan import Plain
from cometmq.log.scan import Problem, Read
from cometmq.log.spans import Span, walk_quickly
from cometmq.log.state import State


class Index(Protocol):
    """What the log and its replay tell the index of the queues."""

    def known(self, base: int, end: int) -> None:
        """A segment that is not replayed."""

    def open(self, base: int) -> None:
        """What is added next lies in the segment at `base`."""

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
        """A batch of messages was stored."""

    def seal(self, base: int, end: int) -> None:
        """The open segment is complete."""


class Replay:
    """Applies batches in order and remembers what they tell about the log."""

    def __init__(self, state: State, index: Index | None, node: str, spans: Sequence[Span]) -> None:
        """`node`: who we are, in hex; `spans`: the segments that are replayed. Without an index
        only the state is made."""
        self._state = state
        self._index = index
        self._node = node
        self._bases = [span.base for span in spans]
        self.open_base: int | None = None
        """Base of the segment whose index is open."""
        self.batches = 0
        self.end = spans[0].base
        """Position behind the last batch applied."""
        self.proven = 0
        """What our own stamps say was on disk."""
        self.stamped = 0
        """What all stamps say was on disk, somewhere."""
        self.store_time = 0
        self.last_kind = -1
        self.epoch = 0
        """The newest one."""

    def run(self, found: Iterable[Plain | Batch | Problem]) -> Problem | None:
        """Apply until something else than a batch comes; that is returned."""
        index, border = self._index, self._next_border()
        advance = self._state.next_offsets.advance
        epoch, own, batches, stamp = -1, False, 0, self.stamped
        for item in found:
            if isinstance(item, tuple):
                position, length, stamped, synced, base, following, time, incarnation, queue = item
                if position >= border:
                    border = self._cross(position)
                if incarnation:
                    advance(incarnation, queue, following)
                    if index is not None:
                        index.add(incarnation, queue, base, following, position, length, time)
                self.last_kind = 0
            elif isinstance(item, Problem):
                self.batches += batches
                self.stamped = stamp
                return item
            else:
                position, length, time = item.position, item.length, item.store_time
                stamped, synced = item.epoch, item.synced_before
                if position >= border:
                    border = self._cross(position)
                self._take(item)
                epoch = -1
            if stamped != epoch:
                epoch = stamped
                own = self._is_own(epoch)
            # Never lower than before: what is stamped later knows at least as much.
            stamp = synced
            if own:
                self.proven = synced
            batches += 1
            self.end = position + length
            self.store_time = time
        self.batches += batches
        self.stamped = stamp
        return None

    def _take(self, batch: Batch) -> None:
        """A batch that is more than a row of the index."""
        self.last_kind = batch.kind
        self._state.apply(batch)
        if not batch.kind and self._index is not None and batch.incarnation:
            self._index.add(
                batch.incarnation,
                batch.queue,
                batch.base_offset,
                batch.next_offset,
                batch.position,
                batch.length,
                batch.store_time,
            )

    def _is_own(self, epoch: int) -> bool:
        """Whether this node opened the epoch; what it begins with comes before that is known."""
        self.epoch = max(self.epoch, epoch)
        return self._state.epochs.node_of(epoch) == self._node

    def _next_border(self) -> int:
        return self._bases[0] if self._bases else sys.maxsize

    def _cross(self, position: int) -> int:
        """The batch at `position` lies in a later segment; returns where the one after begins."""
        while self._bases and self._bases[0] <= position:
            base = self._bases.pop(0)
            if self._index is not None:
                if self.open_base is not None:
                    self._index.seal(self.open_base, base)
                self._index.open(base)
            self.open_base = base
        return self._next_border()


def walk_for(
    state: State,
) -> Callable[[Read, Sequence[Span], int], Iterator[Plain | Batch | Problem]]:
    """How to go through the log: with batches of messages whole only if somebody's view wants to
    see them."""
    return partial(walk_quickly, whole=bool(state.message_views))


def newest_checkpoint(
    read: Read, spans: Sequence[Span], seed: int, *, limit: int | None = None
) -> tuple[int, Checkpoint] | None:
    """Index into `spans` and checkpoint of the newest segment that has a whole one."""
    for at in range(len(spans) - 1, -1, -1):
        span = spans[at]
        if span.start is None or span.flaw:
            continue
        found = read_checkpoint(read, span.segment, span.size, seed, limit=limit)
        if found is not None:
            return at, found
    return None


def load(state: State, checkpoint: Checkpoint | None) -> None:
    """Make the state what a checkpoint says, or that of an empty log."""
    state.reset()
    if checkpoint is not None:
        for piece in checkpoint.slices:
            state.load(piece.view, piece.data)
