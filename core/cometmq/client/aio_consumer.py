"""The consumer of a group, awaitable face: handlers are tasks of the running loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from functools import partial
from typing import Any

from cometmq.client.aio_driver import AioDriver
from cometmq.client.arguments import check_timeout
from cometmq.client.assignment import TopicQueue
from cometmq.client.faces import AioFace, make_engine
from cometmq.client.fetcher import ExpiredPolicy
from cometmq.client.flows import Waitable
from cometmq.client.group_options import GroupOptions, Mode
from cometmq.client.grouping import Grouping
from cometmq.client.handout import HeldMessage
from cometmq.client.listeners import Handler, Listener
from cometmq.client.runs import Run
from cometmq.client.taking import UnreadablePolicy
from cometmq.environment import Environment
from cometmq.errors import Closed, CometError
from cometmq.interfaces import Connect


class Consumer(AioFace):
    """See `cometmq.Consumer`; handlers may be coroutine functions, and are when they wait for
    anything: `workers` of them run at a time."""

    def __init__(
        self,
        address: str | None = None,
        *,
        group: str,
        mode: Mode = "clustering",
        start: str | datetime = "earliest",
        session_timeout: float = 10.0,
        heartbeat: float = 3.0,
        max_poll: float = 300.0,
        commit_interval: float = 1.0,
        prefetch_messages: int = 10_000,
        prefetch_bytes: int = 8 << 20,
        fetch_bytes: int = 1 << 20,
        fetch_wait: float = 20.0,
        strategy: str = "",
        room: str = "",
        strict: bool = False,
        unreadable: UnreadablePolicy = "skip",
        on_expired: ExpiredPolicy = "earliest",
        on_error: Callable[[CometError], object] | None = None,
        timeout: float = 30.0,
        client_id: str | None = None,
        credentials: dict[str, str] | None = None,
        environment: Environment | None = None,
        connect: Connect | None = None,
    ) -> None:
        engine = make_engine(address, client_id, credentials, environment, connect)
        options = GroupOptions(
            group,
            mode,
            start,
            on_expired,
            session_timeout,
            heartbeat,
            max_poll,
            commit_interval,
            prefetch_messages,
            prefetch_bytes,
            fetch_bytes,
            fetch_wait,
            strategy,
            room,
            strict,
            timeout,
        )
        self._grouping = Grouping(
            engine, options, unreadable, on_error, self._acked, client_id is not None
        )
        self._driver = AioDriver(engine)
        self._news: dict[int, Waitable[None]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._grouping.on_signal = self._signal

    def subscribe(
        self,
        topic: str,
        tags: str = "*",
        handler: Handler | None = None,
        workers: int = 8,
        orderly: bool = False,
    ) -> None:
        """See `cometmq.Consumer.subscribe`."""
        self._driver.check()
        listener = self._grouping.subscribe(topic, tags, handler, workers, orderly)
        if self._grouping.started:
            self._driver.do(lambda: self._employ(listener))

    async def start(self) -> None:
        """See `cometmq.Consumer.start`."""
        if self._grouping.started:
            return
        self._driver.do(self._grouping.start)
        for listener in list(self._grouping.listeners):
            self._employ(listener)

    async def run(self) -> None:
        """See `cometmq.Consumer.run`."""
        await self.start()
        over = self._grouping.over
        await self._driver.wait(over, None)
        self._driver.check()
        over.result()

    def stop(self) -> None:
        """See `cometmq.Consumer.stop`; from the loop's own thread."""
        if self._grouping.engine.closed is None:
            self._driver.do(self._grouping.end)

    async def receive(self, timeout: float | None = None) -> HeldMessage | None:
        """See `cometmq.Consumer.receive`."""
        handout, over = self._grouping.handout, self._grouping.over
        if not over.done and (message := handout.next()) is not None:
            return message
        check_timeout(timeout)
        await self.start()
        engine = self._grouping.engine
        deadline_s = float("inf") if timeout is None else engine.now_s() + timeout
        while not over.done:
            news: Waitable[None] = Waitable()
            handout.news = news
            self._driver.do(handout.turn)
            if (message := handout.next()) is not None:
                return message
            left_s = deadline_s - engine.now_s()
            if left_s <= 0:
                return None
            await self._driver.wait(news, min(0.5, left_s))
            self._driver.check()
        over.result()
        return None

    async def __aiter__(self) -> AsyncIterator[HeldMessage]:
        """Messages of the subscriptions without a handler, until `stop`; `ack` each."""
        while (message := await self.receive()) is not None:
            yield message

    def pause(self, topic: str | None = None) -> None:
        """See `cometmq.Consumer.pause`."""
        self._driver.do(lambda: self._grouping.pause(topic, True))

    def resume(self, topic: str | None = None) -> None:
        """See `cometmq.Consumer.resume`."""
        self._driver.do(lambda: self._grouping.pause(topic, False))

    async def commit(self) -> None:
        """See `cometmq.Consumer.commit`."""
        await self._driver.run(self._grouping.commit())

    @property
    def queues(self) -> list[TopicQueue]:
        """See `cometmq.Consumer.queues`."""
        return self._grouping.queues()

    @property
    def member(self) -> str:
        """See `cometmq.Consumer.member`."""
        return self._grouping.engine.connection.client_id

    async def close(self, timeout: float = 30.0) -> None:
        """See `cometmq.Consumer.close`."""
        if self._grouping.engine.closed is not None:
            return
        try:
            await self._driver.run(self._grouping.finish(timeout))
        except Closed:
            pass  # by another task, which did the same
        self._driver.close()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    # --- inside -------------------------------------------------------------------------------

    def _acked(self, run: Run) -> None:
        self._driver.do(lambda: self._grouping.acked(run))

    def _signal(self, listener: Listener) -> None:
        news = self._news.get(id(listener))
        if news is not None:
            news.resolve(None)

    def _employ(self, listener: Listener) -> None:
        """Start the tasks of a listener."""
        if listener.handler is None:
            return
        self._news[id(listener)] = Waitable()
        for _ in range(listener.workers):
            self._workers.add(asyncio.get_running_loop().create_task(self._serve(listener)))

    async def _serve(self, listener: Listener) -> None:
        """A worker's life."""
        try:
            await self._work(listener)
        except Closed:
            pass  # while it worked
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._grouping.end(error)
            raise

    async def _work(self, listener: Listener) -> None:
        grouping, driver = self._grouping, self._driver
        run: Run | None = None
        failure: Exception | None = None
        while True:
            if run is None and self._news[id(listener)].done:
                self._news[id(listener)] = Waitable()
            news = self._news[id(listener)]
            run = driver.do(partial(grouping.next, listener, run, failure))
            if run is None:
                failure = None
                await driver.wait(news, 0.5)
                driver.check()
            else:
                failure = await _handle(run, grouping)


async def _handle(run: Run, grouping: Grouping) -> Exception | None:
    """As `grouping.handle`, for a handler that may be awaited."""
    handler: Any = run.listener.handler
    lane, lease, now_s = run.lane, grouping.lease, grouping.engine.now_s
    messages = run.messages
    try:
        for place in range(run.done, len(messages)):
            began_s = now_s()
            if began_s >= lease.until_s or lane.lost or lane.halted:
                break
            if (place and began_s >= run.until_s) or (lane.draining and lane.is_last(run)):
                break
            run.since_s = began_s
            result = handler(messages[place])
            if inspect.isawaitable(result):
                await result
            run.done = place + 1
    except Exception as error:
        return error
    return None
