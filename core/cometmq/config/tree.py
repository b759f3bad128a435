"""The tree of settings: every key, its type, its range, its default and its meaning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from cometmq.batch import BATCH_BYTES_MAX
from cometmq.interfaces import Level, Limits
from cometmq.names import NAME_PATTERN, QUEUES_MAX

Name = Annotated[
    str,
    msgspec.Meta(
        pattern=f"^{NAME_PATTERN}$",
        description="1 to 127 letters, digits, dots, dashes and underscores",
    ),
]
PluginName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z][a-z0-9-]*$",
        description="a plugin's name: small letters, digits and dashes, beginning with a letter",
    ),
]
Address = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z][a-z0-9+.-]*://.+$",
        description="an address like tcp://127.0.0.1:7800",
    ),
]
Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=24 * 3600 * 1000)]


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[broker]`: who this broker is and whom it serves."""

    name: Name = "broker"
    """Told to clients and shown to people."""
    listen: Annotated[tuple[Address, ...], msgspec.Meta(min_length=1)] = ("tcp://127.0.0.1:7800",)
    """Addresses to serve at; the scheme chooses the transport, port 0 takes a free one."""
    data: Annotated[str, msgspec.Meta(min_length=1)] = "mq-data"
    """The data folder; made when missing."""
    level: Level | None = None
    """The default ack level; unset, it is what the enabled plugins bring."""
    auto_create: bool = True
    """Make a topic at the first message sent to it."""
    default_queues: Annotated[int, msgspec.Meta(ge=1, le=QUEUES_MAX)] = 4
    """Queues of a topic that was created without a number."""
    insecure: bool = False
    """Listen beyond loopback although no plugin authenticates."""
    session_timeout_ms: Milliseconds = 30_000
    """A client that is silent for so long has left."""
    loop_stall_limit_ms: Milliseconds = 30_000
    """A broker whose event loop is blocked for so long stops itself; after a signal, no hook is
    waited for any longer."""
    malloc_tuning: bool = True
    """Keep freed memory for the next burst instead of giving it back at once."""


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[log]`: when a segment closes, and how much may be unsynced."""

    segment_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 40)] = 1 << 30
    """A segment closes at this size."""
    segment_batches: Annotated[int, msgspec.Meta(ge=1)] = 500_000
    """A segment closes at so many batches."""
    segment_age_s: Annotated[int, msgspec.Meta(ge=1)] = 86_400
    """A segment closes so long after its first message."""
    max_unsynced_bytes: Annotated[int, msgspec.Meta(ge=1 << 16)] = 256 << 20
    """Beyond this much unsynced, sends of every level wait for the disk."""
    mark_idle_ms: Milliseconds = 100
    """Idle for so long after a sync, the broker writes down what is synced."""
    drop_state: tuple[str, ...] = ()
    """State in the log of plugins that are off, by name, to be given up for good."""


class PluginsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[plugins]`: what is added to the standard set, in this order, and what is taken away."""

    enable: tuple[PluginName, ...] = ()
    disable: tuple[PluginName, ...] = ()


class Source(msgspec.Struct, frozen=True):
    """Where a value came from."""

    kind: Literal["default", "file", "environment", "command line"] = "default"
    place: str = "default"
    """`mq.toml:12`, `MQ_BROKER__LEVEL`, `command line` or `default`."""

    def __str__(self) -> str:
        return self.place


DEFAULT_SOURCE = Source()


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All settings. Ranges are checked by `load_config`, not by this constructor."""

    broker: BrokerConfig = BrokerConfig()
    log: LogConfig = LogConfig()
    limits: Limits = Limits()
    plugins: PluginsConfig = PluginsConfig()
    plugin: dict[str, dict[str, Any]] = {}
    """Options by plugin name, as written: each plugin's own types are checked by `compose`."""
    sources: dict[str, Source] = {}
    """Where each value that is not a default came from, by dotted key."""

    def source(self, key: str) -> Source:
        """Where the value of a dotted key (`broker.level`, `plugin.NAME.KEY`) came from."""
        return self.sources.get(key, DEFAULT_SOURCE)


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "broker": BrokerConfig,
    "log": LogConfig,
    "limits": Limits,
    "plugins": PluginsConfig,
}

_LIMIT_RANGES = {
    "batch_bytes": (1 << 10, BATCH_BYTES_MAX),
    "frame_bytes": (1 << 10, 1 << 30),
    "frames": (1, 16),
    "credit_bytes": (1 << 10, 1 << 40),
    "connections": (1, 1_000_000),
    "properties": (0, 65_535),
    "header_bytes": (0, 1 << 20),
    "parked": (0, 10_000_000),
    "held_bytes": (1 << 10, 1 << 50),
}


def field_types(section: str) -> dict[str, Any]:
    """Key to type, ranges included, of a section. `Limits` also travels in `hello`, where a range
    would refuse a peer that is merely set up differently: so its ranges are kept here."""
    types = {field.name: field.type for field in msgspec.structs.fields(SECTIONS[section])}
    if section == "limits":
        for name, (low, high) in _LIMIT_RANGES.items():
            types[name] = Annotated[int, msgspec.Meta(ge=low, le=high)]
    return types
