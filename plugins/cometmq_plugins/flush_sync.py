"""`flush-sync`: who sends is answered when the message is on disk."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cometmq.hookspecs import hookimpl
from cometmq.interfaces import FlushPolicy
from cometmq.plugins import Plugin
from cometmq_plugins.group_commit import GroupCommit

_Interval = Annotated[int, msgspec.Meta(ge=1, le=60_000)]
_Limit = Annotated[int, msgspec.Meta(ge=0, le=10_000)]


class FlushSyncOptions(msgspec.Struct, frozen=True):
    """`[plugin.flush-sync]`"""

    flush_interval_ms: _Interval = 500
    """What nobody waits for is synced within this time."""
    sync_in_loop_below_us: _Limit = 500
    """A lone waiter's sync blocks the loop as long as syncs take less than this; 0 = never."""


class FlushSyncPlugin(Plugin):
    """An ack means that the message is on disk (level `disk`); sends that wait share one sync."""

    name = "flush-sync"
    options = FlushSyncOptions

    def __init__(self, options: FlushSyncOptions) -> None:
        self._options = options

    @hookimpl
    def flush_policy(self) -> FlushPolicy:
        """Group commit."""
        return GroupCommit(
            "disk", self._options.flush_interval_ms, self._options.sync_in_loop_below_us
        )
