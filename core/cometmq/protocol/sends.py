"""Sending."""

from __future__ import annotations

from cometmq.interfaces import Level
from cometmq.protocol.numbers import QueueNumber, UInt
from cometmq.protocol.wire import NestedWire, Wire

SEQUENCES = "sequences"
"""The feature of a broker that stores a numbered batch once, however often it comes: up to five of
one producer may be on their way to a queue."""


class Send(Wire):
    """Several batches in one request, each for its own queue (named in the batch itself)."""

    sizes: list[UInt]
    """Byte length of each batch; their order is that of the body."""
    incarnations: list[UInt]
    """What the client knows of each batch's topic; 0 = nothing (then it may be auto-created)."""
    level: Level | None = None
    """None: the broker's default."""
    one_way: bool = False
    """No reply is wanted, whatever happens."""


class SendResultPart(Wire):
    """What became of one batch."""

    status: UInt
    queue: QueueNumber = 0
    base_offset: UInt = 0
    incarnation: UInt = 0
    epoch: UInt = 0
    store_time: int = 0
    detail: str = ""
    retry_after_ms: UInt = 0


class SendReply(NestedWire):
    results: list[SendResultPart]
    level: str = ""
    """The level that was reached."""
