"""What an operator can set in `[plugin.zmtp]`."""

from __future__ import annotations

from typing import Annotated

import msgspec

Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=600_000)]


class ZmtpOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the `zmtp` transport. What a client may send and leave unread is in `[limits]`."""

    handshake_ms: Milliseconds = 5_000
    """Time for a new connection to prove that it speaks ZeroMQ. 0: for ever."""
    linger_ms: Milliseconds = 1_000
    """At the end, time for replies to leave."""
    backlog: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1_024
    """Connections that the system holds until they are accepted."""
    spin_us: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    """After a request that was answered at once, look for the next one that long before sleeping:
    shorter waits for one request at a time, paid with a busy core."""
