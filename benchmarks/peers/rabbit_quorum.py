"""RabbitMQ quorum queues through pika: persistent messages, publisher confirms."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from benchmarks.peers import rabbit
from benchmarks.peers.base import Acked, Client, Peer, Running, Take
from benchmarks.peers.looped import Looped, Taker, Window
from benchmarks.steps import Level

WINDOW = 2000
PREFETCH = 2000
ACK_EACH = 500


class RabbitQuorum(Peer):
    """A confirm follows the sync, always; there is no class memory."""

    name = "rabbit-quorum"
    modules = ("pika", "uvloop")
    levels = ("disk",)
    workloads = ("publish", "consume", "both", "one", "paced")
    publish_variants = ("confirms",)

    def missing(self) -> str:
        return super().missing() or rabbit.missing()

    def version(self) -> str:
        return f"{rabbit.version()} quorum queues, pika {package_version('pika')}"

    @contextlib.contextmanager
    def broker(self, folder: Path, level: Level) -> Iterator[Running]:
        with rabbit.broker(folder) as broker:
            yield broker

    def connect(self, address: str, step_role: str) -> Client:
        return QuorumClient(int(address.partition("/")[0]))


class QuorumClient(Looped):
    """See `Client`. A topic is one queue."""

    def __init__(self, port: int) -> None:
        import pika

        super().__init__()
        self._parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
        self._persistent = pika.BasicProperties(delivery_mode=2)
        self._window = Window()
        self._confirmed_below = 0
        self._confirmed_above: set[int] = set()
        self._channel: Any = self.run(self._open())

    async def _open(self) -> Any:
        """A channel that confirms, on a connection of its own."""
        from pika.adapters.asyncio_connection import AsyncioConnection

        opened: asyncio.Future[Any] = self.loop.create_future()
        confirming: asyncio.Future[Any] = self.loop.create_future()
        AsyncioConnection(
            self._parameters,
            on_open_callback=lambda connection: connection.channel(
                on_open_callback=opened.set_result
            ),
            on_open_error_callback=lambda _, error: opened.set_exception(error),
            custom_ioloop=self.loop,
        )
        channel = await opened
        channel.confirm_delivery(self._on_confirm, callback=confirming.set_result)
        await confirming
        return channel

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        if method.NAME != "Basic.Ack":
            self._window.fail(RuntimeError(f"not stored: {method}"))
            return
        above = self._confirmed_above
        if method.multiple:
            self._confirmed_below = max(self._confirmed_below, method.delivery_tag)
            above.difference_update([tag for tag in above if tag <= self._confirmed_below])
        else:
            above.add(method.delivery_tag)
        while self._confirmed_below + 1 in above:
            self._confirmed_below += 1
            above.remove(self._confirmed_below)
        self._window.acked_in_all(self._confirmed_below + len(above))

    def create_topics(self, names: Sequence[str]) -> None:
        async def create() -> None:
            for name in names:
                made: asyncio.Future[Any] = self.loop.create_future()
                arguments = {"x-queue-type": "quorum"}
                self._channel.queue_declare(
                    name, durable=True, arguments=arguments, callback=made.set_result
                )
                await made

        self.run(create())

    def publish(self, topics: Sequence[str], body: bytes, count: int, variant: str) -> Acked:
        return self.run(self._publish(topics[0], body, count))

    async def _publish(self, topic: str, body: bytes, count: int) -> Acked:
        window = self._window
        before = window.acked
        for _ in range(count):
            self._hand_over(topic, body)
            if window.sent - window.acked >= WINDOW:
                # Some at once, not one for one: each wait is a turn of the loop.
                await window.room(WINDOW * 9 // 10)
        await window.room(0)
        return lambda: window.acked - before

    def _hand_over(self, topic: str, body: bytes) -> None:
        self._channel.basic_publish("", topic, body, self._persistent)
        self._window.sent += 1

    def send_one(self, topic: str, body: bytes) -> None:
        self._hand_over(topic, body)
        self.run(self._window.room(0))

    def hand_over(self, topic: str, bodies: list[bytes]) -> None:
        for body in bodies:
            self._hand_over(topic, body)

    def drain(self) -> None:
        self.run(self._window.room(0))

    def read(self, topic: str, started: Callable[[], None], take: Take) -> None:
        self.run(self._read(topic, started, take))

    async def _read(self, topic: str, started: Callable[[], None], take: Take) -> None:
        taker = Taker(self.loop, take, ACK_EACH)

        def on_message(channel: Any, method: Any, _: object, body: bytes) -> None:
            if taker.takes(body):
                channel.basic_ack(method.delivery_tag, multiple=True)

        ready: asyncio.Future[Any] = self.loop.create_future()
        self._channel.basic_qos(prefetch_count=PREFETCH, callback=ready.set_result)
        await ready
        started()
        name = self._channel.basic_consume(topic, on_message)
        await taker.done
        ended: asyncio.Future[Any] = self.loop.create_future()
        self._channel.basic_cancel(name, callback=ended.set_result)
        await ended

    def close(self) -> None:
        self._channel.connection.close()
        self.pause(0.1)
