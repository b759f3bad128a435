"""The wire: requests and replies, their numbers and their frames.

A message is 1 to 16 frames. Frame 0 begins with a fixed prefix (`PREFIX`: request id u64,
operation or status u16, header length u32, little-endian), then the header: one msgpack array,
the struct of that operation; what follows in frame 0, and every further frame, is *body*: record
batches as they lie, none spanning two frames. Small messages travel in one frame, larger ones put
the body into frames of their own (`ONE_FRAME_BYTES`), since a frame costs 2.7 us and a copy of
8 KiB as much.

Fields are only ever added at the end, with defaults: an older reader ignores them, a newer one
fills them in. `hello` settles the version.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, TypeVar

import msgspec

from cometmq.environment import Buffer
from cometmq.errors import ProtocolError
from cometmq.interfaces import Level, Limits

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
PREFIX = struct.Struct("<QHI")
ONE_FRAME_BYTES = 8192
FRAMES_MAX = 16
EVENT_ID = 0
"""Request id of a message that the broker sends on its own (none yet asks for an answer)."""

UInt = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
QueueNumber = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Operation(IntEnum):
    """What a request asks for. Plugins' operations begin at 1000."""

    HELLO = 1
    HEARTBEAT = 2
    GOODBYE = 3
    BROKER_INFO = 4
    TOPIC_CREATE = 10
    TOPIC_ALTER = 11
    TOPIC_DELETE = 12
    TOPIC_LIST = 13
    TOPIC_DESCRIBE = 14
    SEND = 20
    FETCH = 30
    OFFSETS = 31
    OFFSET_BY_TIME = 32
    COMMIT = 33
    COMMITTED = 34
    REPORT_DAMAGE = 35


class Status(IntEnum):
    """How a request, or one part of it, ended. The name is the stable error code."""

    OK = 0
    HELLO_REQUIRED = 1
    BAD_REQUEST = 2
    UNKNOWN_OPERATION = 3
    VERSION_MISMATCH = 4
    REFUSED = 10
    NOT_AUTHENTICATED = 11
    NOT_AUTHORIZED = 12
    TOPIC_NOT_FOUND = 13
    TOPIC_GONE = 14
    TOPIC_EXISTS = 15
    QUEUE_NOT_FOUND = 16
    NOT_WRITABLE = 17
    NOT_READABLE = 18
    BAD_BATCH = 19
    TOO_LARGE = 20
    BAD_NAME = 21
    LEVEL_NOT_AVAILABLE = 22
    FENCED = 23
    CLAIMED = 24
    LIMIT_REACHED = 25
    RETRY = 40
    NO_SPACE = 41
    STOPPING = 42
    IN_DOUBT = 43
    TRUNCATED = 50
    EXPIRED = 51
    DAMAGED = 52
    INTERNAL = 60


class _Wire(msgspec.Struct, array_like=True, gc=False):
    """Base of all headers: arrays on the wire, never part of a cycle."""


class _Plain(msgspec.Struct, array_like=True):
    """Base of headers that hold lists of structs."""


# --- session ----------------------------------------------------------------------------------


class Hello(_Wire):
    """First request of every connection."""

    protocol_min: UInt
    protocol_max: UInt
    client_id: str
    """Chosen by the client, the same over its reconnects."""
    client_epoch: UInt = 0
    """Grows with each reconnect of this client id; the newest one wins."""
    product: str = ""
    """Name and version of the client library, for people."""
    credentials: dict[str, str] = {}


class HelloReply(_Plain):
    protocol: UInt
    session: UInt
    broker_name: str
    log_id: str
    epoch: UInt
    """The broker's current epoch."""
    session_timeout_ms: UInt
    heartbeat_ms: UInt
    limits: Limits
    default_level: str
    auto_create: bool = True


class Heartbeat(_Wire):
    pass


class Goodbye(_Wire):
    pass


class Empty(_Wire):
    """A reply that carries nothing."""


class Failure(_Wire):
    """The header of every reply whose status is not OK."""

    detail: str = ""
    """One sentence: what, where, what to do next."""
    retry_after_ms: UInt = 0


# --- topics -----------------------------------------------------------------------------------


class TopicCreate(_Wire):
    topic: str
    queues: UInt = 4
    readable: bool = True
    writable: bool = True


class TopicAlter(_Wire):
    topic: str
    queues: UInt | None = None
    """May only grow."""
    readable: bool | None = None
    writable: bool | None = None
    incarnation: UInt = 0
    """The one the client knows; 0 = none."""


class TopicDelete(_Wire):
    topic: str
    incarnation: UInt = 0


class TopicList(_Wire):
    prefix: str = ""


