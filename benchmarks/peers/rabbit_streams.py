"""RabbitMQ streams through rstream: raw bodies, confirms counted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from benchmarks.peers import rabbit
from benchmarks.peers.base import BUFFER_BYTES, Acked, Client, Peer, Running, Take
from benchmarks.peers.looped import Looped, Taker, Window
from benchmarks.steps import Level

BATCH = 500
FRAME_BYTES = 1 << 19
"""A batch is one frame, and those end at 1 MiB."""
WINDOW = 10_000
CREDIT = 50
STORE_EACH = 1000


class RabbitStreams(Peer):
    """An ack follows the write to the page cache; there is no class disk."""

    name = "rabbit-streams"
    modules = ("rstream", "uvloop")
    levels = ("memory",)
    workloads = ("publish", "consume", "both", "one", "paced")
    publish_variants = ("raw",)

    def missing(self) -> str:
        return super().missing() or rabbit.missing()

    def version(self) -> str:
        return f"{rabbit.version()} streams, rstream {package_version('rstream')}"

    @contextlib.contextmanager
    def broker(self, folder: Path, level: Level) -> Iterator[Running]:
        with rabbit.broker(folder) as broker:
            yield broker

    def connect(self, address: str, step_role: str) -> Client:
        return StreamClient(int(address.partition("/")[2]))


class StreamClient(Looped):
    """See `Client`. A topic is one stream."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._at = {"host": "127.0.0.1", "port": port, "username": "guest", "password": "guest"}
        self._producer: Any = None
        self._window = Window()

    async def _connected(self) -> Any:
        if self._producer is None:
            from rstream import Producer

            self._producer = Producer(**self._at)
            await self._producer.start()
        return self._producer

    def create_topics(self, names: Sequence[str]) -> None:
        async def create() -> None:
            producer = await self._connected()
            for name in names:
                await producer.create_stream(name)

        self.run(create())

    def publish(self, topics: Sequence[str], body: bytes, count: int, variant: str) -> Acked:
        return self.run(self._publish(topics[0], body, count))

    async def _publish(self, topic: str, body: bytes, count: int) -> Acked:
        window = self._window
        before = window.acked
        size = max(1, min(BATCH, FRAME_BYTES // len(body)))
        bound = max(size, min(WINDOW, BUFFER_BYTES // len(body)))
        for first in range(0, count, size):
            await self._hand_over(topic, [body] * min(size, count - first))
            await window.room(bound)
        await window.room(0)
        return lambda: window.acked - before

    async def _hand_over(self, topic: str, bodies: list[bytes]) -> None:
        producer = await self._connected()
        self._window.sent += len(bodies)
        await producer.send_batch(topic, bodies, on_publish_confirm=self._on_confirm)

    def _on_confirm(self, status: Any) -> None:
        if status.is_confirmed:
            self._window.on_ack()
        else:
            self._window.fail(RuntimeError(f"not stored: {status}"))

    def send_one(self, topic: str, body: bytes) -> None:
        async def send() -> None:
            producer = await self._connected()
            await producer.send_wait(topic, body)

        self.run(send())

    def hand_over(self, topic: str, bodies: list[bytes]) -> None:
        self.run(self._hand_over(topic, bodies))

    def drain(self) -> None:
        self.run(self._window.room(0))

    def read(self, topic: str, started: Callable[[], None], take: Take) -> None:
        self.run(self._read(topic, started, take))

    async def _read(self, topic: str, started: Callable[[], None], take: Take) -> None:
        from rstream import Consumer, ConsumerOffsetSpecification, OffsetType

        consumer: Any = Consumer(**self._at)
        await consumer.start()
        taker = Taker(self.loop, take, STORE_EACH)

        async def on_message(message: bytes, context: Any) -> None:
            if taker.takes(message):
                await consumer.store_offset(topic, "bench", context.offset)

        started()
        await consumer.subscribe(
            topic,
            on_message,
            subscriber_name="bench",
            initial_credit=CREDIT,
            offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST),
        )
        await taker.done
        await consumer.close()

    def close(self) -> None:
        if self._producer is not None:
            self.run(self._producer.close())
