"""Claim tokens: the place where a fetch or a commit of a group is checked against its claim."""

from __future__ import annotations

from cometmq.broker.claims import ClaimKey, Holder
from cometmq.broker.names import shown
from cometmq.broker.refusals import Rejected
from cometmq.broker.tenures import Tenures
from cometmq.protocol import Status, Token


def is_token(token: Token | None) -> bool:
    """False for the token that says that there is none."""
    return token is not None and bool(token.epoch or token.position)


def is_token_of(token: Token | None, holder: Holder) -> bool:
    """Whether it is the token of this claim."""
    return token is not None and (token.epoch, token.position) == holder.token


def goes_on(token: Token | None, holder: Holder) -> bool:
    """Whether the holder presents a token under which it holds the queue without a break. It need
    not be the newest: the answer that tells of that can be lost, with its connection or broker."""
    return token is not None and holder.first <= (token.epoch, token.position) <= holder.token


def check_token(tenures: Tenures, key: ClaimKey, token: Token | None, where: str) -> None:
    """Raises Rejected for a token that is not that of the living claim on a queue. To come
    without a token is allowed: reading takes nothing from anybody."""
    if token is None or not is_token(token):
        return
    holder = tenures.living(key)
    if holder is not None and is_token_of(token, holder):
        return
    owner = "nobody" if holder is None else f"member {shown(holder.member)}"
    raise Rejected(
        Status.FENCED,
        f"the claim token of {where} is not valid any more, {owner} holds the queue now: drop what "
        "was read of it, and claim it again if the group's advice still says so",
    )


def check_commit_token(tenures: Tenures, key: ClaimKey, token: Token | None, where: str) -> None:
    """The same for a commit, which may come without a token only while nobody holds the queue."""
    check_token(tenures, key, token, where)
    if is_token(token):
        return
    holder = tenures.living(key)
    if holder is not None:
        raise Rejected(
            Status.FENCED,
            f"{where} is claimed by member {shown(holder.member)}, so nobody else may commit "
            "there: join the group as a member, use another group, or stop its members first",
        )
