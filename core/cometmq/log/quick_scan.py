"""Going through a segment at the pace of a start: half a million batches in about a second.

A batch of messages is believed by its two CRCs and its place alone: its table was proven before
it was stamped. It comes as a tuple of what a replay wants. Everything else is left to
`scan_segment`: control batches, cuts, and whatever is not right.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import repeat

from crc32c import crc32c

from cometmq.batch import FLAG_CUT, MAGIC, Batch, believe, parse
from cometmq.batch.layout import FIXED_BYTES, KIND_SHIFT, LENGTH_AT, SEALED_AT
from cometmq.errors import BatchError
from cometmq.log.scan import WINDOW_BYTES, Problem, Read, resync, scan_segment

Plain = tuple[int, int, int, int, int, int, int, int, int]
"""A batch of messages: position, length, epoch, synced_before, base offset, next offset, store
time, incarnation, queue."""

ROWS = 512
"""Fewer than what has Python's collector go through them, which takes a seventh of the time."""
_CONTROL = 1 << KIND_SHIFT
_HEADER = struct.Struct("<III QQQQqQ H x B 8x I H 2x I")
"""Of the fixed parts (`cometmq.batch.layout`) only what is looked at here: each field costs."""


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
    for found in quick_runs(read, base, size, seed, start=start, whole=whole):
        if isinstance(found, list):
            yield from found
        else:
            yield found


def quick_runs(
    read: Read,
    base: int,
    size: int,
    seed: int,
    *,
    start: int | None = None,
    whole: bool = False,
    bodies: bool = True,
) -> Iterator[list[Plain] | Batch | Problem]:
    """The same, with the tuples that follow one another in lists of up to `ROWS`. With
    `bodies=False` a batch whose producer's CRC is wrong may pass, as a `Batch`, if the rest of it
    is right."""
    end = base + size
    position = base if start is None else start
    while position < end:
        begin = position
        for found in _believed(read, position, end, seed, whole):
            position = _end_of(found)
            yield found
        if position == begin:
            scan = scan_segment(read, base, size, seed, start=position, bodies=bodies)
            _, slow = next(scan)
            yield slow
            if isinstance(slow, Problem):
                return
            position = _end_of(slow)


def quick_runs_on(
    read: Read, base: int, size: int, seed: int
) -> Iterator[list[Plain] | Batch | Problem]:
    """`quick_runs` without bodies, where each problem is followed by the next intact batch, if
    there is one: the whole segment is gone through."""
    start: int | None = base
    while start is not None:
        problem: Problem | None = None
        for found in quick_runs(read, base, size, seed, start=start, bodies=False):
            if isinstance(found, Problem):
                problem = found
            yield found
        if problem is None or problem.kind == "zeros":
            return
        start = resync(read, base, size, seed, problem.resume)


def plain(batch: Batch) -> Plain:
    """What the quick scan says of a batch of messages."""
    return (
        batch.position,
        batch.length,
        batch.epoch,
        batch.synced_before,
        batch.base_offset,
        batch.next_offset,
        batch.store_time,
        batch.incarnation,
        batch.queue,
    )


def _end_of(found: list[Plain] | Batch) -> int:
    if isinstance(found, Batch):
        return found.position + found.length
    return found[-1][0] + found[-1][1]


def _believed(
    read: Read, start: int, end: int, seed: int, whole: bool
) -> Iterator[list[Plain] | Batch]:
    """What lies whole in one window, up to a batch that is not quickly believed."""
    try:
        data = read(start, min(WINDOW_BYTES, end - start))
    except OSError:
        return
    view = memoryview(data)
    position, more = start, True
    while more:
        rows, other = _take(data, view, start, position, seed, whole)
        more = len(rows) == ROWS or other is not None
        if rows:
            position = _end_of(rows)
            yield rows
        if other is not None:
            position = _end_of(other)
            yield other


def _take(
    data: bytes, view: memoryview, start: int, position: int, seed: int, whole: bool
) -> tuple[list[Plain], Batch | None]:
    """Up to `ROWS` batches as rows, out of the window that begins at `start`; and the one behind
    them, if it is believed and no row."""
    rows: list[Plain] = []
    at, limit = position - start, len(data) - FIXED_BYTES
    unpack, crc_of = _HEADER.unpack_from, crc32c
    for _ in repeat(None, ROWS):
        if at > limit:
            break
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
            flags,
            producer_crc,
            attributes,
            count,
        ) = unpack(data, at)
        following = at + length
        sealed = at + SEALED_AT
        if (
            magic != MAGIC
            or position != start + at
            or following > limit + FIXED_BYTES
            or length < FIXED_BYTES
            or crc_of(data[at + LENGTH_AT : sealed], seed) != broker_crc
            or crc_of(view[sealed:following]) != producer_crc
        ):
            break
        is_plain = attributes < _CONTROL and not flags & FLAG_CUT
        if whole or not is_plain:
            return rows, _whole(view[at:following], is_plain)
        rows.append(
            (
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
        )
        at = following
    return rows, None


def _whole(piece: memoryview, is_plain: bool) -> Batch | None:
    """A batch whose CRCs are right, if there is nothing else wrong."""
    try:
        return believe(piece) if is_plain else parse(piece)
    except BatchError:
        return None
