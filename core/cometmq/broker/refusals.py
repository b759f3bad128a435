"""The one way to say no: a status and one sentence (what, where, what to do next)."""

from __future__ import annotations

import logging

from cometmq.errors import (
    CometError,
    LogError,
    LogInDoubt,
    LogStopped,
    NoSpace,
    PluginFailure,
)
from cometmq.interfaces import Refuse
from cometmq.protocol import Status

logger = logging.getLogger(__name__)


class Rejected(CometError):
    """The answer to a request, or to one part of it, is no: with a status and one sentence."""

    def __init__(self, status: int, detail: str, retry_after_ms: int = 0) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.retry_after_ms = retry_after_ms


def log_refusal(error: LogError) -> Rejected:
    """What the sender hears when the log takes nothing."""
    if isinstance(error, NoSpace):
        return Rejected(Status.NO_SPACE, str(error), 1000)
    if isinstance(error, LogInDoubt):
        return Rejected(Status.IN_DOUBT, str(error))
    if isinstance(error, LogStopped):
        return Rejected(Status.STOPPING, str(error), 1000)
    return Rejected(Status.INTERNAL, str(error))


def hook_refusal(refuse: Refuse, default: Status = Status.REFUSED) -> Rejected:
    """What the sender hears when a plugin says no: the plugin's code if it names a status."""
    status = Status.__members__.get(refuse.code, default)
    if status is Status.REFUSED:
        status = Status.RETRY if refuse.retry_after_ms else default
    return Rejected(status, refuse.reason, refuse.retry_after_ms)


def internal_refusal(error: Exception, what: str) -> Rejected:
    """What the sender hears when we, or a plugin, made a mistake; we hear all of it."""
    logger.error("%s failed", what, exc_info=error)
    if isinstance(error, PluginFailure):
        return Rejected(Status.INTERNAL, str(error))
    return Rejected(
        Status.INTERNAL,
        f"the broker failed at {what} ({type(error).__name__}: {error}): see its log",
    )
