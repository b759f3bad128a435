"""`flush-async`: who sends is answered at once, and the disk follows."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cometmq.hookspecs import hookimpl
from cometmq.interfaces import FlushPolicy
from cometmq.plugins import Plugin
from cometmq_plugins.group_commit import GroupCommit

_Interval = Annotated[int, msgspec.Meta(ge=1, le=60_000)]


class FlushAsyncOptions(msgspec.Struct, frozen=True):
    """`[plugin.flush-async]`"""

    flush_interval_ms: _Interval = 500
    """Messages are on disk this much later, plus one sync: what a power cut may take."""


class FlushAsyncPlugin(Plugin):
    """An ack does not wait for the disk (level `memory`), which is synced by the interval."""

    name = "flush-async"
    options = FlushAsyncOptions

    def __init__(self, options: FlushAsyncOptions) -> None:
        self._options = options

    @hookimpl
    def flush_policy(self) -> FlushPolicy:
        """Syncs by the interval, and for sends and readers that wait for the disk."""
        return GroupCommit("memory", self._options.flush_interval_ms)
