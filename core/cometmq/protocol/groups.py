"""Consumer groups: claims at the broker of a queue, membership at the coordinator."""

from __future__ import annotations

from cometmq.protocol.fetches import Token
from cometmq.protocol.numbers import QueueNumber, UInt
from cometmq.protocol.wire import NestedWire, Wire

# --- claims: safety, at the broker that holds the queue ----------------------------------------


class ClaimPart(Wire):
    """One queue that a member wants for itself."""

    topic: str
    queue: QueueNumber
    incarnation: UInt = 0
    token: Token | None = None
    """The token it held before (a broker's restart): shows that the claim is its own."""


class Claim(NestedWire):
    """Become the only one of the group who reads these queues."""

    group: str
    member: str
    parts: list[ClaimPart]
    start: str = ""
    """Where a group that never subscribed this topic begins: earliest, latest, or ms since 1970."""
    session_timeout_ms: UInt = 0
    """How long the member may be silent before the queues go to others; 0: as it told the
    coordinator, else the broker's session timeout."""


class ClaimResultPart(Wire):
    status: UInt
    token: Token | None = None
    offset: UInt = 0
    """Where to go on: committed, or the group's recorded start."""
    epoch: UInt = 0
    incarnation: UInt = 0
    detail: str = ""
    retry_after_ms: UInt = 0
    kept: bool = False
    """The claim whose token was presented still stood: nobody had the queue in between, and what
    the member holds of it is still good. False: it begins anew at `offset`."""


class ClaimReply(NestedWire):
    parts: list[ClaimResultPart]


class ReleasePart(Wire):
    """Give a queue back; `offset` is committed in the same control batch."""

    topic: str
    queue: QueueNumber
    token: Token
    offset: UInt | None = None
    epoch: UInt = 0
    incarnation: UInt = 0


class Release(NestedWire):
    group: str
    member: str
    parts: list[ReleasePart]


# --- groups: efficiency, at the coordinator -----------------------------------------------------


class Subscription(Wire):
    topic: str
    filter: str = ""
    incarnation: UInt = 0


class HeldQueue(Wire):
    topic: str
    queue: QueueNumber


class GroupHeartbeat(NestedWire):
    """A member says that it lives, what it subscribes and what it holds; parked until its advice
    changes or `wait_ms` pass. The first one joins."""

    group: str
    member: str
    subscriptions: list[Subscription]
    version: UInt = 0
    """Of the subscriptions (ms since 1970 when they were set): the newest in the group wins."""
    known: UInt = 0
    """The generation whose advice the member has; a newer one answers at once."""
    held: list[HeldQueue] = []
    wait_ms: UInt = 0
    session_timeout_ms: UInt = 10_000
    strategy: str = ""
    """Name of the rebalance strategy; empty: the broker's default."""
    room: str = ""
    """Where the member runs, for strategies that keep traffic near."""
    host: str = ""
    """For people."""
    strict: bool = False
    """Refuse to join when the group's members subscribe something else."""


class GroupAdvice(NestedWire):
    """What a member should claim; a held queue that is not in it is to be released."""

    generation: UInt
    queues: list[HeldQueue]
    subscriptions: list[Subscription] = []
    """Those that win in the group."""
    members: UInt = 0
    warnings: list[str] = []


class GroupLeave(Wire):
    group: str
    member: str


class GroupList(Wire):
    prefix: str = ""


class GroupSummary(Wire):
    group: str
    members: UInt = 0
    topics: UInt = 0
    lag: UInt = 0


class GroupListing(NestedWire):
    groups: list[GroupSummary]


class GroupDescribe(Wire):
    group: str


class MemberInfo(NestedWire):
    member: str
    host: str
    client_id: str
    session_timeout_ms: UInt
    subscriptions: list[Subscription]
    advised: list[HeldQueue]


class GroupQueueInfo(Wire):
    topic: str
    queue: QueueNumber
    committed: UInt
    max_offset: UInt
    lag: UInt
    """Messages not yet committed."""
    lag_ms: UInt = 0
    """Age of the oldest of them."""
    owner: str = ""
    """The member that holds the claim."""
    epoch: UInt = 0


class GroupDescription(NestedWire):
    group: str
    mode: str
    generation: UInt
    strategy: str
    members: list[MemberInfo] = []
    queues: list[GroupQueueInfo] = []
    can_undo: bool = False


class GroupReset(NestedWire):
    """Move a group's offsets; refused while members are active unless `force`, which voids their
    claims in the same control batch."""

    group: str
    topic: str = ""
    """Empty: all its topics."""
    to: str = "earliest"
    """earliest, latest, time, offset, undo."""
    value: int = 0
    """ms since 1970 for `time`, the offset for `offset`."""
    queues: list[QueueNumber] = []
    """Empty: all."""
    dry_run: bool = False
    force: bool = False


class GroupResetPart(Wire):
    topic: str
    queue: QueueNumber
    old_offset: UInt
    new_offset: UInt


class GroupResetReply(NestedWire):
    parts: list[GroupResetPart]
    done: bool = True


class GroupDelete(Wire):
    group: str
    force: bool = False