class TopicDescribe(_Wire):
    topic: str
    create: bool = False
    """Make it with defaults if it is missing and the broker creates topics on first send."""
    incarnation: UInt = 0


class TopicInfo(_Wire):
    topic: str
    incarnation: UInt
    queues: UInt
    readable: bool
    writable: bool
    created_ms: int


class QueueInfo(_Wire):
    queue: QueueNumber
    min_offset: UInt
    max_offset: UInt
    """The next offset that a reader can't see yet."""
    next_offset: UInt
    """The next offset that a message will get."""


class TopicDescription(_Plain):
    info: TopicInfo
    queues: list[QueueInfo] = []
    log_id: str = ""
    epoch: UInt = 0


class TopicListing(_Plain):
    topics: list[TopicInfo]


# --- send -------------------------------------------------------------------------------------


class Send(_Wire):
    """Several batches in one request, each for its own queue (named in the batch itself)."""

    sizes: list[UInt]
    """Byte length of each batch; their order is that of the body."""
    incarnations: list[UInt]
    """What the client knows of each batch's topic; 0 = nothing (then it may be auto-created)."""
    level: Level | None = None
    """None: the broker's default."""
    one_way: bool = False
    """No reply is wanted, whatever happens."""


class SendResultPart(_Wire):
    """What became of one batch."""

    status: UInt
    queue: QueueNumber = 0
    base_offset: UInt = 0
    incarnation: UInt = 0
    epoch: UInt = 0
    store_time: int = 0
    detail: str = ""
    retry_after_ms: UInt = 0


class SendReply(_Plain):
    results: list[SendResultPart]
    level: str = ""
    """The level that was reached."""


# --- fetch ------------------------------------------------------------------------------------


class Token(_Wire):
    """A claim on a queue: epoch and position of its claim batch; both 0 = none."""

    epoch: UInt = 0
    position: UInt = 0


class FetchPart(_Wire):
    """One queue of a fetch."""

    topic: str
    queue: QueueNumber
    offset: UInt
    epoch: UInt = 0
    """Epoch of the last batch read, as a reply gave it; 0 only for an offset a person typed."""
    incarnation: UInt = 0
    token: Token | None = None


class Fetch(_Plain):
    """Read several queues; parked as one while nothing is there."""

    parts: list[FetchPart]
    max_bytes: UInt = 1 << 20
    """Of all batches together; one batch is always delivered, however large."""
    wait_ms: UInt = 0
    group: str = ""
    filter: str = ""


class FetchResultPart(_Wire):
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


class FetchReply(_Plain):
    results: list[FetchResultPart]
    sizes: list[UInt] = []
    """Byte length of each batch in the body."""


class QueueRef(_Wire):
    topic: str
    queue: QueueNumber
    incarnation: UInt = 0


class Offsets(_Plain):
    queues: list[QueueRef]


class OffsetByTime(_Plain):
    """The first offset of each queue whose store time is at or after `time_ms`."""

    queues: list[QueueRef]
    time_ms: int = 0


class OffsetsPart(_Wire):
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


class OffsetsReply(_Plain):
    parts: list[OffsetsPart]


class CommitPart(_Wire):
    topic: str
    queue: QueueNumber
    offset: UInt
    """The next one to read."""
    epoch: UInt = 0
    incarnation: UInt = 0
    token: Token | None = None


class Commit(_Plain):
    group: str
    parts: list[CommitPart]
    one_way: bool = False


class PartStatus(_Wire):
    status: UInt
    detail: str = ""
    retry_after_ms: UInt = 0


class CommitReply(_Plain):
    parts: list[PartStatus]


class Committed(_Plain):
    group: str
    queues: list[QueueRef]


class ReportDamage(_Wire):
    """A consumer found a batch whose CRC fails, twice."""

    topic: str
    queue: QueueNumber
    offset: UInt
    detail: str = ""


# --- broker info ------------------------------------------------------------------------------


class BrokerInfo(_Wire):
    pass


class BrokerInfoReply(_Plain):
    name: str
    version: str
    node: str
    log_id: str
    epoch: UInt
    uptime_s: float
    addresses: list[str]
    default_level: str
    positions: dict[str, int]
    """start, appended, synced, settled, readable."""
    storage: dict[str, int]
    segments: UInt
    topics: UInt
    sessions: UInt
    parked: UInt
    in_doubt: str = ""
    """Why the broker is read-only, or empty."""
    could_lose: str = ""
    """What a power cut could take, in a sentence."""
    plugins: list[dict[str, str]] = []
    metrics: dict[str, float] = {}


