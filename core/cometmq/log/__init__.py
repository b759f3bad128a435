"""The commit log: positions and their waiters, recovery, checkpoints, state, the queue index."""

from cometmq.log.indexed_segments import NotLoaded
from cometmq.log.log import Log
from cometmq.log.places import LEVELS_HERE
from cometmq.log.positions import Callback, Outcome, PositionName
from cometmq.log.reader import ReadResult
from cometmq.log.segment_index import QueueKey
from cometmq.log.settings import Appended, Cut, Damage, LogSettings, RecoveryReport

__all__ = [
    "LEVELS_HERE",
    "Appended",
    "Callback",
    "Cut",
    "Damage",
    "Log",
    "LogSettings",
    "NotLoaded",
    "Outcome",
    "PositionName",
    "QueueKey",
    "ReadResult",
    "RecoveryReport",
]
