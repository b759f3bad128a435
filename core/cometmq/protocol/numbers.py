"""The numbers of the wire: operations, statuses, and the ranges of its integers."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1

UInt = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
QueueNumber = Annotated[int, msgspec.Meta(ge=0, le=65535)]
QueueCount = Annotated[int, msgspec.Meta(ge=1, le=65536)]
LogId = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$")]
"""In hex."""


class Operation(IntEnum):
    """What a request asks for. Plugins' operations begin at 1000."""

    HELLO = 1
    HEARTBEAT = 2
    GOODBYE = 3
    BROKER_INFO = 4
    TOPIC_CREATE = 10
    TOPIC_ALTER = 11
    TOPIC_DELETE = 12
    TOPIC_LIST = 13
    TOPIC_DESCRIBE = 14
    SEND = 20
    FETCH = 30
    OFFSETS = 31
    OFFSET_BY_TIME = 32
    COMMIT = 33
    COMMITTED = 34
    REPORT_DAMAGE = 35
    CLAIM = 36
    RELEASE = 37
    GROUP_HEARTBEAT = 50
    GROUP_LEAVE = 51
    GROUP_LIST = 52
    GROUP_DESCRIBE = 53
    GROUP_RESET = 54
    GROUP_DELETE = 55


class Status(IntEnum):
    """How a request, or one part of it, ended. The name is the stable error code."""

    OK = 0
    HELLO_REQUIRED = 1
    BAD_REQUEST = 2
    UNKNOWN_OPERATION = 3
    VERSION_MISMATCH = 4
    REFUSED = 10
    NOT_AUTHENTICATED = 11
    NOT_AUTHORIZED = 12
    TOPIC_NOT_FOUND = 13
    TOPIC_GONE = 14
    TOPIC_EXISTS = 15
    QUEUE_NOT_FOUND = 16
    NOT_WRITABLE = 17
    NOT_READABLE = 18
    BAD_BATCH = 19
    TOO_LARGE = 20
    BAD_NAME = 21
    LEVEL_NOT_AVAILABLE = 22
    FENCED = 23
    CLAIMED = 24
    LIMIT_REACHED = 25
    GROUP_NOT_FOUND = 26
    OUT_OF_SEQUENCE = 27
    UNKNOWN_PRODUCER = 28
    RETRY = 40
    NO_SPACE = 41
    STOPPING = 42
    IN_DOUBT = 43
    DISK_REFUSED = 44
    TRUNCATED = 50
    EXPIRED = 51
    DAMAGED = 52
    INTERNAL = 60
