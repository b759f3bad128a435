"""Bad guests on real sockets: each is its own problem, and nobody else notices.

`corpus/` keeps byte streams, one a file, in a folder by what they follow: a bare connect (`tcp`),
a handshake, or a good hello (`session`). Whatever stream ever did harm belongs there.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cometmq import Admin, Message, Producer, PullConsumer
from cometmq.broker.dispatch import GARBAGE_MAX
from cometmq.protocol import Fetch, FetchPart, Heartbeat, Operation, Send, Status
from cometmq.testing.embedded import EmbeddedBroker
from cometmq.testing.hostile import STAGES, Hostile, play
from cometmq.testing.process import BrokerProcess
from cometmq.testing.raw_client import batch_of
from cometmq.testing.waiting import until
from cometmq.testing.zmtp import GREETING, ZmtpPeer, frame, request
from cometmq_transports.zmtp.listener import DRAIN_FRAMES

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*/*.bin"))
CONNECTIONS = 2000
SPARE_FILES = 200
PATIENCE_S = 20.0
FIXED_BYTES = 220 << 20
"""What a broker takes at rest and for its own buffers, with much to spare."""
PER_PEER_BYTES = 64 * (1 << 20)
"""HWM messages of 1 MiB: what ZeroMQ may hold of one hostile peer in one direction."""


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(listen="tcp://127.0.0.1:0") as broker:
        yield broker


class Neighbour:
    """A client that behaves, and asks the same of the broker: all it sends comes back, in order,
    without an error and in time."""

    def __init__(self, address: str) -> None:
        self._producer = Producer(address, send_timeout=PATIENCE_S)
        self._consumer = PullConsumer(address, topic="good")
        self._next = 0

    def goes_on(self, count: int = 5) -> None:
        for _ in range(count):
            body = b"%d" % self._next
            self._producer.send(Message("good", body, sharding_key="one"))
            (message,) = self._consumer.poll(timeout=PATIENCE_S)
            assert message.body == body
            self._next += 1

    def close(self) -> None:
        self._consumer.close()
        self._producer.close()


@pytest.fixture
def neighbour(broker: EmbeddedBroker) -> Iterator[Neighbour]:
    neighbour = Neighbour(broker.address)
    neighbour.goes_on()
    yield neighbour
    neighbour.goes_on()
    neighbour.close()


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_corpus(broker: EmbeddedBroker, neighbour: Neighbour, path: Path) -> None:
    assert path.parent.name in STAGES
    play(broker.address, path.parent.name, path.read_bytes())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("stage", STAGES)
def test_random_streams(
    broker: EmbeddedBroker,
    neighbour: Neighbour,
    stage: str,
    seed: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hostile = Hostile(seed)
    for _ in range(5):
        play(broker.address, stage, hostile.stream(stage), 0.02)
        neighbour.goes_on(1)
    failures = [record.getMessage() for record in caplog.records if record.exc_info]
    assert failures == []


def test_a_hundred_thousand_empty_messages(broker: EmbeddedBroker, neighbour: Neighbour) -> None:
    """Who sends only what is no message is told so a few times and then cut off."""
    with ZmtpPeer(broker.address, PATIENCE_S).shake_hands().say_hello() as peer:
        peer.send(frame(b"") * GARBAGE_MAX)
        answers = [peer.read_message() for _ in range(GARBAGE_MAX)]
        with suppress(ConnectionError, TimeoutError):
            peer.send(frame(b"") * 100_000)
        neighbour.goes_on()
    assert b"this connection is closed" in b"".join(answers[-1])
    garbage = broker.call(lambda: broker.broker.info().metrics["garbage"])
    assert GARBAGE_MAX <= garbage <= 2 * DRAIN_FRAMES


def test_half_a_handshake_from_two_hundred(broker: EmbeddedBroker, neighbour: Neighbour) -> None:
    parts = [b"", GREETING[:1], GREETING[:11], GREETING[:63], GREETING]
    peers = [ZmtpPeer(broker.address) for _ in range(200)]
    for number, peer in enumerate(peers):
        peer.send(parts[number % len(parts)])
    neighbour.goes_on()
    for peer in peers:
        peer.close()


def test_two_thousand_connections_at_once(broker: EmbeddedBroker, neighbour: Neighbour) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * CONNECTIONS + SPARE_FILES:
        pytest.skip("this process may not open so many files (ulimit -n)")
    peers = [ZmtpPeer(broker.address, PATIENCE_S) for _ in range(CONNECTIONS)]
    try:
        for peer in peers:
            peer.shake_hands()
        for peer in peers:
            peer.say_hello()
        assert broker.call(lambda: broker.broker.info().sessions) >= CONNECTIONS
        neighbour.goes_on()
        for peer in peers[:: CONNECTIONS // 20]:
            assert peer.ask(Operation.HEARTBEAT, Heartbeat())[0] == Status.OK
    finally:
        for peer in peers:
            peer.close()
    gone = until(lambda: broker.call(lambda: broker.broker.info().sessions) <= 2)
    assert gone, "sessions of connections that are gone"


def test_a_reader_that_never_reads(tmp_path: Path) -> None:
    """It asks for a gigabyte and reads nothing: what is kept for it is bounded, and let go."""
    with BrokerProcess(tmp_path) as broker:
        neighbour = Neighbour(broker.address)
        neighbour.goes_on()
        big = batch_of("big", 0, bytes(900_000))
        with ZmtpPeer(broker.address).shake_hands().say_hello() as feeder:
            assert feeder.ask(Operation.SEND, Send([len(big)], [0]), big)[0] == Status.OK
        peers = [ZmtpPeer(broker.address, 1.0).shake_hands().say_hello() for _ in range(8)]
        fetch = Fetch([FetchPart("big", 0, 0)])
        for peer in peers:
            try:
                for number in range(150):
                    peer.send(request(number, Operation.FETCH, fetch))
            except (ConnectionError, TimeoutError):
                continue  # it was cut off
        neighbour.goes_on()
        assert broker.anonymous_bytes() < FIXED_BYTES + 8 * PER_PEER_BYTES
        for peer in peers:
            peer.close()
        neighbour.goes_on()
        neighbour.close()
        assert broker.stop() == 0


def test_a_writer_that_never_reads(tmp_path: Path) -> None:
    """Eight of them push megabytes as fast as they can and hear no answer."""
    with BrokerProcess(tmp_path, "--plugins", "memory") as broker:
        neighbour = Neighbour(broker.address)
        neighbour.goes_on()
        big = batch_of("big", 0, bytes(1_000_000))
        pushed = request(1, Operation.SEND, Send([len(big)], [0]), big)
        peers = [ZmtpPeer(broker.address, 2.0).shake_hands().say_hello() for _ in range(8)]
        for _ in range(20):
            for peer in peers:
                try:
                    peer.send(pushed)
                except (ConnectionError, TimeoutError):
                    continue  # it was cut off, or has to wait
        neighbour.goes_on()
        for peer in peers:
            peer.close()
        neighbour.close()
        assert broker.stop() == 0


def test_a_client_that_never_acks(broker: EmbeddedBroker, neighbour: Neighbour) -> None:
    """It reads the same over and over, parks what it can, and commits nothing."""
    with ZmtpPeer(broker.address).shake_hands().say_hello() as peer:
        for _ in range(300):
            header = Fetch([FetchPart("good", 0, 0)], group="lazy")
            assert peer.ask(Operation.FETCH, header)[0] == Status.OK
        parked = Fetch([FetchPart("good", 3, 0)], wait_ms=60_000, group="lazy")
        for number in range(300):
            peer.send(request(number, Operation.FETCH, parked))
        neighbour.goes_on()
    gone = until(lambda: broker.call(lambda: broker.broker.info().parked) <= 4)
    assert gone, "fetches of a connection that is gone stay parked"


def test_a_message_that_never_ends(tmp_path: Path) -> None:
    """Its connection is cut as soon as it is larger than any message may be; nobody else waits."""
    with BrokerProcess(tmp_path) as broker:
        neighbour = Neighbour(broker.address)
        neighbour.goes_on()
        with ZmtpPeer(broker.address).shake_hands().say_hello() as peer:
            with pytest.raises(ConnectionError):
                for _ in range(50):
                    peer.send(frame(bytes(1 << 20), more=True))
            neighbour.goes_on()
        assert until(lambda: sessions(broker.address) <= 3), "its session outlives its connection"
        neighbour.goes_on()
        neighbour.close()
        assert broker.stop() == 0


def sessions(address: str) -> int:
    """How many the broker has, with the one that asks."""
    with Admin(address) as admin:
        return admin.broker_info().sessions
