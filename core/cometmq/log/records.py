"""What the log's own control batches, and those of topics, hold: one msgpack array per record.

Fields are only ever added at the end, with defaults, so that older logs stay readable.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from cometmq.batch import Batch
from cometmq.errors import BatchError
from cometmq.protocol.retention import Retention


class SegmentStart(msgspec.Struct, array_like=True, frozen=True):
    """First batch of every segment."""

    log_id: bytes
    """8 random bytes, the same in all segments of a log."""
    epoch: int
    node: str
    """Id of the node that wrote it, in hex."""
    checkpoint: int
    """Id of the head checkpoint that follows."""
    base: int
    """Position of this batch."""
    created_ms: int
    ahead_ms: int = 0
    """As in a `ClockAhead`; also at a start, whose first batch this is."""
    even_ms: int = 0


class ClockAhead(msgspec.Struct, array_like=True, frozen=True):
    """From here on store times are so far ahead of a time that may be believed."""

    ahead_ms: int = 0
    even_ms: int = 0
    """How long the clock has gone on evenly since, while a broker watched."""


class EpochStart(msgspec.Struct, array_like=True, frozen=True):
    """A master's reign begins."""

    epoch: int
    node: str
    """Id of the master, in hex."""
    position: int
    """Where the epoch begins: its first batch is the segment start that lies there."""


class CheckpointSlice(msgspec.Struct, array_like=True, frozen=True):
    """A shard of one state view."""

    checkpoint: int
    view: str
    data: bytes
    """Encoded by the view."""


class CheckpointEnd(msgspec.Struct, array_like=True, frozen=True):
    """All slices of a checkpoint lie before this batch."""

    checkpoint: int
    slices: int
    """How many there are."""


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """Says nothing but its stamp: all before it was on disk."""

    synced: int


class Trim(msgspec.Struct, array_like=True, frozen=True):
    """What lies before `position` is no longer part of the log."""

    position: int


class KindName(msgspec.Struct, array_like=True, frozen=True):
    """The number that batches of a named kind carry in this log; numbers are never used again."""

    number: int
    name: str
    view: str
    """The state view that understands it."""
    dropped: bool = False
    """The operator gave this view's state up."""


class TopicChange(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A record of the kind `topic-change`: all there is to say of a topic, or that it is gone."""

    incarnation: int
    name: str
    queues: int = 0
    readable: bool = True
    writable: bool = True
    created_ms: int = 0
    deleted: bool = False
    retention: Retention = Retention()


RECORDS_MAX = 4096
"""Where there are many, they go about so many to a control batch."""

R = TypeVar("R", bound=msgspec.Struct)
_decoders = {
    kind: msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]
    for kind in (
        SegmentStart,
        ClockAhead,
        EpochStart,
        CheckpointSlice,
        CheckpointEnd,
        Mark,
        Trim,
        KindName,
        TopicChange,
    )
}


def read_records(kind: type[R], batch: Batch) -> list[R]:
    """The records of a control batch. Raises BatchError if they are not of this shape."""
    try:
        return _decoders[kind].decode(batch.records)  # type: ignore[index]
    except (msgspec.DecodeError, RecursionError) as error:
        raise BatchError(
            f"the batch at position {batch.position} should hold {kind.__name__} records: {error}"
        ) from None
