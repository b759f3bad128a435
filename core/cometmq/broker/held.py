"""What requests take that wait for a plugin or the disk, all connections together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cometmq.broker.refusals import RETRY_AFTER_MS, Rejected
from cometmq.broker.requests import Request
from cometmq.broker.sessions import Session
from cometmq.protocol import Status

GiveBack = Callable[[], None]
WAITING_BYTES = 1 << 10
"""About what it takes to wait for a plugin or a read, besides the request itself."""


class Held:
    """Counts them, against the credit of each one's connection too."""

    def __init__(self, allowed_bytes: int) -> None:
        self._allowed_bytes = allowed_bytes
        self._bytes = 0

    def take(self, request: Request, answer_bytes: int = 0) -> GiveBack:
        """The request is kept, with an answer of up to so many bytes; returns what is to be called
        when it is kept no longer. Raises Rejected if all together would take too much."""
        more_bytes = WAITING_BYTES + answer_bytes
        whole_bytes = request.size_bytes + more_bytes
        if self._bytes + whole_bytes > self._allowed_bytes:
            raise Rejected(
                Status.RETRY,
                f"{self._bytes} bytes are taken by requests that wait for a plugin or the disk, "
                f"{self._allowed_bytes} are allowed (limits.held_bytes): try again later",
                RETRY_AFTER_MS,
            )
        self._bytes += whole_bytes
        request.session.unanswered_bytes += more_bytes
        return partial(self._give_back, request.session, whole_bytes, more_bytes)

    def _give_back(self, session: Session, whole_bytes: int, more_bytes: int) -> None:
        self._bytes -= whole_bytes
        session.unanswered_bytes -= more_bytes
