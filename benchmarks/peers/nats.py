"""NATS JetStream on files, one replica, through nats-py."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from benchmarks.peers.base import Acked, Client, Peer, Running, Take
from benchmarks.peers.looped import Looped, Taker, Window
from benchmarks.processes import free_port, running, wait_for_port
from benchmarks.steps import Level, Step

WINDOW = 4000
ACK_EACH = 500
PENDING_BYTES = 64 << 20


class Nats(Peer):
    """Class memory syncs every two minutes (as shipped), class disk before each ack."""

    name = "nats"
    modules = ("nats", "uvloop")
    workloads = ("publish", "consume", "both", "one", "paced", "topics")
    publish_variants = ("counted", "publish_async")

    def missing(self) -> str:
        return super().missing() or ("" if _server() else "no nats-server")

    def version(self) -> str:
        told = subprocess.run([_server(), "--version"], capture_output=True, text=True)
        return f"NATS {told.stdout.strip().split()[-1]}, nats-py {package_version('nats-py')}"

    def variants(self, step: Step) -> Sequence[str]:
        found = super().variants(step)
        # A stream for each of 10,000 topics is not what it is made for; and where each message
        # waits for a sync of its own, it does not matter how acks are counted.
        return () if step.topics > 1000 else found[:1] if step.level == "disk" else found

    @contextlib.contextmanager
    def broker(self, folder: Path, level: Level) -> Iterator[Running]:
        port, log, config = free_port(), folder / "broker.log", folder / "nats.conf"
        sync = "sync_interval: always" if level == "disk" else ""
        config.write_text(
            f'listen: "127.0.0.1:{port}"\n'
            f"jetstream {{ store_dir: {str(folder / 'store')!r}\n max_file_store: 40G\n {sync} }}\n"
        )
        with running([_server(), "-c", str(config)], log) as process:
            wait_for_port(port, process, log)
            yield Running(f"nats://127.0.0.1:{port}", [process.pid])

    def connect(self, address: str, step_role: str) -> Client:
        return NatsClient(address)


def _server() -> str:
    """The server's program: beside this interpreter (its package puts it there), or on the path."""
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server") or ""


class NatsClient(Looped):
    """See `Client`. A topic is a stream with one subject."""

    def __init__(self, address: str) -> None:
        import nats

        super().__init__()
        self._nats: Any = self.run(nats.connect(address, pending_size=PENDING_BYTES))
        self._jetstream: Any = self._nats.jetstream(publish_async_max_pending=WINDOW)
        self._inbox = ""
        self._window = Window()

    def create_topics(self, names: Sequence[str]) -> None:
        from nats.js.api import StorageType, StreamConfig

        async def create() -> None:
            for name in names:
                config = StreamConfig(name=name, subjects=[name], storage=StorageType.FILE)
                await self._jetstream.add_stream(config)

        self.run(create())

    def publish(self, topics: Sequence[str], body: bytes, count: int, variant: str) -> Acked:
        names = itertools.islice(itertools.cycle(topics), count)
        if variant == "publish_async":
            return self.run(self._publish_async(names, body))
        return self.run(self._publish_counted(names, body))

    async def _publish_async(self, names: Iterator[str], body: bytes) -> Acked:
        """As documented: a future for each message."""
        futures = [await self._jetstream.publish_async(name, body) for name in names]
        await self._jetstream.publish_async_completed()
        return lambda: sum(future.result().seq > 0 for future in futures)

    async def _publish_counted(self, names: Iterator[str], body: bytes) -> Acked:
        """With one reply inbox for all and a counter: twice as fast."""
        window = self._window
        before = window.acked
        for name in names:
            await self._hand_over(name, body)
            if window.sent - window.acked >= WINDOW:
                await window.room(WINDOW - 1)
        await window.room(0)
        return lambda: window.acked - before

    async def _hand_over(self, name: str, body: bytes) -> None:
        if not self._inbox:
            self._inbox = self._nats.new_inbox()
            await self._nats.subscribe(self._inbox, cb=self._on_ack)
        await self._nats.publish(name, body, reply=self._inbox)
        self._window.sent += 1

    async def _on_ack(self, message: Any) -> None:
        if b'"error"' in message.data:
            self._window.fail(RuntimeError(f"not stored: {message.data!r}"))
        else:
            self._window.on_ack()

    def send_one(self, topic: str, body: bytes) -> None:
        self.run(self._jetstream.publish(topic, body))

    def hand_over(self, topic: str, bodies: list[bytes]) -> None:
        async def send() -> None:
            for body in bodies:
                await self._hand_over(topic, body)

        self.run(send())

    def drain(self) -> None:
        self.run(self._window.room(0))

    def read(self, topic: str, started: Callable[[], None], take: Take) -> None:
        self.run(self._read(topic, started, take))

    async def _read(self, topic: str, started: Callable[[], None], take: Take) -> None:
        """A push consumer that acks all up to every 500th message."""
        from nats.js.api import AckPolicy, ConsumerConfig

        taker = Taker(self.loop, take, ACK_EACH)

        async def on_message(message: Any) -> None:
            if taker.takes(message.data):
                await message.ack()

        started()
        subscription = await self._jetstream.subscribe(
            topic,
            durable="bench",
            cb=on_message,
            manual_ack=True,
            pending_msgs_limit=1 << 20,
            pending_bytes_limit=2 << 30,
            config=ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=10_000),
        )
        await taker.done
        await subscription.unsubscribe()

    def close(self) -> None:
        self.run(self._nats.close())
