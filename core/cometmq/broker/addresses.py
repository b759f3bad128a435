"""Where the broker listens: which transport serves an address, and whether it may be open."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from cometmq.config import Config
from cometmq.errors import ConfigError
from cometmq.interfaces import Transport
from cometmq.plugins import Composition, by_key


def transports_by_scheme(composition: Composition) -> Mapping[str, Transport]:
    """The transports that the plugins bring; for a scheme that the user's own plugins serve, the
    standard set's gives way. Raises PluginError if two others want one scheme."""
    contributed: Sequence[tuple[str, Sequence[Transport]]] = composition.collect("transports")
    brought = [
        (plugin, scheme, transport)
        for plugin, transports in contributed
        for transport in transports
        for scheme in transport.schemes
    ]
    standard = {plugin.name for plugin in composition.plugins if plugin.by_default}
    taken = {scheme for plugin, scheme, _ in brought if plugin not in standard}
    return by_key(
        "transport for scheme",
        (each for each in brought if each[0] not in standard or each[1] not in taken),
    )


def transport_of(address: str, transports: Mapping[str, Transport], config: Config) -> Transport:
    """The transport that serves an address. Raises ConfigError if none does."""
    scheme = address.partition("://")[0]
    if scheme not in transports:
        known = ", ".join(f"{name}://" for name in sorted(transports)) or "none"
        raise ConfigError(
            f"{config.source('broker.listen')}: `broker.listen` has {address}, but no enabled "
            f"plugin serves {scheme}://; there is {known}: use one of them or enable its plugin"
        )
    return transports[scheme]


def check_open(config: Config, composition: Composition) -> None:
    """Raises ConfigError for an address beyond this host while nobody authenticates clients."""
    if config.broker.insecure or composition.implementers("authenticate"):
        return
    for address in config.broker.listen:
        if not is_local(address):
            raise ConfigError(
                f"{config.source('broker.listen')}: `broker.listen` has {address}, which others "
                "than this host can reach, and no enabled plugin authenticates clients: listen on "
                "127.0.0.1, enable such a plugin, or say --insecure"
            )


def is_local(address: str) -> bool:
    """True if only this host can reach it: an address without a port is no network's."""
    parts = urlsplit(address)
    try:
        if parts.port is None:
            return True
    except ValueError:
        return False
    host = parts.hostname or "*"
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
