"""Reading: fetch, offsets, commits."""

from __future__ import annotations

from cometmq.protocol.numbers import QueueNumber, UInt
from cometmq.protocol.wire import NestedWire, Wire


class Token(Wire):
    """A claim on a queue: epoch and position of its claim batch; both 0 = none."""

    epoch: UInt = 0
    position: UInt = 0


class FetchPart(Wire):
    """One queue of a fetch."""

    topic: str
    queue: QueueNumber
    offset: UInt
    epoch: UInt = 0
    """The one that a reply gave with this offset; 0 only for an offset that a person typed."""
    incarnation: UInt = 0
    token: Token | None = None


class Fetch(NestedWire):
    """Read several queues; parked as one while nothing is there."""

    parts: list[FetchPart]
    max_bytes: UInt = 1 << 20
    """Of all batches together; one batch is always delivered, however large."""
    wait_ms: UInt = 0
    group: str = ""
    filter: str = ""


class FetchResultPart(Wire):
    """What one queue gave; parts that gave nothing and no news are left out of a reply."""

    part: UInt
    """Index into the request's parts."""
    status: UInt
    next_offset: UInt = 0
    """Where to go on: behind the batches sent, or the place that an error names."""
    epoch: UInt = 0
    """The epoch valid for `next_offset`."""
    min_offset: UInt = 0
    max_offset: UInt = 0
    batches: UInt = 0
    """How many batches of the body are this queue's (they lie in the order of the parts)."""
    incarnation: UInt = 0
    detail: str = ""


class FetchReply(NestedWire):
    results: list[FetchResultPart]
    sizes: list[UInt] = []
    """Byte length of each batch in the body."""


class QueueRef(Wire):
    topic: str
    queue: QueueNumber
    incarnation: UInt = 0


class Offsets(NestedWire):
    queues: list[QueueRef]


class OffsetByTime(NestedWire):
    """The first offset of each queue whose store time is at or after `time_ms`."""

    queues: list[QueueRef]
    time_ms: int = 0


class OffsetsPart(Wire):
    status: UInt
    min_offset: UInt = 0
    max_offset: UInt = 0
    offset: UInt = 0
    """What was asked for (by time, or committed)."""
    epoch: UInt = 0
    """The epoch valid for `offset` (or for `max_offset` when only the bounds were asked)."""
    incarnation: UInt = 0
    detail: str = ""
    found: bool = True
    """False: the group has committed nothing here."""


class OffsetsReply(NestedWire):
    parts: list[OffsetsPart]


class CommitPart(Wire):
    topic: str
    queue: QueueNumber
    offset: UInt
    """The next one to read."""
    epoch: UInt = 0
    incarnation: UInt = 0
    token: Token | None = None


class Commit(NestedWire):
    group: str
    parts: list[CommitPart]
    one_way: bool = False


class PartStatus(Wire):
    status: UInt
    detail: str = ""
    retry_after_ms: UInt = 0


class CommitReply(NestedWire):
    parts: list[PartStatus]


class Committed(NestedWire):
    group: str
    queues: list[QueueRef]


class ReportDamage(Wire):
    """A consumer found a batch whose CRC fails, twice."""

    topic: str
    queue: QueueNumber
    offset: UInt
    detail: str = ""
