"""The commit log: positions and their waiters, recovery, checkpoints, state, the queue index."""

from cometmq.log.log import Log
from cometmq.log.places import LEVELS_HERE
from cometmq.log.positions import Callback, Outcome, PositionName, QueueKey
from cometmq.log.queue_index import NotLoaded
from cometmq.log.reader import ReadResult
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
