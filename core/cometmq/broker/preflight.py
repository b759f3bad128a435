"""What keeps a broker from starting and can be told before anything is opened or bound."""

from __future__ import annotations

from cometmq.broker.addresses import check_open, transport_of, transports_by_scheme
from cometmq.config import Config
from cometmq.errors import ConfigError
from cometmq.interfaces import Transport
from cometmq.plugins import Composition


def preflight(config: Config, composition: Composition) -> list[tuple[str, Transport]]:
    """The addresses to listen on, each with its transport.

    Raises ConfigError for an address that nobody serves or that is open to strangers and for a
    level that nobody can give, PluginError for two transports of one scheme.
    """
    check_open(config, composition)
    transports = transports_by_scheme(composition)
    chosen = [
        (address, transport_of(address, transports, config)) for address in config.broker.listen
    ]
    if config.broker.level == "quorum":
        raise ConfigError(
            f"{config.source('broker.level')}: `broker.level` is quorum, which needs a "
            "replication plugin: enable one, or use disk or memory"
        )
    return chosen
