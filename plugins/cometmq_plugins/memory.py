"""`memory`: the same log as `commitlog`, in the memory of the process. Nothing survives it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cometmq.environment import Environment
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Storage
from cometmq.memory_files import MemoryFiles
from cometmq.plugins import Plugin
from cometmq_plugins.segments import RESERVE_BYTES, STEP_BYTES, SegmentStorage

_Capacity = Annotated[int, msgspec.Meta(ge=64 << 20)]


class MemoryOptions(msgspec.Struct, frozen=True):
    """`[plugin.memory]`"""

    capacity_bytes: _Capacity = 4 << 30
    """How much the log may hold before sends are refused as on a full disk; memory is used for
    what was written only."""


class MemoryPlugin(Plugin):
    """Keeps the log in memory: fast, and gone with the process."""

    name = "memory"
    options = MemoryOptions

    def __init__(self, options: MemoryOptions) -> None:
        self._files = MemoryFiles(options.capacity_bytes)

    @hookimpl
    def storage(self, environment: Environment, data: str) -> Storage:
        """Segments under the name `data`, of which nothing is on disk."""
        return SegmentStorage(
            environment,
            self._files,
            data,
            persistent=False,
            step_bytes=STEP_BYTES,
            reserve_bytes=RESERVE_BYTES,
        )
