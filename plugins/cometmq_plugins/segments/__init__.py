"""The log's segments as files, over any file layer: what `commitlog` and `memory` share.

`storage` is the whole; `files` knows names and reads, `read_ahead` brings in what is cold, `ground`
makes files with room in them, `sync` knows what is not on disk yet, `cuts` and `trims` take away
from either end, `reserve` keeps room for a full disk, `data_folder` the lock.
"""

from cometmq_plugins.segments.storage import (
    READ_AHEAD_BYTES,
    RESERVE_BYTES,
    STEP_BYTES,
    SegmentStorage,
)

__all__ = ["READ_AHEAD_BYTES", "RESERVE_BYTES", "STEP_BYTES", "SegmentStorage"]
