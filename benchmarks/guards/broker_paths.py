"""The broker's hot paths: a broker on virtual time, without sockets, called as a transport does."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.guards.counting import Counters, Measure
from cometmq import protocol
from cometmq.batch import parse
from cometmq.broker import Broker
from cometmq.config import load_config
from cometmq.environment import Buffer, Environment
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Level, Limits, Listener, Receiver, Transport
from cometmq.memory_files import Content, MemoryFile, MemoryFiles
from cometmq.plugins import compose
from cometmq.protocol import Fetch, FetchPart, FetchReply, Hello, Operation, Send, SendReply, Status
from cometmq.testing.clock import VirtualClock
from cometmq.testing.environment import InlineThreads, SeededRandom
from cometmq.testing.raw_client import batch_of

TOPIC = "orders"
WARM = 40
"""Requests before the one that is counted: caches are full, the head checkpoint has ended."""
TURNS = 50


class CountedFile(MemoryFile):
    """Counts what is asked of it."""

    _files: CountedFiles

    def write(self, at: int, buffers: Sequence[Buffer]) -> None:
        self._files.counters.outside += 1
        if self._files.keeps:
            super().write(at, buffers)

    def read(self, at: int, size: int) -> bytes:
        self._files.counters.outside += 1
        return bytes(memoryview(self._content.data)[at : at + size])

    def sync_blocking(self) -> float:
        self._files.counters.outside += 1
        return 0.0


class CountedFiles(MemoryFiles):
    """Files in memory. Without `keeps` what is written is forgotten, so that no copy of it counts
    as the broker's."""

    def __init__(self, counters: Counters) -> None:
        super().__init__()
        self.counters = counters
        self.keeps = True

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if create:
            self._create(path)
        return CountedFile(self, path, self._content(path), writable=True)

    def _new_content(self) -> Content:
        return Content()


@dataclass
class GuardEnvironment:
    """Nothing happens by itself."""

    files: CountedFiles
    clock: VirtualClock = field(default_factory=VirtualClock)
    random: SeededRandom = field(default_factory=SeededRandom)
    threads: InlineThreads = field(default_factory=InlineThreads)


class Customer:
    """A peer that keeps the last reply."""

    name = "customer"

    def __init__(self) -> None:
        self.reply: Sequence[Buffer] = ()

    def send(self, frames: Sequence[Buffer]) -> bool:
        self.reply = frames
        return True

    def close(self) -> None:
        raise AssertionError("the broker dropped the customer")

    def take(self, kind: type[Any]) -> tuple[Any, list[memoryview]]:
        """The last reply, decoded, which must be no failure."""
        assert self.reply, "there is no reply"
        _, status, header, body = protocol.unpack(self.reply)
        assert status == Status.OK, bytes(header)
        self.reply = ()
        return protocol.decode(kind, header), body


class Door:
    """The plugin that brings the transport: it hands over the broker's side, and no more."""

    name = "door"
    schemes: Sequence[str] = ("door",)
    address = "door://broker"

    def __init__(self) -> None:
        self.receiver: Receiver

    @hookimpl
    def transports(self) -> Sequence[Transport]:
        return [self]

    async def listen(
        self, address: str, receiver: Receiver, limits: Limits, environment: Environment
    ) -> Listener:
        self.receiver = receiver
        return self

    async def close(self) -> None:
        """Nothing is open."""


