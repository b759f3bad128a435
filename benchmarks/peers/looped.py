"""For clients that live in an asyncio loop: the loop runs inside each of the worker's calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from benchmarks.peers.base import Take

T = TypeVar("T")


class Looped:
    """A client's own loop, of the fastest kind there is."""

    def __init__(self) -> None:
        import uvloop

        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        asyncio.set_event_loop(self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the loop until `work` is done."""
        return self.loop.run_until_complete(work)

    def pause(self, seconds: float) -> None:
        """See `Client`."""
        self.run(asyncio.sleep(seconds))


class Window:
    """Counts what is on its way; lets a sender wait for room, or for all."""

    TIMEOUT_S = 60

    def __init__(self) -> None:
        self.sent = 0
        self.acked = 0
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None

    def on_ack(self) -> None:
        """One more is acked."""
        self.acked_in_all(self.acked + 1)

    def acked_in_all(self, count: int) -> None:
        """So many are acked since the beginning."""
        self.acked = count
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """Raise this to whoever waits."""
        self._failure = error
        self._changed.set()

    async def room(self, size: int) -> None:
        """Wait until at most `size` are on their way.

        Raises what `fail` was given, or TimeoutError when nothing is acked for long.
        """
        while self.sent - self.acked > size:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), self.TIMEOUT_S)
            if self._failure is not None:
                raise self._failure


class Taker:
    """Gives bodies that come one by one to `take`, and ends with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Take, ack_each: int) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self._take = take
        self._ack_each = ack_each
        self._seen = 0

    def takes(self, body: bytes) -> bool:
        """Take a body; True if this is the one to ack, with all before it."""
        if self.done.done():
            return False
        self._seen += 1
        try:
            enough = self._take([body])
        except Exception as error:
            # A client library would only log it.
            self.done.set_exception(error)
            return False
        if enough:
            self.done.set_result(None)
        return enough or self._seen % self._ack_each == 0
