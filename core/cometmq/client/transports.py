"""Which transport an address means, and which address is meant when none is given."""

from __future__ import annotations

import os
from importlib.metadata import entry_points

from cometmq.errors import ConfigError
from cometmq.interfaces import Connect
from cometmq.tcp_address import host_and_port

GROUP = "cometmq.transports"


def address_or_default(address: str | None) -> str:
    """The address given, else the one in `MQ_CONNECT`. Raises ConfigError when there is none."""
    chosen = address or os.environ.get("MQ_CONNECT", "")
    if not isinstance(chosen, str):
        raise ConfigError(f"address={chosen!r}: a text is wanted, as in 'tcp://127.0.0.1:7800'")
    if not chosen:
        raise ConfigError(
            "no broker address: pass one (tcp://127.0.0.1:7800) or set MQ_CONNECT to it"
        )
    return chosen


def find_connect(address: str) -> Connect:
    """The connect function of the transport for this address's scheme; no other is imported.

    Raises ConfigError for an address without a scheme, with one that no transport
    brings, or with a port that is none.
    """
    scheme, separator, _ = address.partition("://")
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if not separator or scheme not in found:
        known = ", ".join(f"{name}://" for name in sorted(found)) or "none is installed"
        raise ConfigError(
            f"address {address!r}: it must begin with one of {known}, as in tcp://127.0.0.1:7800"
        )
    if scheme == "tcp":  # at once, not when the first request is to go
        host_and_port(address, listening=False)
    connect: Connect = found[scheme].load()
    return connect
