"""Going through the bytes of a segment, batch by batch, trusting nothing.

A batch is intact when its two CRCs are right under this log's seed and it lies where its position
says. A scan yields intact batches and stops at the first place that is none, with a `Problem` that
says what lies there; `resync` finds the next intact batch behind such a place. Recovery, the
rebuilding of an index and `mq log inspect` all read through here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec
from crc32c import crc32c

from cometmq.batch import Batch, parse, verify_broker, verify_producer
from cometmq.batch.layout import (
    BATCH_BYTES_MAX,
    FIXED_BYTES,
    LENGTH_AT,
    LENGTH_MIN,
    MAGIC,
    OPENING,
    PRODUCER_CRC_AT,
    SEALED_AT,
    STAMP,
    STAMP_AT,
    STAMPED_BYTES,
    U32,
    VERSION,
)
from cometmq.errors import BatchError

Read = Callable[[int, int], bytes]
"""`read(position, size)`: bytes of one segment, shorter only at its end (`Storage.read`)."""

WINDOW_BYTES = 4 << 20
"""How much is read at once."""
BLOCK_BYTES = 4096
"""How much is given up at once where the disk refuses to read."""

ProblemKind = Literal["zeros", "short", "header", "body", "unreadable", "newer"]

_MAGIC_BYTES = MAGIC.to_bytes(4, "little")


class Problem(msgspec.Struct, frozen=True):
    """A place in a segment where no intact batch lies."""

    position: int
    kind: ProblemKind
    """`zeros`: nothing but zeros from here to the end (prepared space, or never written);
    `short`: the bytes end inside this batch; `header`: no intact header; `body`: the header is
    intact, what it seals is not; `unreadable`: the disk refused to read; `newer`: a batch that
    another release wrote and this one does not understand, nothing that a crash leaves."""
    reason: str
    """A clause for people, without the position."""
    resume: int
    """Where the next batch may begin: behind this one if its length is proven, else a byte on."""


def scan_segment(
    read: Read, base: int, size: int, seed: int, *, start: int | None = None, bodies: bool = True
) -> Iterator[tuple[int, Batch | Problem]]:
    """Yield (position, batch) for the intact batches in [base, base + size), from `start` on (the
    position of a batch; the segment's base if not given).

    Ends behind the last byte, or with one (position, Problem). `bodies=False` leaves out the
    producer's CRC (two thirds of the time at 1 KiB); headers and tables are checked all the same.
    `seed` is `cometmq.batch.seed(log_id)`. Batches are views of the bytes read and stay valid.
    """
    end = base + size
    position = base if start is None else start
    view, at = memoryview(b""), 0
    while position < end:
        try:
            batch = parse(view, at)
            check(batch, position, seed)
            if bodies:
                verify_producer(batch)
        except BatchError as error:
            place = _Place(read, base, position, end)
            if at == 0 and len(view):
                yield position, _diagnose(place, view, seed, error)
                return
            # Mostly it only lies across the window's end.
            try:
                view, at = memoryview(_read_batch(place)), 0
            except OSError as unreadable:
                yield position, Problem(position, "unreadable", str(unreadable), position + 1)
                return
            if not view:
                yield position, Problem(position, "short", "the file ends here", end)
                return
            continue
        yield position, batch
        position += batch.length
        at += batch.length


def resync(read: Read, base: int, size: int, seed: int, position: int) -> int | None:
    """Where the first intact batch of the segment [base, base + size) at or behind `position`
    lies, or None. Stretches that the disk refuses to read are passed over."""
    end = base + size
    while position < end:
        window = _read_what_can_be(_Place(read, base, position, end))
        if not window:
            return None
        at = window.find(_MAGIC_BYTES)
        while at >= 0:
            # The place is looked at first: nearly all that has the magic by chance, or as a part
            # of some message, ends here.
            said = window[at + STAMP_AT : at + STAMP_AT + 8]
            if (position + at).to_bytes(8, "little").startswith(said):
                if _is_batch(read, position + at, end, seed):
                    return position + at
            at = window.find(_MAGIC_BYTES, at + 1)
        # The magic may lie across the border of two windows.
        position += max(len(window) - len(_MAGIC_BYTES) + 1, 1)
    return None


def check(batch: Batch, position: int, seed: int) -> None:
    """Raises BatchError unless a parsed batch is of this log and lies where it says. The
    producer's CRC is left to `verify_producer`."""
    if batch.position != position:
        raise BatchError(f"its header says that it lies at {batch.position}")
    verify_broker(batch, seed)


class _Place(NamedTuple):
    """A position to look at, in the segment [base, end)."""

    read: Read
    base: int
    position: int
    end: int


def _diagnose(place: _Place, view: memoryview, seed: int, error: BatchError) -> Problem:
    """What lies at a place whose bytes are `view`; `error` says why it is no intact batch."""
    position, end = place.position, place.end
    if view[:3] == _MAGIC_BYTES[:3] and len(view) >= LENGTH_MIN and view[3] > VERSION:
        reason = f"a batch of format version {view[3]}; this release reads up to {VERSION}"
        return Problem(position, "newer", reason, position + 1)
    length = _proven_length(view, position, seed)
    if length is not None and length > len(view):
        reason = f"{length - len(view)} of the batch's {length} bytes are missing"
        return Problem(position, "short", reason, end)
    if length is not None:
        sealed = crc32c(view[SEALED_AT:length])
        if sealed == U32.unpack_from(view, PRODUCER_CRC_AT)[0]:
            reason = f"both CRCs are right, but this release does not understand it ({error})"
            return Problem(position, "newer", reason, position + length)
        return Problem(position, "body", str(error), position + length)
    zeros = _zeros_until(place)
    if zeros == end:
        return Problem(position, "zeros", f"{end - position} zero bytes up to the end", end)
    if len(view) < LENGTH_MIN:
        return Problem(position, "short", f"{len(view)} bytes, too few for a batch", end)
    if zeros - position >= LENGTH_MIN:
        reason = f"{zeros - position} zero bytes with other bytes behind them"
        return Problem(position, "header", reason, zeros)
    return Problem(position, "header", str(error), position + 1)


def _proven_length(view: memoryview, position: int, seed: int) -> int | None:
    """The length of a batch whose header is right under its CRC and its place, else None."""
    if len(view) < STAMPED_BYTES or view[: len(_MAGIC_BYTES)] != _MAGIC_BYTES:
        return None
    _, crc, length = OPENING.unpack_from(view)
    (said,) = STAMP.unpack_from(view, STAMP_AT)[:1]
    if said != position or crc32c(view[LENGTH_AT:SEALED_AT], seed) != crc:
        return None
    return int(length)


def _is_batch(read: Read, position: int, end: int, seed: int) -> bool:
    """Whether an intact batch lies at `position`."""
    try:
        head = memoryview(read(position, min(STAMPED_BYTES, end - position)))
        length = _proven_length(head, position, seed)
        if length is None or length > min(BATCH_BYTES_MAX, end - position):
            return False
        batch = parse(read(position, length))
        check(batch, position, seed)
        verify_producer(batch)
    except (OSError, BatchError):
        return False
    return True


def _zeros_until(place: _Place) -> int:
    """The end of the stretch of zeros that begins at a place."""
    position = place.position
    while position < place.end:
        window = _read_what_can_be(place._replace(position=position))
        if window != bytes(len(window)) or not window:
            return position + len(window) - len(window.lstrip(b"\0"))
        position += len(window)
    return position


def _read_batch(place: _Place) -> bytes:
    """A window that begins at a place and has all of a batch that does. Raises OSError."""
    read, _, position, end = place
    rest = end - position
    try:
        window = read(position, min(WINDOW_BYTES, rest))
    except OSError:
        # One bad sector must not hide its whole neighbourhood.
        window = read(position, min(FIXED_BYTES, rest))
    length = int.from_bytes(window[LENGTH_AT:STAMP_AT], "little")
    if len(window) < length <= min(BATCH_BYTES_MAX, rest):
        window = read(position, length)
    return window


def _read_what_can_be(place: _Place) -> bytes:
    """The next window, or block where a window has a bad sector. A block that can't be read comes
    back as bytes that are neither zeros nor magic."""
    read, base, position, end = place
    block = BLOCK_BYTES - (position - base) % BLOCK_BYTES
    for size in (min(WINDOW_BYTES, end - position), min(block, end - position)):
        try:
            return read(position, size)
        except OSError:
            continue
    return b"?" * size
