"""Producers and consumers that write down what they did and saw, for `history.check_history`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Self

from cometmq import Admin, Message, Producer, PullConsumer, SendResult
from cometmq.client.batching import Receipt
from cometmq.errors import Closed, CometError, OutcomeUnknown, PositionError, Refused, Retryable
from cometmq.interfaces import Level
from cometmq.message import ReceivedMessage
from cometmq.testing.history import History, Jump, Outcome, Seen, Send

UNKNOWN_AFTER_S = 60.0
"""How long an outcome is waited for."""
_WINDOW = 200
"""Messages on their way at most, of one load thread."""


class RecordingProducer:
    """Sends unique values and remembers each with its outcome."""

    def __init__(self, producer: Producer, topic: str, name: str) -> None:
        """`name` is unique in the history."""
        self.sends: list[Send] = []
        self._producer = producer
        self._topic = topic
        self._name = name
        self._count = 0
        self._waiting: list[tuple[int, bytes, Receipt]] = []

    @property
    def waiting(self) -> int:
        """Messages whose outcome was not asked for yet."""
        return len(self._waiting)

    def send(self, *, level: Level | None = None, size_bytes: int = 0) -> None:
        """Send the next value, padded to `size_bytes`, without waiting for its outcome."""
        number, value, message = self._next(size_bytes)
        try:
            receipt = self._producer.send_soon(message, level)
        except (Refused, Retryable, Closed):
            self._note(number, value, "failed")
        except OutcomeUnknown:
            self._note(number, value, "unknown")
        else:
            self._waiting.append((number, value, receipt))

    def send_alone(self, *, level: Level | None = None, size_bytes: int = 0) -> None:
        """Send the next value and wait for its outcome, by the client's short path once nothing
        else of this producer is on its way."""
        number, value, message = self._next(size_bytes)
        self._settle(number, value, lambda: self._producer.send(message, level))

    def collect(self) -> None:
        """Wait for the outcomes of all that is on its way."""
        waiting, self._waiting = self._waiting, []
        for number, value, receipt in waiting:
            self._settle(number, value, partial(receipt.result, UNKNOWN_AFTER_S))

    def _next(self, size_bytes: int) -> tuple[int, bytes, Message]:
        number, self._count = self._count, self._count + 1
        value = b"%s-%d" % (self._name.encode(), number)
        return number, value, Message(self._topic, value.ljust(size_bytes, b"."))

    def _settle(self, number: int, value: bytes, outcome: Callable[[], SendResult]) -> None:
        try:
            result = outcome()
        except (Refused, Retryable):
            self._note(number, value, "failed")
        except CometError:
            self._note(number, value, "unknown")
        else:
            stored = result.stored
            self.sends.append(
                Send(
                    self._name,
                    number,
                    value,
                    "ok",
                    result.queue,
                    result.offset,
                    result.level,
                    stored.epoch,
                    stored.store_time,
                )
            )

    def _note(self, number: int, value: bytes, outcome: Outcome) -> None:
        self.sends.append(Send(self._name, number, value, outcome))


class RecordingConsumer:
    """Polls and remembers what it was given, and where it was told to go on."""

    def __init__(self, consumer: PullConsumer) -> None:
        self.seen: list[Seen | Jump] = []
        self._consumer = consumer

    def poll(self, timeout: float = 0.2) -> int:
        """Returns how many messages came. A broker that is away is no event."""
        try:
            messages = self._consumer.poll(timeout=timeout)
        except PositionError as error:
            self.seen.append(Jump(error.queue, error.next_offset))
            self._consumer.seek(error.next_offset, error.queue)
            return 0
        except (Retryable, Refused):
            return 0
        self.seen.extend(_seen(messages))
        return len(messages)


def _seen(messages: Sequence[ReceivedMessage]) -> list[Seen]:
    return [Seen(one.queue, one.offset, bytes(one.body).rstrip(b".")) for one in messages]


def read_all(address: str, topic: str, ends: dict[int, int]) -> list[Seen]:
    """Everything that a topic holds, by one reader from the earliest message on.

    `ends`: the queues' next offsets, to know when it is done. Raises what a poll raises, and
    TimeoutError when messages below an end don't come."""
    found: list[Seen] = []
    places: dict[int, int] = {}
    wanted = {queue for queue, end in ends.items() if end > 0}
    with PullConsumer(address, topic=topic, fetch_wait=0.5) as consumer:
        idle = 0
        while any(places.get(queue, 0) < ends[queue] for queue in wanted):
            batch = _seen(consumer.poll(max_messages=100_000, timeout=1.0))
            idle = 0 if batch else idle + 1
            if idle > 20:
                raise TimeoutError(f"read up to {places} of {topic}, but its queues end at {ends}")
            found.extend(batch)
            places.update((seen.queue, seen.offset + 1) for seen in batch)
    return found