class Bench:
    """A running broker and one customer with a session."""

    def __init__(
        self, receiver: Receiver, files: CountedFiles, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.customer = Customer()
        self.files = files
        self._receiver = receiver
        self._loop = loop
        self._ids = itertools.count(1)

    def request(
        self, operation: int, header: Any, body: Sequence[Buffer] = ()
    ) -> tuple[Customer, list[Buffer]]:
        """One message of a drain."""
        return self.customer, protocol.pack(next(self._ids), operation, header, body)

    def drain(self, *messages: tuple[Customer, list[Buffer]], settle: bool = False) -> None:
        """What a transport does with what it found; with `settle` all that follows, too."""

        async def work() -> None:
            self._receiver.received(messages)
            for _ in range(TURNS if settle else 0):
                await asyncio.sleep(0)

        self._loop.run_until_complete(work())

    def publish(self, bodies: int, level: Level = "memory") -> tuple[Customer, list[Buffer]]:
        """A send of one batch with so many bodies of 1 KiB."""
        batch = batch_of(TOPIC, 0, *[bytes(1024)] * bodies)
        return self.request(Operation.SEND, Send([len(batch)], [0], level), [batch])

    def stored(self) -> int:
        """The base offset in the last reply to a send."""
        reply, _ = self.customer.take(SendReply)
        (part,) = reply.results
        assert part.status == Status.OK, part
        return int(part.base_offset)


Step = Callable[[Bench, Measure], None]


def on_a_broker(
    step: Step, counters: Counters, measure: Measure, plugins: Mapping[str, object] | None = None
) -> None:
    """Do a step on a broker that has been started and warmed."""
    door = Door()
    extra = {"door": door, **(plugins or {})}
    overrides = {
        "broker.listen": [door.address],
        "broker.data": "/data",
        "broker.malloc_tuning": False,
        "plugins": ",".join(["flush-async", *extra]),
    }
    config = load_config(None, {}, overrides)
    environment = GuardEnvironment(CountedFiles(counters))
    with asyncio.Runner() as runner:
        broker = Broker(config, environment, compose(config, extra_plugins=extra))
        runner.run(broker.start())
        try:
            bench = Bench(door.receiver, environment.files, runner.get_loop())
            lowest, highest = protocol.PROTOCOL_MIN, protocol.PROTOCOL_MAX
            bench.drain(bench.request(Operation.HELLO, Hello(lowest, highest, "guard")))
            for _ in range(WARM):
                bench.drain(bench.publish(1))
                bench.stored()
            step(bench, measure)
        finally:
            runner.run(broker.stop())


def publish(messages: int) -> Step:
    """A send of one batch, level memory, from frames to reply."""

    def step(bench: Bench, measure: Measure) -> None:
        # The first of its size fills the caches that are by size.
        bench.drain(bench.publish(messages))
        bench.stored()
        request = bench.publish(messages)
        bench.files.keeps = False
        measure(partial(bench.drain, request))
        assert bench.stored() == WARM + messages

    return step


def publish_synced(bench: Bench, measure: Measure) -> None:
    """A send of one message, level disk, from frames to reply: with its sync."""
    for turn in range(2):
        action = partial(bench.drain, bench.publish(1, "disk"), settle=True)
        if turn:
            bench.files.keeps = False
            measure(action)
        else:
            action()
        assert bench.stored() == WARM + turn


def many_sends(count: int) -> Step:
    """So many sends of one message in one drain."""

    def step(bench: Bench, measure: Measure) -> None:
        requests = [bench.publish(1) for _ in range(count)]
        bench.files.keeps = False
        measure(partial(bench.drain, *requests))
        assert bench.stored() == WARM + count - 1

    return step


def fetch(batches: int, messages: int) -> Step:
    """A fetch of so many batches, by a consumer that read up to there."""

    def step(bench: Bench, measure: Measure) -> None:
        for _ in range(2 * batches):
            bench.drain(bench.publish(messages))
            bench.stored()
        epoch = 1
        for turn in range(2):
            part = FetchPart(TOPIC, 0, WARM + turn * batches * messages, epoch)
            size = batches * len(batch_of(TOPIC, 0, *[bytes(1024)] * messages))
            request = bench.request(Operation.FETCH, Fetch([part], size))
            action = partial(bench.drain, request)
            if turn:
                measure(action)
            else:
                action()
            reply, body = bench.customer.take(FetchReply)
            assert len(reply.sizes) == batches, reply
            first = parse(protocol.split(body, reply.sizes)[0])
            assert first.base_offset == part.offset
            epoch = first.epoch

    return step


def wake(bench: Bench, measure: Measure) -> None:
    """A fetch is parked, and a publish wakes it: both from frames to replies."""
    for turn in range(2):
        part = FetchPart(TOPIC, 0, WARM + turn)
        parked = bench.request(Operation.FETCH, Fetch([part], wait_ms=15_000))
        sent = bench.publish(1)

        def both(parked: Any = parked, sent: Any = sent) -> None:
            bench.customer.reply = ()
            bench.drain(parked)
            assert not bench.customer.reply
            bench.drain(sent)

        if turn:
            measure(both)
        else:
            both()
