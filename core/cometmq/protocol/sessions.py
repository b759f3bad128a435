"""Hello, heartbeat, good-bye, and what every failure looks like."""

from __future__ import annotations

from cometmq.interfaces import Limits
from cometmq.protocol.numbers import LogId, UInt
from cometmq.protocol.wire import NestedWire, Wire

RECONNECT_MS = 2000
"""So long what a client holds waits for it, after its connection broke: most breaks are healed by
then, and a client that is dead is not missed for long."""


class Hello(Wire):
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


class HelloReply(NestedWire):
    protocol: UInt
    session: UInt
    broker_name: str
    log_id: LogId
    epoch: UInt
    """The broker's current epoch."""
    session_timeout_ms: UInt
    heartbeat_ms: UInt
    limits: Limits
    default_level: str
    auto_create: bool = True
    features: list[str] = []
    """What plugins of this broker let a client rely on, by name."""
    in_doubt: str = ""
    """Why the log is read-only, and may hold more than can be read."""


class Heartbeat(Wire):
    pass


class Goodbye(Wire):
    pass


class Empty(Wire):
    """A reply that carries nothing."""


class Failure(Wire):
    """The header of every reply whose status is not OK."""

    detail: str = ""
    """One sentence: what, where, what to do next."""
    retry_after_ms: UInt = 0
