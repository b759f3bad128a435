"""A real broker, killed again and again under a producer: each message is stored once, in order."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from cometmq import Message, Producer, PullConsumer
from cometmq.client.batching import Receipt
from cometmq.testing.process import BrokerProcess

TOPIC = "orders"
KILLS = 5
BODY = bytes(2_000)
PATIENCE_S = 60


class Load:
    """One producer that sends numbers to one queue as fast as it may, in a thread of its own."""

    def __init__(self, address: str) -> None:
        self.receipts: list[Receipt] = []
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def more(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        at, deadline_s = len(self.receipts) + count, time.monotonic() + PATIENCE_S
        while len(self.receipts) <= at or not self.receipts[at].done():
            assert time.monotonic() < deadline_s, "nothing moves any more"
            assert self._thread.is_alive()
            time.sleep(0.002)

    def end(self) -> None:
        """Send nothing new, and wait for what is on its way."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with Producer(self._address, batch_bytes=16_384, buffer_bytes=1 << 20) as producer:
            while not self._stop.is_set():
                body = b"%d " % len(self.receipts) + BODY
                self.receipts.append(producer.send_soon(Message(TOPIC, body, sharding_key="key")))


def stored(address: str, count: int) -> list[int]:
    """The numbers that the topic holds, in their order; one more than `count` at the most."""
    found: list[int] = []
    with PullConsumer(address, topic=TOPIC) as consumer:
        while len(found) <= count:
            messages = consumer.poll(timeout=10 if len(found) < count else 0.5)
            if not messages:
                break
            found += [int(message.body.split()[0]) for message in messages]
    return found


@pytest.mark.parametrize("options", [(), ("--plugins", "flush-async")], ids=["disk", "memory"])
def test_kills_under_load_store_each_message_once(tmp_path: Path, options: tuple[str, ...]) -> None:
    with BrokerProcess(tmp_path, *options) as broker:
        load = Load(broker.address)
        try:
            for _ in range(KILLS):
                load.more(100)
                broker.kill()
                broker.start()
            load.more(100)
        finally:
            load.end()
        numbers = list(range(len(load.receipts)))
        offsets = [receipt.result(10).offset for receipt in load.receipts]
        assert stored(broker.address, len(numbers)) == numbers
    assert offsets == numbers, "every answer is that of the one copy"