REQUESTS: dict[int, type[msgspec.Struct]] = {
    Operation.HELLO: Hello,
    Operation.HEARTBEAT: Heartbeat,
    Operation.GOODBYE: Goodbye,
    Operation.BROKER_INFO: BrokerInfo,
    Operation.TOPIC_CREATE: TopicCreate,
    Operation.TOPIC_ALTER: TopicAlter,
    Operation.TOPIC_DELETE: TopicDelete,
    Operation.TOPIC_LIST: TopicList,
    Operation.TOPIC_DESCRIBE: TopicDescribe,
    Operation.SEND: Send,
    Operation.FETCH: Fetch,
    Operation.OFFSETS: Offsets,
    Operation.OFFSET_BY_TIME: OffsetByTime,
    Operation.COMMIT: Commit,
    Operation.COMMITTED: Committed,
    Operation.REPORT_DAMAGE: ReportDamage,
}

REPLIES: dict[int, type[msgspec.Struct]] = {
    Operation.HELLO: HelloReply,
    Operation.HEARTBEAT: Empty,
    Operation.GOODBYE: Empty,
    Operation.BROKER_INFO: BrokerInfoReply,
    Operation.TOPIC_CREATE: TopicDescription,
    Operation.TOPIC_ALTER: TopicDescription,
    Operation.TOPIC_DELETE: Empty,
    Operation.TOPIC_LIST: TopicListing,
    Operation.TOPIC_DESCRIBE: TopicDescription,
    Operation.SEND: SendReply,
    Operation.FETCH: FetchReply,
    Operation.OFFSETS: OffsetsReply,
    Operation.OFFSET_BY_TIME: OffsetsReply,
    Operation.COMMIT: CommitReply,
    Operation.COMMITTED: OffsetsReply,
    Operation.REPORT_DAMAGE: Empty,
}

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type[msgspec.Struct], msgspec.msgpack.Decoder[msgspec.Struct]] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in {*REQUESTS.values(), *REPLIES.values(), Failure}
}

S = TypeVar("S", bound=msgspec.Struct)


def pack(
    request_id: int, code: int, header: msgspec.Struct, body: Sequence[Buffer] = ()
) -> list[Buffer]:
    """Frames of one message. `code` is the operation of a request or the status of a reply."""
    encoded = _encoder.encode(header)
    head = PREFIX.pack(request_id, code, len(encoded)) + encoded
    if not body:
        return [head]
    size = len(head)
    for buffer in body:
        size += len(buffer)
    if size <= ONE_FRAME_BYTES:
        return [b"".join((head, *body))]
    if len(body) < FRAMES_MAX:
        return [head, *body]
    return [head, b"".join(body)]


def unpack(frames: Sequence[Buffer]) -> tuple[int, int, memoryview, list[memoryview]]:
    """(request id, operation or status, header bytes, body pieces). Raises ProtocolError."""
    if not 1 <= len(frames) <= FRAMES_MAX:
        raise ProtocolError(f"a message of {len(frames)} frames; 1 to {FRAMES_MAX} are allowed")
    head = memoryview(frames[0])
    if len(head) < PREFIX.size:
        raise ProtocolError(f"a first frame of {len(head)} bytes; the prefix has {PREFIX.size}")
    request_id, code, header_length = PREFIX.unpack_from(head)
    end = PREFIX.size + header_length
    if end > len(head):
        raise ProtocolError(f"a header of {header_length} bytes in a frame of {len(head)}")
    body = [memoryview(frame) for frame in frames[1:]]
    if end < len(head):
        body.insert(0, head[end:])
    return request_id, code, head[PREFIX.size : end], body


def decode(kind: type[S], header: Buffer) -> S:
    """The header struct. Raises ProtocolError with msgspec's reason (also for deep nesting)."""
    try:
        return _decoders[kind].decode(header)  # type: ignore[return-value]
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"the header is not a {kind.__name__}: {error}") from None


def split(body: Sequence[memoryview], sizes: Sequence[int]) -> list[memoryview]:
    """Cut the body into pieces of the given sizes. Raises ProtocolError unless it fits exactly."""
    pieces: list[memoryview] = []
    frame = 0
    at = 0
    for size in sizes:
        while frame < len(body) and at == len(body[frame]):
            frame, at = frame + 1, 0
        if frame == len(body) or at + size > len(body[frame]) or size == 0:
            raise ProtocolError(f"piece {len(pieces)} of {size} bytes is not whole in the body")
        pieces.append(body[frame][at : at + size])
        at += size
    rest = sum(len(piece) for piece in body) - sum(sizes)
    if rest:
        raise ProtocolError(f"{rest} bytes of body that the header does not mention")
    return pieces
