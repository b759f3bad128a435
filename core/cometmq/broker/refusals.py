"""The one way to say no: a status and one sentence (what, where, what to do next)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cometmq.advice import advice, no_descriptor
from cometmq.broker.names import shown
from cometmq.errors import (
    CometError,
    DiskRefused,
    LogError,
    LogInDoubt,
    LogStopped,
    NoSpace,
    PluginFailure,
    Refused,
    Retryable,
    tellable,
)
from cometmq.interfaces import Refuse
from cometmq.names import NAME_RULE, is_name
from cometmq.protocol import Status

logger = logging.getLogger(__name__)

MEMBER_MAX = 255
PARTS_MAX = 4096
"""Queues that one request may be about."""
DAY_MS = 86_400_000
"""No plugin may put off a request by more."""
RETRY_AFTER_MS = 100
"""When it is worth trying again what is refused for a moment."""


class Rejected(CometError):
    """The answer to a request, or to one part of it, is no: with a status and one sentence."""

    def __init__(self, status: int, detail: str, retry_after_ms: int = 0) -> None:
        self.status = status
        self.detail = tellable(detail)
        super().__init__(self.detail)
        self.retry_after_ms = retry_after_ms


def check_group(group: str) -> None:
    """Raises Rejected unless a client may use this as a group's name."""
    if not is_name(group):
        raise Rejected(Status.BAD_NAME, f"{shown(group)} is no group name: use {NAME_RULE}")


def check_member(member: str) -> None:
    """Raises Rejected unless this may be a member's name."""
    if not (1 <= len(member) <= MEMBER_MAX and member.isprintable()):
        raise Rejected(
            Status.BAD_NAME,
            f"{shown(member)} is no member's name: use 1 to {MEMBER_MAX} printable characters",
        )


def check_parts(count: int) -> None:
    """Raises Rejected unless a request may be about so many queues."""
    if not 1 <= count <= PARTS_MAX:
        raise Rejected(
            Status.BAD_REQUEST, f"a request about {count} queues: ask for 1 to {PARTS_MAX}"
        )


def log_refusal(error: LogError) -> Rejected:
    """What the sender hears when the log takes nothing."""
    if isinstance(error, NoSpace):
        return Rejected(Status.NO_SPACE, str(error), 1000)
    if isinstance(error, DiskRefused):
        return Rejected(Status.DISK_REFUSED, str(error), 1000)
    if isinstance(error, LogInDoubt):
        return Rejected(Status.IN_DOUBT, str(error))
    if isinstance(error, LogStopped):
        return Rejected(Status.STOPPING, str(error), 1000)
    return Rejected(Status.INTERNAL, str(error))


def told_refusal(error: Refused | Retryable) -> Rejected:
    """What the sender hears when a plugin's operation says no: its code if it names a status."""
    after_ms = error.after_ms if isinstance(error, Retryable) else 0
    default = Status.RETRY if isinstance(error, Retryable) else Status.REFUSED
    return Rejected(Status.__members__.get(error.code, default), str(error), after_ms)


def hook_refusal(
    hook: Callable[..., object], refuse: Refuse, default: Status = Status.REFUSED
) -> CometError:
    """What the sender hears when a plugin says no: the plugin's code if it names a status; of a
    plugin that says it in a way that can't be told, that it does."""
    reason, after_ms, code = refuse.reason, refuse.retry_after_ms, refuse.code
    said = (type(reason), type(after_ms), type(code)) == (str, int, str)
    if not said or not 0 <= after_ms <= DAY_MS or code == Status.OK.name:
        allowed = f"a reason, 0 to {DAY_MS} ms, and a code that is no {Status.OK.name}"
        return wrong_answer(hook, refuse, f"Refuse with {allowed}")
    status = Status.__members__.get(code, default)
    if status is Status.REFUSED:
        status = Status.RETRY if after_ms else default
    return Rejected(status, reason, after_ms)


def wrong_answer(hook: Callable[..., object], answer: object, allowed: str) -> PluginFailure:
    """A hook on the message path returned what its docs don't allow. `hook` is a compiled call,
    which knows whose it is."""
    failure: PluginFailure = hook.__dict__["wrong_answer"](answer, allowed)
    return failure


def internal_refusal(error: Exception, what: str) -> Rejected:
    """What the sender hears when we, or a plugin, made a mistake; we hear all of it. Files that
    can't be opened are nobody's."""
    if isinstance(error, OSError) and no_descriptor(error):
        told = f"{what} needs a file, and none can be opened ({error}): {advice(error)}"
        logger.warning("%s", told)
        return Rejected(Status.RETRY, told, 1000)
    logger.error("%s failed", what, exc_info=error)
    if isinstance(error, PluginFailure):
        return Rejected(Status.INTERNAL, str(error))
    return Rejected(
        Status.INTERNAL,
        f"the broker failed at {what} ({type(error).__name__}: {error}): see its log",
    )
