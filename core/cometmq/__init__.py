"""CometMQ: a durable message broker that a team composes out of plugins.

`Producer`, `Consumer`, `PullConsumer` and `Admin` are what an application needs; `cometmq.aio`
has the same names, awaitable. `errors` names what can go wrong by what to do about it.
"""

from cometmq.client import (
    Admin,
    Consumer,
    HeldMessage,
    Producer,
    PullConsumer,
    Receipt,
    SendResult,
)
from cometmq.errors import (
    BufferFull,
    Closed,
    CometError,
    ConfigError,
    Damaged,
    Expired,
    Fenced,
    NotAvailable,
    OutcomeUnknown,
    Refused,
    Retryable,
    Truncated,
    Unreadable,
)
from cometmq.message import Message, ReceivedMessage, UnreadableMessage
from cometmq.protocol import Retention
from cometmq.version import __version__

__all__ = [
    "Admin",
    "BufferFull",
    "Closed",
    "CometError",
    "ConfigError",
    "Consumer",
    "Damaged",
    "Expired",
    "Fenced",
    "HeldMessage",
    "Message",
    "NotAvailable",
    "OutcomeUnknown",
    "Producer",
    "PullConsumer",
    "Receipt",
    "ReceivedMessage",
    "Refused",
    "Retention",
    "Retryable",
    "SendResult",
    "Truncated",
    "Unreadable",
    "UnreadableMessage",
    "__version__",
]
