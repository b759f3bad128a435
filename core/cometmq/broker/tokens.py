"""Claim tokens: the place where a fetch or a commit of a group is checked against its claim."""

from __future__ import annotations

from cometmq.broker.refusals import Rejected
from cometmq.protocol import Status, Token


def check_token(token: Token | None, where: str) -> None:
    """Raises Rejected for a token that is not that of the living claim on a queue.

    This log holds no claims, since nothing writes them: so no token is valid, and nobody
    stands in the way of a group that has none.
    """
    if token is not None and (token.epoch or token.position):
        raise Rejected(
            Status.FENCED,
            f"the claim token of {where} is not valid here: claim the queue again, or leave the "
            "token out",
        )
