"""Redis Streams with an append-only file, through redis-py with hiredis."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.peers.base import Acked, Client, Peer, Running, Take
from benchmarks.processes import free_port, running, wait_for_port
from benchmarks.steps import WORKLOADS, Level

PIPELINE = 500
READ = 500
BLOCK_MS = 1000


class Redis(Peer):
    """Class memory syncs each second (its default with an append-only file), disk always."""

    name = "redis"
    modules = ("redis", "hiredis")
    # A backlog of 10 GiB would have to fit into its memory.
    workloads = tuple(name for name in WORKLOADS if name != "backlog")
    publish_variants = ("pipeline",)

    def missing(self) -> str:
        return super().missing() or ("" if shutil.which("redis-server") else "no redis-server")

    def version(self) -> str:
        import subprocess

        import redis

        words = subprocess.run(["redis-server", "--version"], capture_output=True, text=True)
        broker = words.stdout.partition("v=")[2].split()[0]
        return f"Redis {broker}, redis-py {redis.__version__} with hiredis"

    @contextlib.contextmanager
    def broker(self, folder: Path, level: Level) -> Iterator[Running]:
        port, log = free_port(), folder / "broker.log"
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port)]
        command += ["--dir", str(folder), "--save", "", "--appendonly", "yes"]
        command += ["--appendfsync", "always" if level == "disk" else "everysec"]
        # A rewrite of the file would fall into some runs and not into others.
        command += ["--auto-aof-rewrite-percentage", "0", "--maxclients", "20000"]
        with running(command, log) as process:
            wait_for_port(port, process, log)
            yield Running(f"127.0.0.1:{port}", [process.pid])

    def connect(self, address: str, step_role: str) -> Client:
        return RedisClient(address)


class RedisClient:
    """See `Client` and `Idler`. A topic is one stream."""

    def __init__(self, address: str) -> None:
        import redis

        host, _, port = address.partition(":")
        # The older protocol parses faster here.
        self._redis = redis.Redis(host=host, port=int(port), protocol=2)

    def create_topics(self, names: Sequence[str]) -> None:
        """A stream is there once something is in it."""

    def publish(self, topics: Sequence[str], body: bytes, count: int, variant: str) -> Acked:
        names = itertools.islice(itertools.cycle(topics), count)
        acked = 0
        while some := list(itertools.islice(names, PIPELINE)):
            pipeline = self._redis.pipeline(transaction=False)
            for name in some:
                pipeline.xadd(name, {"b": body})
            acked += len(pipeline.execute())
        return lambda: acked

    def send_one(self, topic: str, body: bytes) -> None:
        self._redis.xadd(topic, {"b": body})

    def hand_over(self, topic: str, bodies: list[bytes]) -> None:
        if len(bodies) == 1:
            self._redis.xadd(topic, {"b": bodies[0]})
            return
        pipeline = self._redis.pipeline(transaction=False)
        for body in bodies:
            pipeline.xadd(topic, {"b": body})
        pipeline.execute()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def drain(self) -> None:
        """Nothing is on its way: each call has waited for its acks."""

    def read(self, topic: str, started: Callable[[], None], take: Take) -> None:
        self._redis.xgroup_create(topic, "bench", id="0", mkstream=True)
        started()
        ids: list[bytes] = []
        while True:
            # The acks of one batch ride with the request for the next.
            pipeline = self._redis.pipeline(transaction=False)
            if ids:
                pipeline.xack(topic, "bench", *ids)
            pipeline.xreadgroup("bench", "reader", {topic: ">"}, count=READ, block=BLOCK_MS)
            batch = [entry for _, entries in pipeline.execute()[-1] or () for entry in entries]
            ids = [name for name, _ in batch]
            if batch and take([fields[b"b"] for _, fields in batch]):
                break
        self._redis.xack(topic, "bench", *ids)

    def idle(
        self, topic: str, consumers: int, ready: Callable[[], None], end: Callable[[], bool]
    ) -> None:
        import redis

        where = self._redis.connection_pool.connection_kwargs
        connections = []
        for _ in range(consumers):
            connection = redis.Connection(host=where["host"], port=where["port"], protocol=2)
            connection.connect()
            # Waits longer than the step; ended by closing the connection.
            connection.send_command("XREAD", "BLOCK", "600000", "STREAMS", topic, "$")
            connections.append(connection)
        ready()
        while not end():
            time.sleep(0.2)
        for connection in connections:
            connection.disconnect()

    def close(self) -> None:
        self._redis.close()
