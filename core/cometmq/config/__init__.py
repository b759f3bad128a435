"""Settings of a broker: TOML file, environment and command line, one typed and checked tree."""

from cometmq.config.load import load_config, unknown_variables
from cometmq.config.tree import BrokerConfig, Config, LogConfig, PluginsConfig, Source

__all__ = [
    "BrokerConfig",
    "Config",
    "LogConfig",
    "PluginsConfig",
    "Source",
    "load_config",
    "unknown_variables",
]
