"""Going through a segment at the pace of a start: half a million batches in about a second.

A batch of messages is believed by its two CRCs and its place alone: its table was proven before
it was stamped. It comes as a tuple of what a replay wants. Everything else is left to
`scan_segment`: control batches, cuts, and whatever is not right.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from crc32c import crc32c

from cometmq.batch import FLAG_CUT, MAGIC, Batch, believe, parse
from cometmq.batch.layout import FIXED_BYTES, KIND_SHIFT, LENGTH_AT, SEALED_AT
from cometmq.errors import BatchError
from cometmq.log.scan import WINDOW_BYTES, Problem, Read, resync, scan_segment

Plain = tuple[int, int, int, int, int, int, int, int, int]
"""A batch of messages: position, length, epoch, synced_before, base offset, next offset, store
time, incarnation, queue."""

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
    bodies: bool = True,
) -> Iterator[Plain | Batch | Problem]:
    """What `scan_segment` yields, see there; batches of messages as tuples, unless they are larger
    than what is read at once, or `whole` asks for all of them as batches. With `bodies=False` a
    batch whose producer's CRC is wrong may pass, as a `Batch`, if the rest of it is right."""
    end = base + size
    position = base if start is None else start
    while position < end:
        part = _quick_part(read, position, end, seed, whole)
        if not part:
            scan = scan_segment(read, base, size, seed, start=position, bodies=bodies)
            _, slow = next(scan)
            if isinstance(slow, Problem):
                yield slow
                return
            part.append(slow)
        yield from part
        last = part[-1]
        position = last[0] + last[1] if isinstance(last, tuple) else _end_of(last)


def quick_scan_on(read: Read, base: int, size: int, seed: int) -> Iterator[Plain | Batch | Problem]:
    """`quick_scan` without bodies, where each problem is followed by the next intact batch, if
    there is one: the whole segment is gone through."""
    start: int | None = base
    while start is not None:
        problem: Problem | None = None
        for found in quick_scan(read, base, size, seed, start=start, bodies=False):
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


def _end_of(batch: Batch) -> int:
    return batch.position + batch.length


def _quick_part(read: Read, start: int, end: int, seed: int, whole: bool) -> list[Plain | Batch]:
    """The batches that lie whole in one window, up to one that is not quickly believed."""
    found: list[Plain | Batch] = []
    try:
        data = read(start, min(WINDOW_BYTES, end - start))
    except OSError:
        return found
    view = memoryview(data)
    at, limit = 0, len(data) - FIXED_BYTES
    unpack, crc_of = _HEADER.unpack_from, crc32c
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
        if is_plain and not whole:
            found.append(
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
        else:
            try:
                piece = view[at:following]
                found.append(believe(piece) if is_plain else parse(piece))
            except BatchError:
                break
        at = following
    return found
