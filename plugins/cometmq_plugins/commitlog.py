"""`commitlog`: the log in files of the data folder."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cometmq.environment import Environment
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Storage
from cometmq.plugins import Plugin
from cometmq_plugins.segments import (
    READ_AHEAD_BYTES,
    RESERVE_BYTES,
    STEP_BYTES,
    SegmentStorage,
)

_Step = Annotated[int, msgspec.Meta(ge=4096, le=1 << 30)]
_Reserve = Annotated[int, msgspec.Meta(ge=0)]
_Ahead = Annotated[int, msgspec.Meta(ge=0, le=32 << 20)]


class CommitLogOptions(msgspec.Struct, frozen=True):
    """`[plugin.commitlog]`"""

    allocate_step_bytes: _Step = STEP_BYTES
    """Disk space is taken in pieces of this size, ahead of what is written."""
    reserve_bytes: _Reserve = RESERVE_BYTES
    """Space set aside so that a full disk can be cleaned up and a broker can start on it."""
    read_ahead_bytes: _Ahead = READ_AHEAD_BYTES
    """At most so much is read ahead at once for who reads an old part of the log, in a thread;
    0 leaves it to the system, which does it in the loop's."""


class CommitLogPlugin(Plugin):
    """Keeps the log in files of the data folder, where it survives kills and power cuts."""

    name = "commitlog"
    options = CommitLogOptions

    def __init__(self, options: CommitLogOptions) -> None:
        self._options = options

    @hookimpl
    def storage(self, environment: Environment, data: str) -> Storage:
        """Segments in the folder `data`."""
        return SegmentStorage(
            environment,
            environment.files,
            data,
            persistent=True,
            step_bytes=self._options.allocate_step_bytes,
            reserve_bytes=self._options.reserve_bytes,
            read_ahead_bytes=self._options.read_ahead_bytes,
        )
