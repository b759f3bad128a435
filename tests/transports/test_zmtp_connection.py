"""One connection over a pair of sockets: what waits, what leaves, when it is not read."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from cometmq.interfaces import Limits
from cometmq.testing.zmtp import GREETING, frame, ready
from cometmq_transports.zmtp.connection import Connection
from cometmq_transports.zmtp.decoder import SCRATCH_BYTES, Decoder

CREDIT_BYTES = 200_000


class Desk:
    """A hub that writes down what it is told."""

    def __init__(self) -> None:
        self.credit_bytes = CREDIT_BYTES
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.in_a_drain = False
        self.dropped: list[str] = []

    def wants_to_send(self, connection: Connection) -> bool:
        return self.in_a_drain

    def changed(self, connection: Connection) -> None:
        connection.interest = connection.wanted()

    def drop(self, connection: Connection, reason: str = "") -> None:
        self.dropped.append(reason)
        connection.end()

    def retire(self, connection: Connection) -> None:
        connection.gone = True


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # as small as the system lets it be
    theirs.settimeout(10.0)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def connection(desk: Desk, ends: tuple[socket.socket, socket.socket]) -> Connection:
    decoder = Decoder(desk.scratch, Limits(credit_bytes=CREDIT_BYTES))
    return Connection(desk, ends[0], "someone", decoder)


@pytest.fixture
def theirs(ends: tuple[socket.socket, socket.socket]) -> socket.socket:
    return ends[1]


def test_what_does_not_fit_leaves_later_and_in_order(
    connection: Connection, theirs: socket.socket
) -> None:
    wanted = b""
    for number in range(20):
        assert connection.send([b"%d" % number, bytes(7000)])
        wanted += frame(b"%d" % number, more=True) + frame(bytes(7000))
    assert connection.blocked
    got = b""
    while len(got) < len(wanted):
        got += theirs.recv(1 << 20)
        connection.flush()
    assert got == wanted
    assert not connection.blocked
    assert connection.interest == select.EPOLLIN


def test_it_is_not_read_while_half_its_credit_waits(
    connection: Connection, theirs: socket.socket
) -> None:
    assert connection.send([bytes(30_000)])
    assert connection.interest == select.EPOLLIN | select.EPOLLOUT
    assert connection.send([bytes(CREDIT_BYTES // 2)])
    assert connection.paused
    assert connection.interest == select.EPOLLOUT
    while connection.paused:
        theirs.recv(1 << 20)
        connection.flush()
    assert connection.interest & select.EPOLLIN


def test_who_has_its_credit_full_is_dropped(connection: Connection, desk: Desk) -> None:
    assert connection.send([bytes(CREDIT_BYTES)])
    assert not connection.send([bytes(CREDIT_BYTES)])
    assert desk.dropped == ["too_slow"]
    assert connection.gone
    assert connection.fileno() == -1
    assert not connection.send([b"more"])


def test_one_message_may_be_larger_than_the_credit(connection: Connection, desk: Desk) -> None:
    assert connection.send([bytes(3 * CREDIT_BYTES)])
    assert desk.dropped == []


def test_a_drain_that_answers_much_makes_room_first(
    connection: Connection, desk: Desk, theirs: socket.socket
) -> None:
    desk.in_a_drain = True
    assert connection.send([bytes(CREDIT_BYTES - 1000)])
    assert not select.select([theirs], [], [], 0)[0], "it left before the end of the drain"
    assert connection.send([bytes(1000)])
    assert desk.dropped == []
    assert len(theirs.recv(1 << 20)) > 1000


def test_all_of_a_drain_leaves_at_its_end(
    connection: Connection, desk: Desk, theirs: socket.socket
) -> None:
    desk.in_a_drain = True
    for number in range(300):
        assert connection.send([b"%03d" % number])
    connection.push()
    wanted = b"".join(frame(b"%03d" % number) for number in range(300))
    got = b""
    while len(got) < len(wanted):
        got += theirs.recv(1 << 20)
        connection.flush()
    assert got == wanted


def test_who_left_is_dropped_without_a_reason(
    connection: Connection, desk: Desk, theirs: socket.socket
) -> None:
    theirs.close()
    assert not connection.send([b"anybody?"])
    assert desk.dropped == [""]


def test_what_came_before_the_end_is_heard(
    connection: Connection, desk: Desk, theirs: socket.socket
) -> None:
    theirs.sendall(GREETING + ready() + frame(b"one") + frame(b"two"))
    theirs.shutdown(socket.SHUT_WR)
    assert connection.read(100, 1 << 20) == [[b"one"], [b"two"]]
    assert connection.read(100, 1 << 20) == []
    assert desk.dropped == [""]


def test_it_reads_as_much_as_it_is_told(connection: Connection, theirs: socket.socket) -> None:
    theirs.sendall(GREETING + ready() + frame(b"x") * 10)
    assert len(connection.read(5, 1 << 20)) == 4  # the handshake counts
    assert connection.pending
    assert not connection.wanted() & select.EPOLLIN
    assert len(connection.read(5, 1 << 20)) == 5
    assert len(connection.read(5, 1 << 20)) == 1
    assert not connection.pending


def test_the_end_is_told_once_all_has_left(
    connection: Connection, desk: Desk, theirs: socket.socket
) -> None:
    assert connection.send([bytes(50_000)])
    connection.close()
    assert connection.gone
    assert not connection.say_no_more()
    size = 0
    while not connection.say_no_more():
        size += len(theirs.recv(1 << 20))
        connection.flush()
    while data := theirs.recv(1 << 20):
        size += len(data)
    assert size == len(frame(bytes(50_000)))
    assert not connection.say_no_more()
    theirs.sendall(b"whatever")
    assert connection.discard()
    theirs.close()
    assert not connection.discard()


def test_a_connection_that_ended_holds_nothing(desk: Desk, connection: Connection) -> None:
    """Who still knows it (a session that waits for its client) keeps a name, not megabytes."""
    decoder = connection._decoder
    said = GREETING + ready() + frame(b"begun", more=True) + frame(bytes(90_000))[:20_000]
    decoder.buffers()[0][: len(said)] = said
    decoder.came(len(said), 100)
    connection.send([bytes(CREDIT_BYTES)])
    connection.end()
    assert (decoder._frames, decoder._body, decoder._rest) == ([], None, b"")
    assert not decoder._body_view
    assert not connection._outbox
