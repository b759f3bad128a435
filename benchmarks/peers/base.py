"""What a peer is: a broker that can be started on an empty folder, and a client to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import msgspec

from benchmarks.steps import WORKLOADS, Level, Step

QUEUES = 4
"""Queues (partitions) of every topic, where a peer has them."""
BUFFER_BYTES = 32 << 20
"""What a producer may buffer; bounds how far many topics can be batched."""

Take = Callable[[list[bytes]], bool]
"""Is given bodies as they arrive; True means that the reader may stop."""
Acked = Callable[[], int]
"""Counts, after the clock has stopped, the messages that were acked; raises if one failed."""


def home() -> Path:
    """Where setup.sh has put what is neither a Debian package nor a Python one."""
    return Path(os.environ.get("COMETMQ_BENCH_HOME", "~/.cache/cometmq-bench")).expanduser()


class Running(msgspec.Struct):
    """A started broker: where clients connect, and the processes that are charged to it."""

    address: str
    pids: list[int]


class Job(msgspec.Struct):
    """What one client process does in a step; see worker.py for the roles."""

    role: str
    peer: str
    variant: str
    address: str
    topic: str
    warm_up_topic: str
    size_bytes: int
    count: int
    warm_up: int
    topics: int = 1
    rate: int = 0
    create: bool = True
    marker: bool = False
    until_stopped: bool = False

    def topic_names(self) -> list[str]:
        """The measured topics, in the order in which messages go round."""
        if self.topics == 1:
            return [self.topic]
        return [f"{self.topic}-{number}" for number in range(self.topics)]


class Client(Protocol):
    """A peer's client as the worker uses it, in one thread. Errors of the peer are let through."""

    def create_topics(self, names: Sequence[str]) -> None:
        """Make topics of `QUEUES` queues; returns when all can be sent to."""

    def publish(self, topics: Sequence[str], body: bytes, count: int, variant: str) -> Acked:
        """Send `count` messages round robin, as fast as it goes; returns at the last ack."""

    def send_one(self, topic: str, body: bytes) -> None:
        """Send one message; returns at its ack."""

    def hand_over(self, topic: str, bodies: list[bytes]) -> None:
        """Send messages now, without waiting for acks."""

    def pause(self, seconds: float) -> None:
        """Wait, and let the client do its work meanwhile."""

    def drain(self) -> None:
        """Wait until all that was handed over is acked; raises if something was not."""

    def read(self, topic: str, started: Callable[[], None], take: Take) -> None:
        """Read a topic from its start, keeping the progress of a group at the broker, until
        `take` says stop. `started` is called when the first fetch is sent."""

    def close(self) -> None:
        """End the connections."""


class Idler(Protocol):
    """A client that can also hold many consumers waiting on one topic where nothing comes."""

    def idle(
        self, topic: str, consumers: int, ready: Callable[[], None], end: Callable[[], bool]
    ) -> None:
        """Connect so many consumers, call `ready`, and keep them waiting until `end()`."""


class Peer:
    """Base of the peers: what is the same for all unless one says otherwise."""

    name = ""
    modules: Sequence[str] = ()
    """Python modules that its client needs."""
    levels: Sequence[Level] = ("memory", "disk")
    workloads: Sequence[str] = tuple(name for name in WORKLOADS if name not in ("idle", "backlog"))
    publish_variants: Sequence[str] = ("",)
    """Ways to publish that are measured apart, when the client has several."""
    native_client = False
    """True for a client in another language: it stands beside, no ratio is reckoned by it."""

    def missing(self) -> str:
        """What is not installed, or "" when all is there."""
        absent = [name for name in self.modules if find_spec(name) is None]
        return f"no Python package for {', '.join(absent)}" if absent else ""

    def version(self) -> str:
        """Versions of broker and client, for the report."""
        raise NotImplementedError

    def variants(self, step: Step) -> Sequence[str]:
        """The variants to measure for a step; none if the peer doesn't do it."""
        if step.level not in self.levels or step.workload not in self.workloads:
            return ()
        return self.publish_variants if step.workload in ("publish", "topics") else ("",)

    def broker(self, folder: Path, level: Level) -> AbstractContextManager[Running]:
        """Start the broker on an empty folder, on loopback; it is stopped at the end.

        Raises RuntimeError, with the end of the broker's log, when it does not start.
        """
        raise NotImplementedError

    def connect(self, address: str, step_role: str) -> Client:
        """A client in this process. `step_role` is the job's role, for settings by purpose."""
        raise NotImplementedError

    def worker(self, job: Job) -> list[str]:
        """The command that does `job`; speaks as worker.py does."""
        return [sys.executable, "-m", "benchmarks.worker", msgspec.json.encode(job).decode()]
