"""A whole broker inside a test: started in milliseconds, in memory, with a clock to move."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Self, TypeVar

from msgspec.structs import replace

from cometmq.broker import Broker
from cometmq.config import load_config
from cometmq.environment import Environment
from cometmq.errors import ConfigError
from cometmq.plugins import compose
from cometmq.real_environment import RealEnvironment
from cometmq.testing.movable_clock import MovableClock

T = TypeVar("T")
_numbers = itertools.count(1)

START_TIMEOUT_S = 30.0


class EmbeddedBroker:
    """A broker with its own thread and event loop; `address` is where clients connect.

    By default it keeps everything in memory and listens in process (`inproc://`). Give `data`
    to keep the log in a folder, `listen` for real sockets, `environment` to move its clock or
    break its disk, `plugins` as on the command line (`memory` is added when there is no `data`).
    Use it as a context manager, or through the pytest fixture `mq_broker`. One that nobody stops
    goes with its process, as a broker that is killed.
    """

    def __init__(
        self,
        *,
        data: str | os.PathLike[str] | None = None,
        listen: str | None = None,
        plugins: Sequence[str] = (),
        settings: Mapping[str, object] | None = None,
        environment: Environment | None = None,
        extra_plugins: Mapping[str, object] | None = None,
    ) -> None:
        """`settings` are dotted config keys (`{"log.segment_bytes": 1 << 20}`); `extra_plugins`
        are plugin objects by name, enabled without being installed."""
        if isinstance(plugins, str):
            raise ConfigError(
                f"plugins={plugins!r}: a sequence of names is wanted, as in plugins=[{plugins!r}]"
            )
        self._listen = listen or f"inproc://embedded-{next(_numbers)}"
        names = [*([] if data else ["memory"]), *plugins, *(extra_plugins or {})]
        overrides: dict[str, object] = {
            "broker.data": os.fspath(data) if data else "unused",
            "broker.listen": [self._listen],
            **(settings or {}),
        }
        if names:
            overrides["plugins"] = ",".join(names)
        self._config = load_config(None, {}, overrides, said_by="the arguments of EmbeddedBroker")
        self._extra = dict(extra_plugins or {})
        self.clock = MovableClock()
        """Moves the broker's time (without effect if an `environment` was given)."""
        self._environment = environment or RealEnvironment(clock=self.clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._broker: Broker | None = None
        self._ended_by: BaseException | None = None
        """What ended the loop though nobody stopped the broker."""

    @property
    def address(self) -> str:
        """Where clients connect, with the real port."""
        return self.broker.addresses[0]

    @property
    def broker(self) -> Broker:
        """The running broker; touch it only through `call`."""
        if self._broker is None:
            raise RuntimeError("the embedded broker is not running; call start() first")
        return self._broker

    def start(self) -> Self:
        """Start and wait until it serves. Raises what the start raised, and RuntimeError if it is
        running already."""
        if self._thread is not None:
            raise RuntimeError("the embedded broker is running already; stop() it first")
        ready: Future[None] = Future()
        self._ended_by = None
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="embedded-broker", daemon=True
        )
        self._thread.start()
        try:
            ready.result(START_TIMEOUT_S)
        except BaseException:
            self._thread.join()
            self._thread = None
            raise
        return self

    def stop(self) -> None:
        """A clean stop; no effect if it is not running. Raises RuntimeError if something had ended
        its loop."""
        if self._thread is None or self._loop is None or self._broker is None:
            return
        try:
            self.await_(self._broker.stop)
        finally:
            if self._ended_by is None:
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = self._broker = self._loop = None
            self._environment.threads.close()

    def restart(self) -> None:
        """Stop cleanly and start again on the same data (in memory: on nothing), at the same
        addresses, so that clients find it again; also where port 0 was asked for."""
        if self._broker is not None:
            listen = tuple(self._broker.addresses)
            self._config = replace(self._config, broker=replace(self._config.broker, listen=listen))
        self.stop()
        self.start()

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the broker's loop and return its result."""

        async def run() -> T:
            return function()

        return self.await_(run)

    def await_(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run an async function on the broker's loop and return its result."""
        if self._loop is None:
            raise RuntimeError("the embedded broker is not running; call start() first")
        error = self._ended_by
        if error is not None:
            raise RuntimeError(
                f"the loop of the embedded broker was ended by {type(error).__name__}: {error}; "
                "mend what raised it, stop() and start() again"
            ) from error

        async def run() -> T:
            return await function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(START_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _run(self, ready: Future[None]) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            try:
                runner.run(self._start())
            except BaseException as error:
                ready.set_exception(error)
                return
            ready.set_result(None)
            try:
                self._loop.run_forever()
            except BaseException as error:  # asyncio lets SystemExit and KeyboardInterrupt through
                self._ended_by = error
                assert self._broker is not None, "it has started"
                runner.run(self._broker.stop())

    async def _start(self) -> None:
        composition = compose(self._config, extra_plugins=self._extra)
        broker = Broker(self._config, self._environment, composition)
        await broker.start()
        self._broker = broker
