"""Rules that join several settings, or that no type can express."""

from __future__ import annotations

import re

from cometmq.config.tree import Config
from cometmq.config.values import fail

PORT_MAX = 65_535
_PORT = re.compile(r":(\d+)$")


def check_sizes(config: Config) -> None:
    """A batch fits into a frame, a frame into the credit, that into what all hold, a batch into a
    segment."""
    sizes = {
        "limits.batch_bytes": config.limits.batch_bytes,
        "limits.frame_bytes": config.limits.frame_bytes,
        "limits.credit_bytes": config.limits.credit_bytes,
        "limits.held_bytes": config.limits.held_bytes,
        "log.segment_bytes": config.log.segment_bytes,
    }
    for small, large in (
        ("limits.batch_bytes", "limits.frame_bytes"),
        ("limits.frame_bytes", "limits.credit_bytes"),
        ("limits.credit_bytes", "limits.held_bytes"),
        ("limits.batch_bytes", "log.segment_bytes"),
    ):
        if sizes[small] > sizes[large]:
            fail(
                config.source(small if small in config.sources else large),
                f"`{small}` is {sizes[small]}, more than `{large}`, which is {sizes[large]}; "
                f"lower {small} or raise {large} to at least {sizes[small]}",
            )


def check_addresses(config: Config) -> None:
    """Ports are possible ones and no address is there twice (port 0 may be)."""
    source = config.source("broker.listen")
    seen: set[str] = set()
    for address in config.broker.listen:
        found = _PORT.search(address)
        if found is None and address.startswith("tcp://"):
            fail(
                source,
                f"`broker.listen` has {address}, which names no port; write it behind a colon, as "
                "in tcp://127.0.0.1:7800 (0 takes a free one)",
            )
        if found and int(found[1]) > PORT_MAX:
            fail(
                source,
                f"`broker.listen` has {address}, but a port must be a whole number from 0 to "
                f"{PORT_MAX} (0 takes a free one)",
            )
        if address in seen and not (found and int(found[1]) == 0):
            fail(source, f"`broker.listen` has {address} twice; take one of them out")
        seen.add(address)
