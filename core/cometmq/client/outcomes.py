"""From the status of an answer to the exception that says what the caller can do."""

from __future__ import annotations

from cometmq.client.told import RETRY_MS_MAX, sentence
from cometmq.errors import (
    CometError,
    Damaged,
    Expired,
    Fenced,
    NotAvailable,
    OutcomeUnknown,
    PositionError,
    Refused,
    Retryable,
    Truncated,
)
from cometmq.protocol import Operation, Status

_RETRYABLE = frozenset(
    {
        Status.RETRY,
        Status.NO_SPACE,
        Status.STOPPING,
        Status.IN_DOUBT,
        Status.DISK_REFUSED,
        Status.CLAIMED,
    }
)
_REFUSED: dict[int, type[Refused]] = {
    Status.FENCED: Fenced,
    Status.LEVEL_NOT_AVAILABLE: NotAvailable,
    Status.UNKNOWN_OPERATION: NotAvailable,
    Status.VERSION_MISMATCH: NotAvailable,
}
_POSITION: dict[int, type[PositionError]] = {
    Status.TRUNCATED: Truncated,
    Status.EXPIRED: Expired,
    Status.DAMAGED: Damaged,
}

CHANGING = frozenset(
    {
        Operation.SEND,
        Operation.COMMIT,
        Operation.TOPIC_CREATE,
        Operation.TOPIC_ALTER,
        Operation.TOPIC_DELETE,
        Operation.GROUP_RESET,
        Operation.GROUP_DELETE,
    }
)
"""Operations that leave something in the log: without an answer their outcome is unknown."""


class ConnectionLost(Retryable):
    """The connection broke while a request was out; never leaves the client."""


def code_of(status: int) -> str:
    """The stable name of a status, also of one that this release doesn't know."""
    try:
        return Status(status).name
    except ValueError:
        return f"STATUS_{status}"


def failure(status: int, detail: str, retry_after_ms: int = 0) -> Refused | Retryable:
    """The exception for a status that is not OK and names no position."""
    code = code_of(status)
    why = sentence(detail) or f"the broker answered {code} without a reason; its log may say more"
    if status in _RETRYABLE or retry_after_ms:
        return Retryable(why, min(retry_after_ms, RETRY_MS_MAX), code)
    return _REFUSED.get(status, Refused)(why, code)


def part_failure(
    status: int, detail: str, topic: str, queue: int, next_offset: int = 0
) -> CometError:
    """The exception for one queue of an answer: a position error, else as `failure`."""
    kind = _POSITION.get(status)
    if kind is None:
        return failure(status, detail)
    text = (
        sentence(detail) or f"queue {queue} of {topic}: {code_of(status)}, go on at {next_offset}"
    )
    return kind(text, topic=topic, queue=queue, next_offset=next_offset)


def after_unknown(error: CometError, what: str) -> OutcomeUnknown:
    """A no for a repeat, when an earlier try may have got through: still unknown."""
    return OutcomeUnknown(
        f"{what} went out before the connection broke and may have been carried out; "
        f"its repeat was answered: {error}"
    )
