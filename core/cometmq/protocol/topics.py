"""Topics: make, change, list and describe them."""

from __future__ import annotations

from cometmq.protocol.numbers import QueueCount, QueueNumber, UInt
from cometmq.protocol.retention import Retention
from cometmq.protocol.wire import NestedWire, Wire


class TopicCreate(Wire):
    topic: str
    queues: UInt = 4
    readable: bool = True
    writable: bool = True


class TopicAlter(Wire):
    topic: str
    queues: UInt | None = None
    """May only grow."""
    readable: bool | None = None
    writable: bool | None = None
    incarnation: UInt = 0
    """The one the client knows; 0 = none."""
    retention: Retention | None = None
    """In place of all of the old one."""


class TopicDelete(Wire):
    topic: str
    incarnation: UInt = 0


class TopicList(Wire):
    prefix: str = ""
    most: UInt = 0
    """Not all of them by name, but so many at most, whichever are found first; 0: all."""


class TopicDescribe(Wire):
    topic: str
    create: bool = False
    """Make it with defaults if it is missing and the broker creates topics on first send."""
    incarnation: UInt = 0
    usage: bool = False
    """Add up bytes and age too, which may have to read the indexes of all segments."""


class TopicInfo(Wire):
    topic: str
    incarnation: UInt
    queues: QueueCount
    readable: bool
    writable: bool
    created_ms: int
    retention: Retention = Retention()


class QueueInfo(Wire):
    queue: QueueNumber
    min_offset: UInt
    max_offset: UInt
    """The next offset that a reader can't see yet."""
    next_offset: UInt
    """The next offset that a message will get."""


class TopicDescription(NestedWire):
    info: TopicInfo
    queues: list[QueueInfo] = []
    log_id: str = ""
    epoch: UInt = 0
    size_bytes: UInt | None = None
    """What its messages take in the log; None unless `usage` was asked for."""
    oldest_ms: int | None = None
    """About when the oldest message was stored, ms since 1970; None without messages."""
    in_doubt: str = ""
    """Why the log is read-only, and may hold more of the topic than can be read."""


class TopicListing(NestedWire):
    topics: list[TopicInfo]
