"""The head checkpoint of a segment: all small state in slices, so that a start needs no more.

It is fuzzy: slices are encoded one by one while the state goes on changing, and lie among other
batches. A start loads all of them, then replays from the beginning of the segment; views are made
so that this gives the same state (see `StateView`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cometmq.batch import Batch, Kind
from cometmq.interfaces import Segment
from cometmq.log.records import CheckpointEnd, CheckpointSlice, read_records
from cometmq.log.scan import Problem, Read, scan_segment


class CheckpointWriter:
    """Gives the batches of one checkpoint, one at a time."""

    def __init__(self, checkpoint: int, slices: Iterator[tuple[str, bytes]]) -> None:
        """`checkpoint` is its id: the position of its segment."""
        self._checkpoint = checkpoint
        self._slices = slices
        self._count = 0
        self._pending: tuple[int, msgspec.Struct] | None = None
        self._failure: Exception | None = None
        self.ended = False

    def peek(self) -> tuple[int, msgspec.Struct]:
        """Kind and record of the batch that comes next; the same until `take`. Raises what a view
        does that can't tell its state, from then on: a checkpoint without it never ends."""
        if self._failure is not None:
            raise self._failure
        if self._pending is None:
            try:
                found = next(self._slices, None)
            except Exception as error:
                self._failure = error
                raise
            if found is None:
                end = CheckpointEnd(self._checkpoint, self._count)
                self._pending = Kind.CHECKPOINT_END, end
            else:
                self._pending = Kind.CHECKPOINT_SLICE, CheckpointSlice(self._checkpoint, *found)
        return self._pending

    def take(self) -> None:
        """What `peek` gave is in the log."""
        kind, _ = self.peek()
        self._pending = None
        self._count += 1
        self.ended = kind == Kind.CHECKPOINT_END


class Checkpoint(msgspec.Struct, frozen=True):
    """A whole head checkpoint as found in a segment."""

    base: int
    end: int
    """Position behind its last batch."""
    slices: list[CheckpointSlice]


def read_checkpoint(
    read: Read, segment: Segment, size: int, seed: int, *, limit: int | None = None
) -> Checkpoint | None:
    """The head checkpoint of a segment of `size` bytes, or None if it is not whole.

    `limit`: only if it ends at or below this position. A bad batch before its end makes it not
    whole: what the slices behind that place know of it can't be told.
    """
    slices: list[CheckpointSlice] = []
    for position, found in scan_segment(read, segment.base, size, seed):
        if isinstance(found, Problem):
            return None
        end = position + found.length
        if limit is not None and end > limit:
            return None
        if found.kind == Kind.CHECKPOINT_SLICE:
            slices.extend(_own(found, segment.base))
        elif found.kind == Kind.CHECKPOINT_END:
            (record,) = read_records(CheckpointEnd, found)
            whole = record == CheckpointEnd(segment.base, len(slices))
            return Checkpoint(segment.base, end, slices) if whole else None
    return None


def _own(batch: Batch, checkpoint: int) -> list[CheckpointSlice]:
    records = read_records(CheckpointSlice, batch)
    return [record for record in records if record.checkpoint == checkpoint]
