"""What a broker says of itself."""

from __future__ import annotations

from cometmq.protocol.numbers import UInt
from cometmq.protocol.wire import NestedWire, Wire


class BrokerInfo(Wire):
    pass


class BrokerInfoReply(NestedWire):
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
    status: dict[str, str] = {}
    """What plugins say of themselves, by label."""
    data: str = ""
    """The data folder; empty when all is in memory only."""
