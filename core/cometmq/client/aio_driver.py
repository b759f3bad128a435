"""The `aio` face's way to wait: the running event loop watches the channel; no threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TypeVar

from cometmq.client.connection import NEVER
from cometmq.client.engine import Engine
from cometmq.client.flows import Flow, Waitable
from cometmq.environment import Timer
from cometmq.errors import Closed

T = TypeVar("T")

OTHER_LOOP = (
    "this client belongs to another event loop, where it was first used; make one in each "
    "asyncio.run, and close it there"
)


class AioDriver:
    """Runs flows of one engine on the event loop that first uses it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: Timer | None = None
        self._timer_at_s = NEVER
        self._watched = -1
        self._scheduled = False
        self._waiting: set[asyncio.Future[None]] = set()

    def check(self) -> None:
        """Raises Closed when this client can't work: closed, or of another event loop."""
        self.engine.check()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise Closed(OTHER_LOOP)

    def is_orphaned(self) -> bool:
        """Whether its event loop has ended, or is that of a forked parent: nothing can be sent."""
        return self._pid != os.getpid() or (self._loop is not None and self._loop.is_closed())

    def is_here(self) -> bool:
        """Whether it is this process's, not that of a forked parent."""
        return self._pid == os.getpid()

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end; flows end by their own deadlines. Cancelling stops the flow."""
        try:
            self.check()
        except Closed:
            flow.close()
            raise
        task = self.engine.spawn(flow)
        try:
            await self.wait(task, None)
        finally:
            task.cancel(str(self.engine.closed or "the wait was cancelled"))
        return task.result()

    def do(self, change: Callable[[], T]) -> T:
        """Change the engine; what that gives is sent before the loop's next turn."""
        self.check()
        result = change()
        self._schedule()
        return result

    def soon(self, change: Callable[[], object]) -> None:
        """Change the engine in the loop's next turn, and send what that gives."""
        asyncio.get_running_loop().call_soon(self._change, change)

    async def wait(self, waitable: Waitable[T], timeout_s: float | None) -> bool:
        """Wait until it is done or the time is over; returns whether it is done."""
        self._pump()
        if waitable.done:
            return True
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not ended.done():
                ended.set_result(None)

        waitable.add_waiter(wake)
        timer = None
        if timeout_s is not None:
            timer = self.engine.at(self.engine.now_s() + timeout_s, wake)
            self._arm()
        self._waiting.add(ended)
        try:
            await ended
        finally:
            self._waiting.discard(ended)
            waitable.drop_waiter(wake)
            if timer is not None:
                timer.cancel()
        return waitable.done

    def close(self) -> None:
        """Fail what waits, stop watching, close the channel."""
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.engine.close(Closed("this client is closed; make a new one"))
        for ended in self._waiting:
            if not ended.done():
                ended.set_result(None)
        self._run_deferred()

    # --- inside -------------------------------------------------------------------------------

    def _change(self, change: Callable[[], object]) -> None:
        if self.engine.closed is None:
            change()
            self._pump()

    def _schedule(self) -> None:
        """Pump once in this turn of the loop, however many changes there are."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        if self.engine.closed is not None:
            return
        before = self.engine.channel
        self.engine.pump()
        if self.engine.channel is not before or self._watched < 0:
            self._watch()
        self._arm()
        self._run_deferred()

    def _watch(self) -> None:
        self._unwatch()
        if self.engine.channel is not None:
            self._watched = self.engine.channel.fileno()
            asyncio.get_running_loop().add_reader(self._watched, self._pump)

    def _unwatch(self) -> None:
        if self._watched >= 0 and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._watched)
        self._watched = -1

    def _arm(self) -> None:
        """Have `_pump` called when the engine has something due."""
        next_s = self.engine.next_s()
        if self._timer is not None:
            if next_s == self._timer_at_s:
                return
            self._timer.cancel()
            self._timer = None
        self._timer_at_s = next_s
        if next_s < NEVER:
            self._timer = self.engine.clock.call_at(next_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self._pump()

    def _run_deferred(self) -> None:
        loop = asyncio.get_running_loop()
        while self.engine.deferred:
            loop.call_soon(self.engine.deferred.popleft())
