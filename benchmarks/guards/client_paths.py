"""The client's hot paths, through the public faces, before a broker that answers by a script.

The loop's thread is never begun: all that a face does it does in the caller's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from benchmarks.guards.counting import Counters, Measure
from cometmq import protocol
from cometmq.client.batching import Receipt
from cometmq.client.consumer import PullConsumer
from cometmq.client.producer import Producer
from cometmq.environment import Buffer
from cometmq.errors import CometError, OutcomeUnknown
from cometmq.message import Message
from cometmq.protocol import Operation, Send, SendReply, SendResultPart, Status
from cometmq.testing.environment import InlineThreads, VirtualEnvironment
from cometmq.testing.raw_client import batch_of
from cometmq.testing.scripted_broker import EPOCH, ScriptedBroker, ScriptedChannel

TOPIC = "orders"
ADDRESS = "scripted://broker"


class NoThreads(InlineThreads):
    """Keeps what should run, so that it can tidy up at the end."""

    def __init__(self) -> None:
        self._kept: list[Callable[[], None]] = []

    def start(self, name: str, function: Callable[[], None]) -> threading.Thread:
        self._kept.append(function)
        return threading.Thread(target=function, name=name)

    def close(self) -> None:
        for function in self._kept:
            function()


class CountedBroker(ScriptedBroker):
    """Counts what it gets. It looks at no batch that is sent, so that nothing but the client's
    own copies count."""

    def __init__(self, counters: Counters) -> None:
        super().__init__(queues=1)
        self.sends: list[int] = []
        """How many batches each send had."""
        self.holding = False
        self._counters = counters
        self._held: list[Callable[[], None]] = []

    def receive(self, channel: ScriptedChannel, frames: Sequence[Buffer]) -> bool:
        self._counters.outside += 1
        request_id, operation, raw, _ = protocol.unpack(frames)
        if operation != Operation.SEND:
            return super().receive(channel, frames)
        count = len(protocol.decode(Send, raw).sizes)
        self.sends.append(count)
        reply = SendReply([SendResultPart(Status.OK, 0, 0, 1, EPOCH, 1000)] * count, "disk")
        answer = protocol.pack(request_id, Status.OK, reply)
        if self.holding:
            self._held.append(lambda: channel.deliver(answer))
        else:
            channel.deliver(answer)
        return True

    def release(self) -> None:
        """Answer what was held, and hold no more."""
        self.holding = False
        while self._held:
            self._held.pop(0)()


@contextmanager
def _producer(counters: Counters) -> Iterator[tuple[Producer, CountedBroker]]:
    """One that has sent a message already."""
    broker = CountedBroker(counters)
    environment = VirtualEnvironment(threads=NoThreads())
    producer = Producer(ADDRESS, environment=environment, connect=broker.connect)
    try:
        producer.send(Message(TOPIC, b"first"))
        yield producer, broker
    finally:
        producer.close()
        environment.threads.close()


def _messages(count: int) -> list[Message]:
    return [Message(TOPIC, bytes(1024)) for _ in range(count)]


def send_soon(count: int) -> Callable[[Counters, Measure], None]:
    """So many messages in one go, behind one that opened their batch."""

    def path(counters: Counters, measure: Measure) -> None:
        with _producer(counters) as (producer, broker):
            broker.holding = True
            producer.send_soon(Message(TOPIC, bytes(1024)))
            messages = _messages(count)

            def action() -> None:
                send = producer.send_soon
                for message in messages:
                    send(message)

            measure(action)
            broker.release()
            producer.flush()
            assert broker.sends == [1, 1], "it is about one batch"

    return path


def open_batches(count: int) -> Callable[[Counters, Measure], None]:
    """A message each for so many topics, while a request is on its way."""

    def path(counters: Counters, measure: Measure) -> None:
        with _producer(counters) as (producer, broker):
            messages = [Message(f"{TOPIC}-{number}", bytes(1024)) for number in range(count)]
            for message in messages:
                producer.send(message)
            broker.holding = True
            with suppress(OutcomeUnknown):
                producer.send_soon(Message(TOPIC, bytes(1024))).result(0)
            sent = len(broker.sends)

            def action() -> None:
                for message in messages:
                    producer.send_soon(message)

            measure(action)
            assert len(broker.sends) == sent, "it is about what is begun"
            broker.release()
            producer.flush()
            assert sum(broker.sends[sent:]) == count

    return path


def flush(count: int) -> Callable[[Counters, Measure], None]:
    """The batch of so many messages is closed, encoded, sent and answered, and each receipt is
    asked."""

    def path(counters: Counters, measure: Measure) -> None:
        with _producer(counters) as (producer, broker):
            for turn in range(2):
                broker.holding = True
                # The first goes at once and alone, the others wait for it.
                receipts = [producer.send_soon(message) for message in _messages(count + 1)]
                broker.release()

                def action(receipts: list[Receipt] = receipts) -> None:
                    producer.flush()
                    for receipt in receipts:
                        receipt.result(0)

                if turn:
                    measure(action)
                else:
                    action()

    return path


def send_many(count: int) -> Callable[[Counters, Measure], None]:
    """So many messages in one call."""

    def path(counters: Counters, measure: Measure) -> None:
        with _producer(counters) as (producer, _):
            producer.send_many(_messages(count))
            messages = _messages(count)
            outcomes: list[object] = []
            measure(lambda: outcomes.extend(producer.send_many(messages)))
            assert len(outcomes) == count
            assert not any(isinstance(outcome, CometError) for outcome in outcomes)

    return path


def send_one(counters: Counters, measure: Measure) -> None:
    """One message and its answer."""
    with _producer(counters) as (producer, _):
        message = Message(TOPIC, bytes(1024))
        producer.send(message)  # the first in a row looks after other things too
        measure(lambda: producer.send(message))


def poll(count: int) -> Callable[[Counters, Measure], None]:
    """A poll that returns a batch of so many messages, which were fetched before."""

    def path(counters: Counters, measure: Measure) -> None:
        broker = CountedBroker(counters)
        for _ in range(3):
            broker.put(TOPIC, 0, batch_of(TOPIC, 0, *[bytes(1024)] * count))
        environment = VirtualEnvironment(threads=NoThreads())
        consumer = PullConsumer(
            ADDRESS, topic=TOPIC, environment=environment, connect=broker.connect
        )
        try:
            assert len(consumer.poll(count)) == count
            found: list[object] = []
            measure(lambda: found.extend(consumer.poll(count)))
            assert len(found) == count
        finally:
            consumer.close()
            environment.threads.close()

    return path
