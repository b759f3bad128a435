"""A member whose connection breaks, again and again, and comes back at once: nobody else takes its
queues meanwhile, and nothing comes twice."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cometmq import Admin, Consumer, Message, Producer, ReceivedMessage
from cometmq.testing.process import BrokerProcess
from cometmq.testing.waiting import until

QUEUES = 4
ROUNDS, PER_ROUND = 60, 20
CUTS = (15, 30, 45)


class Wire:
    """Passes bytes on between clients and a broker; `cut` breaks all connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._server.getsockname()[1]}"

    def cut(self) -> int:
        """How many connections there were."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):  # the other side may have closed it already
                end.shutdown(socket.SHUT_RDWR)
        return len(ends) // 2

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join()
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:  # closed
                return
            broker = socket.create_connection(("127.0.0.1", self._port))
            self._ends += [client, broker]
            for source, target in ((client, broker), (broker, client)):
                thread = threading.Thread(target=_pass_on, args=(source, target))
                self._threads.append(thread)
                thread.start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):  # cut
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    source.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as process:
        with Admin(process.address) as admin:
            admin.create_topic("t", queues=QUEUES)
        yield process


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    wire = Wire(int(broker.address.rpartition(":")[2]))
    yield wire
    wire.close()


def test_a_connection_that_breaks_and_heals_costs_nothing(
    broker: BrokerProcess, wire: Wire
) -> None:
    seen: Counter[tuple[int, int]] = Counter()
    by_other: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        seen[message.queue, message.offset] += 1

    def handle_other(message: ReceivedMessage) -> None:
        handle(message)
        by_other.append(message.queue)

    with (
        Consumer(broker.address, group="g") as other,
        Consumer(wire.address, group="g", commit_interval=60.0) as broken,
        Producer(broker.address) as producer,
    ):
        other.subscribe("t", handler=handle_other)
        other.start()
        assert until(lambda: len(other.queues) == QUEUES)
        broken.subscribe("t", handler=handle)
        broken.start()
        assert until(lambda: len(other.queues) == len(broken.queues) == QUEUES // 2)
        kept = set(other.queues)
        for round_ in range(ROUNDS):
            producer.send_many(
                [Message("t", b"x", sharding_key=str(number)) for number in range(PER_ROUND)]
            )
            if round_ in CUTS:
                assert wire.cut() == 1
            time.sleep(0.03)
        assert until(lambda: len(seen) == ROUNDS * PER_ROUND)
        assert set(seen.values()) == {1}, "handled once, though nothing of it was committed"
        assert {("t", queue) for queue in by_other} <= kept
