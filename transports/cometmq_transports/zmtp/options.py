"""What an operator can set in `[plugin.zmtp]`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cometmq_transports.zmtp.spinning import SPIN_US

Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=600_000)]


class ZmtpOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the `zmtp` transport. What a client may send and leave unread is in `[limits]`."""

    handshake_ms: Milliseconds = 5_000
    """Time for a new connection to prove that it speaks ZeroMQ. 0: for ever."""
    linger_ms: Milliseconds = 1_000
    """At the end, time for replies to leave."""
    backlog: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1_024
    """Connections that the system holds until they are accepted."""
    spin_us: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = SPIN_US
    """After a lone request that was answered at once, look for the next one at most that long
    before sleeping, if that proves to make them quicker. 0: never."""
