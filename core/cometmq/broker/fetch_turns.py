"""How much fetches read in one turn of the event loop; what exceeds that waits for the next ones.

A fetch is a few bytes and its answer may be a megabyte, so hundreds that come at once, or that one
send wakes, would hold up everybody else for seconds. Connections take turns too: who asks for
little waits for one answer of each other connection, not for all that they asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from cometmq.broker.requests import Request
from cometmq.broker.sessions import Session
from cometmq.broker.tasks import Tasks
from cometmq.environment import Clock

TURN_BYTES = 8 << 20


class PutOff(Protocol):
    """A fetch that can be put off."""

    request: Request

    def go_on(self) -> None:
        """Its turn has come."""

    def answer_empty(self) -> None:
        """It will have no turn: say so."""


class FetchTurns:
    """Fetches that wait for their turn, and what was read in this one."""

    def __init__(self, clock: Clock, answer_bytes: int, write: Callable[[], None]) -> None:
        """`answer_bytes`: what one answer may take; `write` ends a drain, as each turn is one."""
        self._clock = clock
        # Besides what waits of it an answer may lie there unread: the credit is for both.
        self._cost_bytes = 2 * answer_bytes
        self._write = write
        self._waiting: dict[Session, deque[PutOff]] = {}
        self._tasks = Tasks()
        self.spent_bytes = 0
        """Read since fetches last had to wait: only then does it matter what a turn is."""

    def put_off(self, fetch: PutOff) -> None:
        """Let it wait. Meanwhile it counts against its connection's credit with its answer, so
        that nobody can let any number wait."""
        session = fetch.request.session
        session.unanswered_bytes += self._cost_bytes
        if not self._waiting:
            self._tasks.spawn(self._go_on())
        self._waiting.setdefault(session, deque()).append(fetch)

    async def stop(self) -> None:
        """Answer all that wait, empty."""
        await self._tasks.stop()
        while self._waiting:
            self._next().answer_empty()

    async def _go_on(self) -> None:
        while self._waiting:
            await self._clock.sleep(0)
            self.spent_bytes = 0
            while self._waiting and self.spent_bytes < TURN_BYTES:
                self._next().go_on()
            self._write()

    def _next(self) -> PutOff:
        session, own = next(iter(self._waiting.items()))
        fetch = own.popleft()
        del self._waiting[session]
        if own:
            self._waiting[session] = own
        session.unanswered_bytes -= self._cost_bytes
        return fetch
