"""Answering when the log has reached a position."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cometmq.broker.requests import Request
from cometmq.log import Log, Outcome
from cometmq.protocol import Status

NOT_WRITTEN = "the write failed and nothing of it is in the log: try again"


class Waits:
    """Control requests wait for the broker's default level."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def answer(self, request: Request, end: int, reply: Callable[[], msgspec.Struct]) -> None:
        """Answer with what `reply` makes once the log up to `end` has the default level."""

        def done(outcome: Outcome) -> None:
            if outcome is Outcome.REACHED:
                request.answer(reply())
            elif outcome is Outcome.NOT_WRITTEN:
                request.fail(Status.RETRY, NOT_WRITTEN)
            else:
                # Cut away after it was written: nobody can know who saw it.
                request.drop()

        self._log.wait(None, end, done)
