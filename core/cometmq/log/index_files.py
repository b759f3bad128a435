"""Index files: read, written, and made again from their segment. Blocking; made for a thread."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from cometmq.batch import Batch, Kind, verify_producer
from cometmq.batch.layout import KIND_SHIFT
from cometmq.errors import BatchError, LogError
from cometmq.interfaces import Storage
from cometmq.log.next_offsets import NextOffsets
from cometmq.log.quick_scan import Plain, plain, quick_runs_on
from cometmq.log.records import CheckpointEnd, CheckpointSlice, read_records
from cometmq.log.scan import Problem, Read
from cometmq.log.segment_index import SUFFIX, BadIndex, OpenSegment, QueueKey, SealedSegment

logger = logging.getLogger(__name__)
_key_of = itemgetter(7, 8)
"""Of a row: incarnation and queue."""


class Stretch(NamedTuple):
    """A sealed segment: its bytes are [base, end) of the log."""

    base: int
    end: int


class IndexFiles:
    """The index files of one log. `read_only`: nothing is written, whatever is found."""

    def __init__(self, storage: Storage, seed: int) -> None:
        self.read_only = False
        self._storage = storage
        self._seed = seed

    def load(self, segments: list[Stretch]) -> SealedSegment:
        """The index of the last of some adjoining segments, from its file; made again from the
        segment if there is no whole one. Raises OSError when the segment can't be read."""
        stretch = segments[-1]
        try:
            data = self._storage.read_side(stretch.base, SUFFIX)
            if data is not None:
                return SealedSegment(data, *stretch, self._seed)
            reason = "there is none"
        except (OSError, BadIndex) as error:
            reason = str(error)
        logger.warning(
            "the queue index of the segment at position %d is made again: %s", stretch.base, reason
        )
        return self.rebuild(segments)

    def rebuild(self, segments: list[Stretch]) -> SealedSegment:
        """The index of the last of some adjoining segments, from its batches."""
        found = scan_index(self._storage.read, segments[-1], self._seed)
        starts = found.starts
        complete = found.whole or segments[-1].base == 0
        if not complete and len(segments) > 1:
            # A crash ended this segment early, or its checkpoint is damaged.
            starts = self.load(segments[:-1]).ends() | starts
            complete = True
        if complete:
            # Who is not named had no messages: their first batch here may be damaged all the same.
            starts = dict.fromkeys(found.index.keys(), 0) | starts
        if found.unreadable:
            # The disk may give these bytes another time.
            data = b"".join(found.index.encode(starts, self._seed))
            return SealedSegment(data, *segments[-1], self._seed)
        return self.write(found.index, starts)

    def write(self, index: OpenSegment, starts: Mapping[QueueKey, int]) -> SealedSegment:
        """Write the file of a sealed segment; the index as it would be read from it."""
        data = b"".join(index.encode(starts, self._seed))
        if not self.read_only:
            try:
                self._storage.write_side(index.base, SUFFIX, [data])
            except (OSError, LogError) as error:
                # It is derived: the next one that needs it makes it again.
                logger.warning(
                    "the queue index of the segment at position %d was not written: %s",
                    index.base,
                    error,
                )
        return SealedSegment(data, index.base, index.end, self._seed)


@dataclass(frozen=True)
class Scanned:
    """What the bytes of a segment give."""

    index: OpenSegment
    starts: dict[QueueKey, int]
    """Next offsets out of its head checkpoint."""
    whole: bool
    """The head checkpoint is there, every slice of it."""
    unreadable: bool
    """The disk refused to read some of it."""


def scan_index(read: Read, stretch: Stretch, seed: int) -> Scanned:
    """Go through a segment. Damaged batches are left out of its index, as a gap."""
    base, end = stretch
    index = OpenSegment(base)
    checkpoint = NextOffsets()
    slices = 0
    whole = unreadable = False
    for found in quick_runs_on(read, base, end - base, seed):
        if isinstance(found, list):
            _add(index, found)
        elif isinstance(found, Problem):
            unreadable |= found.kind == "unreadable"
            logger.warning(
                "the segment at position %d is damaged at position %d: %s",
                base,
                found.position,
                found.reason,
            )
        elif not (kind := found.attributes >> KIND_SHIFT):
            _add(index, [plain(found)])
        elif kind == Kind.CHECKPOINT_SLICE:
            slices += _join(checkpoint, found, base)
        elif kind == Kind.CHECKPOINT_END:
            whole = whole or _ends(found, CheckpointEnd(base, slices))
    index.end = end
    index.sealed = True
    return Scanned(index, dict(checkpoint.items()), whole, unreadable)


def _add(index: OpenSegment, rows: Sequence[Plain]) -> None:
    """Take these batches of messages; those of no topic (incarnation 0) belong to no queue."""
    queues: defaultdict[QueueKey, list[Plain]] = defaultdict(list)
    for key, row in zip(map(_key_of, rows), rows, strict=True):
        queues[key].append(row)
    for key, batches in queues.items():
        if key[0]:
            positions, sizes, _, _, bases, following, times, _, _ = zip(*batches, strict=True)
            index.extend(key, bases, following, positions, sizes, times)


def _join(checkpoint: NextOffsets, batch: Batch, base: int) -> int:
    """Take a slice of the checkpoint of the segment at `base`; how many intact ones it was."""
    slices = 0
    try:
        verify_producer(batch)
        for shard in read_records(CheckpointSlice, batch):
            if shard.view == NextOffsets.name:
                checkpoint.load(shard.data)
            slices += shard.checkpoint == base
    except (BatchError, ValueError) as error:
        logger.warning("the checkpoint slice at position %d: %s", batch.position, error)
    return slices


def _ends(batch: Batch, whole: CheckpointEnd) -> bool:
    """Whether this is the end of a checkpoint of which everything was found."""
    try:
        verify_producer(batch)
        return whole in read_records(CheckpointEnd, batch)
    except (BatchError, ValueError) as error:
        logger.warning("the end of the checkpoint at position %d: %s", batch.position, error)
        return False