def read_settled(address: str, topic: str) -> list[Seen]:
    """`read_all`, once all that the broker took is readable: what was acknowledged from memory is
    by the next sync."""
    with Admin(address) as admin:
        while (places := admin.broker_info().positions)["readable"] < places["appended"]:
            time.sleep(0.05)
        ends = {queue: part.max_offset for queue, part in admin.offsets(topic).items()}
    return read_all(address, topic, ends)


class Load:
    """Producers and a consumer in threads of their own, at work until they are stopped.

    A context manager; at its end `history` has all but `final`. The broker may die and come back
    meanwhile: producers try again, and what they can't know they call unknown.
    """

    def __init__(
        self,
        address: str,
        topic: str,
        seed: int,
        *,
        name: str = "",
        producers: int = 2,
        levels: Sequence[Level | None] = (None,),
        size_bytes_max: int = 400,
        send_timeout_s: float = 30.0,
    ) -> None:
        """`levels`: one of them is chosen for each send; `name` tells this load's producers from
        those of others in the same history."""
        self.history = History()
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._address = address
        self._topic = topic
        self._levels = levels
        self._size_bytes_max = size_bytes_max
        self._send_timeout_s = send_timeout_s
        self._producers: list[RecordingProducer] = []
        self._threads = [
            threading.Thread(target=self._guard, args=(self._produce, f"{name}{n}", seed + n))
            for n in range(producers)
        ]
        self._threads.append(threading.Thread(target=self._guard, args=(self._consume, name, seed)))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> History:
        """End the threads. Raises what one of them could not handle."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.error is not None:
            raise self.error
        return self.history

    def _guard(self, work: Callable[[str, Random], None], name: str, seed: int) -> None:
        try:
            work(name, Random(seed))
        except BaseException as error:  # told by stop(), in the test's thread
            self.error = error

    def _produce(self, name: str, dice: Random) -> None:
        producer = Producer(self._address, send_timeout=self._send_timeout_s)
        recording = RecordingProducer(producer, self._topic, f"p{name}")
        try:
            while not self._stop.is_set():
                alone = dice.random() < 0.3
                send = recording.send_alone if alone else recording.send
                for _ in range(dice.randint(1, 5 if alone else 40)):
                    size_bytes = dice.randint(0, self._size_bytes_max)
                    send(level=dice.choice(self._levels), size_bytes=size_bytes)
                if recording.waiting > _WINDOW or dice.random() < 0.3:
                    recording.collect()
        finally:
            recording.collect()
            producer.close()
            self.history.sends.extend(recording.sends)

    def _consume(self, name: str, dice: Random) -> None:
        consumer = PullConsumer(self._address, topic=self._topic, fetch_wait=dice.choice((0, 0.5)))
        recording = RecordingConsumer(consumer)
        try:
            while not self._stop.is_set():
                recording.poll()
        finally:
            consumer.close()
            self.history.polls[f"c{name}"] = recording.seen
