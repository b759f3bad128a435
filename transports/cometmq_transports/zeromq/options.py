"""What an operator can set in `[plugin.zeromq]`."""

from __future__ import annotations

from typing import Annotated

import msgspec

Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=600_000)]


class ZeromqOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the `zeromq` transport."""

    hwm: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 64
    """Messages of one client that ZeroMQ holds in each direction while the other side is slow.
    More help many small requests in flight; each may be as large as a message."""
    handshake_ms: Milliseconds = 5_000
    """Time for a new connection to prove that it speaks ZeroMQ. 0: for ever."""
    linger_ms: Milliseconds = 1_000
    """At the end, time for replies to leave."""
    backlog: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1_024
    """Connections that the system holds until they are accepted."""
    spin_us: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    """After a request, look for the next one that long before sleeping: shorter waits for one
    request at a time, paid with a busy core."""
