"""Going through a segment at the pace of a start: half a million batches in about a second.

A batch of messages is believed by its two CRCs and its place alone: its table was proven before
it was stamped. It comes as a tuple of what a replay wants. Everything else is left to
`scan_segment`: control batches, cuts, and whatever is not right.
"""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from cometmq.batch import FLAG_CUT, MAGIC, Batch, believe, parse
from cometmq.batch.layout import FIXED_BYTES, HEADER, KIND_SHIFT, LENGTH_AT, SEALED_AT
from cometmq.errors import BatchError
from cometmq.log.scan import WINDOW_BYTES, Problem, Read, scan_segment

Plain = tuple[int, int, int, int, int, int, int, int, int]
"""A batch of messages: position, length, epoch, synced_before, base offset, next offset, store
time, incarnation, queue."""

_CONTROL = 1 << KIND_SHIFT


def quick_scan(
    read: Read,
    base: int,
    size: int,
    seed: int,
    *,
    start: int | None = None,
    whole: bool = False,
) -> Iterator[Plain | Batch | Problem]:
    """What `scan_segment` yields, see there; batches of messages as tuples, unless they are larger
    than what is read at once, or `whole` asks for all of them as batches."""
    end = base + size
    position = base if start is None else start
    while position < end:
        behind = position
        for found in _quick_part(read, position, end, seed, whole):
            yield found
            behind = found[0] + found[1] if isinstance(found, tuple) else _end_of(found)
        if behind == position:
            _, slow = next(scan_segment(read, base, size, seed, start=position))
            yield slow
            if isinstance(slow, Problem):
                return
            behind = _end_of(slow)
        position = behind


def _end_of(batch: Batch) -> int:
    return batch.position + batch.length


def _quick_part(
    read: Read, start: int, end: int, seed: int, whole: bool
) -> Iterator[Plain | Batch]:
    """The batches that lie whole in one window, up to one that is not quickly believed."""
    try:
        view = memoryview(read(start, min(WINDOW_BYTES, end - start)))
    except OSError:
        return
    at, limit = 0, len(view) - FIXED_BYTES
    unpack, crc_of = HEADER.unpack_from, crc32c
    while at <= limit:
        (
            magic,
            broker_crc,
            length,
            position,
            epoch,
            synced_before,
            base_offset,
            store_time,
            incarnation,
            queue,
            _,
            flags,
            _,
            producer_crc,
            attributes,
            _,
            count,
            *_,
        ) = unpack(view, at)
        following = at + length
        sealed = at + SEALED_AT
        if (
            magic != MAGIC
            or position != start + at
            or following > limit + FIXED_BYTES
            or length < FIXED_BYTES
            or crc_of(view[at + LENGTH_AT : sealed], seed) != broker_crc
            or crc_of(view[sealed:following]) != producer_crc
        ):
            return
        plain = attributes < _CONTROL and not flags & FLAG_CUT
        if plain and not whole:
            yield (
                position,
                length,
                epoch,
                synced_before,
                base_offset,
                base_offset + count,
                store_time,
                incarnation,
                queue,
            )
        else:
            try:
                piece = view[at:following]
                yield believe(piece) if plain else parse(piece)
            except BatchError:
                return
        at = following
