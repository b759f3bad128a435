"""What a broker says of itself, as far as a client goes by it.

A broken one must not fill our memory, terminal or time.
"""

from __future__ import annotations

import msgspec

from cometmq.batch import BATCH_BYTES_MAX
from cometmq.errors import ProtocolError
from cometmq.interfaces import Limits
from cometmq.protocol import FRAMES_MAX

REPLY_BYTES_MAX = 64 << 20
"""A fetch brings 16 MiB at most, and nothing else is larger."""
RETRY_MS_MAX = 60_000
"""So long a broker may tell us to wait; then it is asked again."""
DETAIL_MAX = 2000
"""Characters of a sentence; those of our own brokers have a few hundred."""


def usable(limits: Limits) -> Limits:
    """The limits to go by. Raises ProtocolError for some that can't be meant."""
    for name, value in msgspec.structs.asdict(limits).items():
        if value < 0:
            raise ProtocolError(f"it says that limits.{name} is {value}")
    return msgspec.structs.replace(
        limits,
        batch_bytes=min(limits.batch_bytes, BATCH_BYTES_MAX),
        frames=min(limits.frames, FRAMES_MAX),
        credit_bytes=min(limits.credit_bytes, REPLY_BYTES_MAX),
    )


def sentence(detail: str) -> str:
    """A reason, bounded, and harmless wherever it is printed."""
    if len(detail) <= DETAIL_MAX and detail.isprintable():
        return detail
    kept = detail if len(detail) <= DETAIL_MAX else f"{detail[:DETAIL_MAX]}…"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in kept)
