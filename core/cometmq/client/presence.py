"""Saying that there is no broker, once that has lasted, and that there is one again.

In the log only: a program is told by its calls, a person who waits is not, nor is a poll, which
finds nothing as it would on an idle topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from cometmq.client.connection import Connection
from cometmq.client.told import sentence

log = logging.getLogger(__name__)

AWAY_TOLD_S = 1.0
"""A broker that restarts is back sooner, and not worth a line."""
AWAY = "waiting for a broker: %s"
BACK = "the broker at %s is there"
IN_DOUBT = "the log of the broker at %s may hold more than can be read, and takes nothing: %s"


class Timer(Protocol):
    """What is to come, and can be called off."""

    def cancel(self) -> None: ...


class Presence:
    """What one connection has told of its broker."""

    def __init__(self, connection: Connection, at: Callable[[float, Callable[[], None]], Timer]):
        """`at` has something called at a time."""
        self._connection = connection
        self._at = at
        self._timer: Timer | None = None
        self._told = False
        self._doubt = ""

    def trying(self, now_s: float) -> None:
        """A channel is about to be opened."""
        if self._timer is None and not self._told:
            self._timer = self._at(now_s + AWAY_TOLD_S, self._tell)

    def met(self) -> None:
        """The broker has answered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._told:
            self._told = False
            log.info(BACK, self._connection.address)
        server = self._connection.server
        doubt = "" if server is None else server.in_doubt
        if doubt and doubt != self._doubt:
            log.warning(IN_DOUBT, self._connection.address, sentence(doubt))
        self._doubt = doubt

    def _tell(self) -> None:
        self._timer = None
        if self._connection.pending:
            self._told = True
            log.warning(AWAY, self._connection.reason)
