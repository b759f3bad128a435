"""CometMQ: `mq run` in a process of its own, and its sync client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

import cometmq.aio
from benchmarks.peers.base import BUFFER_BYTES, QUEUES, Acked, Client, Peer, Running, Take
from benchmarks.processes import log_end
from benchmarks.steps import WORKLOADS, Level
from cometmq import Admin, Message, Producer, PullConsumer, Receipt
from cometmq.cli.fresh_broker import fresh_broker
from cometmq.version import __version__

SEND_MANY = 5000
POLL = 2000


class CometMQ(Peer):
    """Class memory runs with `flush-async`, class disk as it is by default."""

    name = "cometmq"
    workloads = WORKLOADS
    publish_variants = ("send_soon", "send_many")

    def version(self) -> str:
        return f"CometMQ {__version__}"

    @contextlib.contextmanager
    def broker(self, folder: Path, level: Level) -> Iterator[Running]:
        plugins = "flush-async" if level == "memory" else ""
        log = folder / "broker.log"
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context(log.open("wb"))
            try:
                target = stack.enter_context(fresh_broker(plugins, str(folder), errors))
            except click.ClickException:
                raise RuntimeError(f"mq run did not start: {log_end(log)}") from None
            yield Running(target.address, [target.pid])

    def connect(self, address: str, step_role: str) -> Client:
        return CometClient(address)


class CometClient:
    """See `Client` and `Idler`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._producer = Producer(address, buffer_bytes=BUFFER_BYTES)
        self._handed_over: list[Receipt] = []

    def create_topics(self, names: Sequence[str]) -> None:
        with contextlib.closing(Admin(self._address)) as admin:
            for name in names:
                admin.create_topic(name, QUEUES)

    def publish(self, topics: Sequence[str], body: bytes, count: int, variant: str) -> Acked:
        names = itertools.islice(itertools.cycle(topics), count)
        return (
            self._publish_many(names, body)
            if variant == "send_many"
            else self._publish_soon(names, body)
        )

    def _publish_soon(self, names: Iterator[str], body: bytes) -> Acked:
        send_soon = self._producer.send_soon
        receipts = [send_soon(Message(name, body)) for name in names]
        self._producer.flush()
        # Whether each was acked is looked up when the clock has stopped; the flush waited for it.
        return lambda: sum(receipt.result(timeout=0).offset >= 0 for receipt in receipts)

    def _publish_many(self, names: Iterator[str], body: bytes) -> Acked:
        outcomes: list[object] = []
        while messages := [Message(name, body) for name in itertools.islice(names, SEND_MANY)]:
            outcomes += self._producer.send_many(messages)

        def acked() -> int:
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
            return len(outcomes)

        return acked

    def send_one(self, topic: str, body: bytes) -> None:
        self._producer.send(Message(topic, body))

    def hand_over(self, topic: str, bodies: list[bytes]) -> None:
        send_soon = self._producer.send_soon
        self._handed_over += [send_soon(Message(topic, body)) for body in bodies]

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def drain(self) -> None:
        self._producer.flush()
        for receipt in self._handed_over:
            receipt.result(timeout=0)

    def read(self, topic: str, started: Callable[[], None], take: Take) -> None:
        with PullConsumer(self._address, group="bench", topic=topic) as consumer:
            started()
            while not take([message.body for message in consumer.poll(POLL, 1.0)]):
                consumer.commit(wait=False)

    def idle(
        self, topic: str, consumers: int, ready: Callable[[], None], end: Callable[[], bool]
    ) -> None:
        asyncio.run(_idle(self._address, topic, consumers, ready, end))

    def close(self) -> None:
        self._producer.close()


async def _idle(
    address: str,
    topic: str,
    consumers: int,
    ready: Callable[[], None],
    end: Callable[[], bool],
) -> None:
    """Each with a connection of its own, waiting in long polls one after the other."""

    async def wait(consumer: cometmq.aio.PullConsumer) -> None:
        while True:
            await consumer.poll(timeout=15.0)

    async with contextlib.AsyncExitStack() as stack:
        waiting = []
        for _ in range(consumers):
            consumer = cometmq.aio.PullConsumer(address, topic=topic, start="latest")
            await stack.enter_async_context(consumer)
            await consumer.poll(timeout=0.0)
            waiting.append(asyncio.create_task(wait(consumer)))
        await asyncio.sleep(1.0)
        ready()
        while not end():
            await asyncio.sleep(0.2)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
