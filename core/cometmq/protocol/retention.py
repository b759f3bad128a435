"""How long a topic keeps its messages."""

from __future__ import annotations

import msgspec

from cometmq.protocol.numbers import UInt


class Retention(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A topic's own rules; 0 and empty: no such rule. They move the topic's min offsets; the bytes
    go with their segments."""

    time_ms: UInt = 0
    """Messages older than this expire, and younger ones are kept although the broker's age for
    segments is shorter."""
    size_bytes: UInt = 0
    """The oldest messages expire once the topic holds more than this."""
    group: str = ""
    """What this group has not consumed (committed) yet is kept. What it has consumed expires by
    time and size, or at once if there is neither."""
    cap_ms: UInt = 0
    """Older messages expire although the group has not consumed them."""
    cap_bytes: UInt = 0
    """Beyond this the oldest messages expire although the group has not consumed them."""
