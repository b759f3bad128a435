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

from typing import TypeVar

import msgspec

from cometmq.environment import Buffer
from cometmq.errors import ProtocolError
from cometmq.protocol.fetches import (
    Commit,
    CommitPart,
    CommitReply,
    Committed,
    Fetch,
    FetchPart,
    FetchReply,
    FetchResultPart,
    OffsetByTime,
    Offsets,
    OffsetsPart,
    OffsetsReply,
    PartStatus,
    QueueRef,
    ReportDamage,
    Token,
)
from cometmq.protocol.frames import (
    EVENT_ID,
    FRAMES_MAX,
    ONE_FRAME_BYTES,
    PREFIX,
    pack,
    split,
    unpack,
)
from cometmq.protocol.groups import (
    Claim,
    ClaimPart,
    ClaimReply,
    ClaimResultPart,
    GroupAdvice,
    GroupDelete,
    GroupDescribe,
    GroupDescription,
    GroupHeartbeat,
    GroupLeave,
    GroupList,
    GroupListing,
    GroupQueueInfo,
    GroupReset,
    GroupResetPart,
    GroupResetReply,
    GroupSummary,
    HeldQueue,
    MemberInfo,
    Release,
    ReleasePart,
    Subscription,
)
from cometmq.protocol.info import BrokerInfo, BrokerInfoReply
from cometmq.protocol.numbers import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Operation,
    QueueNumber,
    Status,
    UInt,
)
from cometmq.protocol.retention import Retention
from cometmq.protocol.sends import Send, SendReply, SendResultPart
from cometmq.protocol.sessions import (
    RECONNECT_MS,
    Empty,
    Failure,
    Goodbye,
    Heartbeat,
    Hello,
    HelloReply,
)
from cometmq.protocol.topics import (
    QueueInfo,
    TopicAlter,
    TopicCreate,
    TopicDelete,
    TopicDescribe,
    TopicDescription,
    TopicInfo,
    TopicList,
    TopicListing,
)

__all__ = [
    "BrokerInfo",
    "BrokerInfoReply",
    "Claim",
    "ClaimPart",
    "ClaimReply",
    "ClaimResultPart",
    "Commit",
    "CommitPart",
    "CommitReply",
    "Committed",
    "EVENT_ID",
    "Empty",
    "FRAMES_MAX",
    "Failure",
    "Fetch",
    "FetchPart",
    "FetchReply",
    "FetchResultPart",
    "Goodbye",
    "GroupAdvice",
    "GroupDelete",
    "GroupDescribe",
    "GroupDescription",
    "GroupHeartbeat",
    "GroupLeave",
    "GroupList",
    "GroupListing",
    "GroupQueueInfo",
    "GroupReset",
    "GroupResetPart",
    "GroupResetReply",
    "GroupSummary",
    "Heartbeat",
    "HeldQueue",
    "Hello",
    "HelloReply",
    "MemberInfo",
    "ONE_FRAME_BYTES",
    "OffsetByTime",
    "Offsets",
    "OffsetsPart",
    "OffsetsReply",
    "Operation",
    "PREFIX",
    "PROTOCOL_MAX",
    "PROTOCOL_MIN",
    "RECONNECT_MS",
    "PartStatus",
    "QueueInfo",
    "QueueNumber",
    "QueueRef",
    "REPLIES",
    "REQUESTS",
    "Release",
    "ReleasePart",
    "ReportDamage",
    "Retention",
    "Send",
    "SendReply",
    "SendResultPart",
    "Status",
    "Subscription",
    "Token",
    "TopicAlter",
    "TopicCreate",
    "TopicDelete",
    "TopicDescribe",
    "TopicDescription",
    "TopicInfo",
    "TopicList",
    "TopicListing",
    "UInt",
    "decode",
    "pack",
    "split",
    "unpack",
]

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
    Operation.CLAIM: Claim,
    Operation.RELEASE: Release,
    Operation.GROUP_HEARTBEAT: GroupHeartbeat,
    Operation.GROUP_LEAVE: GroupLeave,
    Operation.GROUP_LIST: GroupList,
    Operation.GROUP_DESCRIBE: GroupDescribe,
    Operation.GROUP_RESET: GroupReset,
    Operation.GROUP_DELETE: GroupDelete,
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
    Operation.CLAIM: ClaimReply,
    Operation.RELEASE: CommitReply,
    Operation.GROUP_HEARTBEAT: GroupAdvice,
    Operation.GROUP_LEAVE: Empty,
    Operation.GROUP_LIST: GroupListing,
    Operation.GROUP_DESCRIBE: GroupDescription,
    Operation.GROUP_RESET: GroupResetReply,
    Operation.GROUP_DELETE: Empty,
}

_kinds: set[type[msgspec.Struct]] = {*REQUESTS.values(), *REPLIES.values(), Failure}
_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in _kinds}

S = TypeVar("S", bound=msgspec.Struct)
UNDECODABLE = (msgspec.DecodeError, RecursionError)
"""What a header's decoder raises; the second one for deep nesting."""


def decode(kind: type[S], header: Buffer) -> S:
    """The header struct. Raises ProtocolError with msgspec's reason (also for deep nesting)."""
    try:
        return decoder_of(kind).decode(header)
    except UNDECODABLE as error:
        raise no_header(kind, error) from None


def decoder_of(kind: type[S]) -> msgspec.msgpack.Decoder[S]:
    """For who decodes many headers of one kind. It raises one of `UNDECODABLE`, of which
    `no_header` makes an error that tells what was expected."""
    decoder = _decoders.get(kind)
    if decoder is None:  # a plugin's own
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return decoder  # type: ignore[return-value]


def no_header(kind: type[msgspec.Struct], error: Exception) -> ProtocolError:
    """What a header that can't be decoded means."""
    return ProtocolError(f"the header is not a {kind.__name__}: {error}")
