"""Clients that ZeroMQ's own would never be: none of them may harm the others."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from cometmq.interfaces import Limits
from cometmq.real_environment import RealEnvironment
from cometmq.testing.clock import VirtualClock
from cometmq.testing.transport_ends import Caller, ReceiverThread
from cometmq_transports.zeromq import ZeromqOptions, ZeromqTransport, connect
from cometmq_transports.zeromq.descriptors import Spare
from cometmq_transports.zeromq.listener import SPARE_CONNECTIONS, RouterListener

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
Listen = Callable[..., RouterListener]


def connect_raw(address: str) -> socket.socket:
    """A bare TCP connection."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def connect_zmtp(address: str, routing_id: bytes = b"") -> socket.socket:
    """A connection that has shaken hands, made by hand, as a DEALER of that routing id."""
    connection = connect_raw(address)
    connection.sendall(GREETING)
    read(connection, len(GREETING))
    ready = b"\x05READY" + field(b"Socket-Type", b"DEALER") + field(b"Identity", routing_id)
    connection.sendall(bytes([4, len(ready)]) + ready)
    read(connection, read(connection, 2)[1])
    return connection


def field(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value


def frame(content: bytes, *, more: bool = False) -> bytes:
    """One frame of a message, at most 255 bytes."""
    return bytes([int(more), len(content)]) + content


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the other side closed"
        data += part
    return data


def ended(connection: socket.socket) -> bool:
    """Whether the other side closes within ten seconds; what it sends before is thrown away."""
    with connection:
        try:
            while connection.recv(65536):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def receiver(clock: VirtualClock) -> Iterator[ReceiverThread]:
    with ReceiverThread(RealEnvironment(clock=clock)) as receiver:
        yield receiver


@pytest.fixture
def listen(receiver: ReceiverThread) -> Listen:
    def listen(limits: Limits | None = None, **options: int) -> RouterListener:
        transport = ZeromqTransport(ZeromqOptions(**options))
        listener = receiver.listen(transport, "tcp://127.0.0.1:0", limits)
        assert isinstance(listener, RouterListener)
        return listener

    return listen


def call(listener: RouterListener) -> Caller:
    return Caller(connect(listener.address, Limits())).connected()


@pytest.mark.parametrize("seed", range(20))
def test_garbage_does_no_harm(listen: Listen, receiver: ReceiverThread, seed: int) -> None:
    listener = listen()
    chance = random.Random(seed)
    prefix = chance.choice([b"", GREETING[:10], GREETING[:12], GREETING, b"GET / HTTP/1.1\r\n\r\n"])
    with call(listener) as caller:
        with connect_raw(listener.address) as garbage:
            try:
                garbage.sendall(prefix + chance.randbytes(chance.choice([1, 100, 10_000])))
            except (ConnectionResetError, BrokenPipeError):
                pass  # dropped while it was still speaking
        assert caller.ask(b"still here") == [b"still here"]
    assert [frames for _, frames in receiver.messages] == [[b"still here"]]


@pytest.mark.parametrize("seed", range(10))
def test_garbage_after_the_handshake_does_no_harm(
    listen: Listen, receiver: ReceiverThread, seed: int
) -> None:
    listener = listen(Limits(frame_bytes=1000))
    chance = random.Random(seed)
    with call(listener) as caller:
        with connect_zmtp(listener.address) as garbage:
            garbage.sendall(frame(b"fine"))
            assert read(garbage, 6) == frame(b"fine")
            try:
                garbage.sendall(chance.randbytes(5_000))
            except (ConnectionResetError, BrokenPipeError):
                pass  # dropped while it was still speaking
        assert caller.ask(b"still here") == [b"still here"]
        receiver.until(lambda: receiver.gone)
        assert receiver.gone == [receiver.messages[0][0]]


def test_a_message_of_very_many_frames(listen: Listen, receiver: ReceiverThread) -> None:
    listener = listen()
    many = connect_zmtp(listener.address)
    many.sendall(frame(b"", more=True) * 100_000 + frame(b"end") + frame(b"another"))
    assert ended(many)
    receiver.until(lambda: receiver.gone)
    assert receiver.messages == []
    assert listener.counters == {"too_many_frames": 1}


def test_nobody_chooses_a_routing_id(listen: Listen, receiver: ReceiverThread) -> None:
    listener = listen()
    # Two names: one that ZeroMQ still holds for a connection just dropped it gives to nobody else.
    for name in (b"me", b"you"):
        chooser = connect_zmtp(listener.address, name)
        chooser.sendall(frame(b"hello"))
        assert ended(chooser)
    assert receiver.messages == []
    assert listener.counters == {"chosen_routing_id": 2}


def test_a_client_of_the_first_zeromq_is_not_heard(
    listen: Listen, receiver: ReceiverThread, clock: VirtualClock
) -> None:
    listener = listen()
    with connect_raw(listener.address) as old:
        old.sendall(b"\x01\x00" + b"\x06\x00hello")  # an empty routing id, a message
        with call(listener) as caller:
            caller.ask(b"?")
            while not listener.counters["old_protocol"]:
                assert caller.ask(b"?") == [b"?"]
            for _ in range(12):
                clock.advance(1.0)
                receiver.call(lambda: None)
            assert ended(old)
            assert caller.ask(b"?") == [b"?"]
    assert {frames[0] for _, frames in receiver.messages} == {b"?"}


@pytest.mark.parametrize("last", [b"", frame(b"more", more=True)], ids=["idle", "unfinished"])
def test_a_client_killed_while_its_messages_wait_for_room_takes_nobody_along(
    listen: Listen, receiver: ReceiverThread, last: bytes
) -> None:
    """ZeroMQ's own heartbeats would abort this very process."""
    listener = listen(hwm=1)
    with call(listener) as caller:
        caller.ask(b"?")
        busy = connect_zmtp(listener.address)
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        def meanwhile() -> None:
            busy.sendall(frame(b"x") * 400 + last)
            time.sleep(0.05)
            busy.close()
            time.sleep(0.2)

        receiver.call(meanwhile)
        assert caller.ask(b"still here") == [b"still here"]
        receiver.until(lambda: receiver.gone)


def test_a_client_that_shakes_no_hands_is_dropped(listen: Listen) -> None:
    listener = listen(handshake_ms=50)
    assert ended(connect_raw(listener.address))
    with call(listener) as caller:
        assert caller.ask(b"hello") == [b"hello"]
    assert listener.counters == {"handshake_failed": 1}


def test_a_client_that_says_nothing_is_dropped(
    listen: Listen, receiver: ReceiverThread, clock: VirtualClock
) -> None:
    listener = listen()
    with call(listener) as caller:
        caller.ask(b"hello")
        silent = connect_zmtp(listener.address)
        receiver.call(lambda: None)
        for _ in range(12):
            clock.advance(1.0)
            receiver.call(lambda: None)
        assert ended(silent)
        assert caller.ask(b"still here") == [b"still here"]
    assert listener.counters == {"silent": 1}


def test_connections_beyond_the_limit_are_dropped(listen: Listen, receiver: ReceiverThread) -> None:
    listener = listen(Limits(connections=2))
    callers = [call(listener) for _ in range(2 + SPARE_CONNECTIONS)]
    for caller in callers:
        caller.ask(b"hello")
    with Caller(connect(listener.address, Limits())) as surplus:
        surplus.until(lambda: {"disconnected", "handshake_failed"} & set(surplus.events))
    assert listener.counters["too_many_connections"] == 1
    assert callers[0].ask(b"still here") == [b"still here"]
    callers[0].channel.close()
    receiver.until(lambda: receiver.gone)
    with call(listener) as late:
        assert late.ask(b"room again") == [b"room again"]
    for caller in callers:
        caller.channel.close()


def test_connections_that_take_the_last_descriptors_are_dropped(
    listen: Listen, receiver: ReceiverThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = listen()
    with call(listener) as caller:
        caller.ask(b"hello")
        monkeypatch.setattr("cometmq_transports.zeromq.connections.ceiling", lambda: 0)
        late = [connect_raw(listener.address) for _ in range(20)]
        assert all(ended(connection) for connection in late)
        # ZeroMQ may tell of each as a failed handshake too.
        assert listener.counters["few_descriptors"] == 20
        assert caller.ask(b"still here") == [b"still here"]
        monkeypatch.undo()
        with call(listener) as other:
            assert other.ask(b"room again") == [b"room again"]


def test_what_is_looked_at_is_the_connection_that_was_meant() -> None:
    spare = Spare()
    ours, theirs = socket.socketpair()
    inode = os.fstat(ours.fileno()).st_ino
    before = len(os.listdir("/proc/self/fd"))
    with spare.copy(ours.fileno(), inode) as found:
        assert found is not None
        found.sendall(b"x")
        assert theirs.recv(10) == b"x"
        assert len(os.listdir("/proc/self/fd")) == before, "it took another descriptor"
    with spare.copy(theirs.fileno(), inode) as found:
        assert found is None
    with open(os.devnull) as file:
        with spare.copy(file.fileno(), os.fstat(file.fileno()).st_ino) as found:
            assert found is None, "no socket"
    number = ours.fileno()
    ours.close()
    with spare.copy(number, inode) as found:
        assert found is None
    assert theirs.recv(10) == b"", "the copy was kept"
    theirs.close()
    spare.close()


def test_descriptors_are_given_back(listen: Listen, receiver: ReceiverThread) -> None:
    listener = listen()

    def come_and_go(count: int) -> None:
        before = len(receiver.gone)
        for _ in range(count):
            with call(listener) as caller:
                caller.ask(b"hello")
        receiver.until(lambda: len(receiver.gone) == before + count)

    come_and_go(10)
    open_before = len(os.listdir("/proc/self/fd"))
    come_and_go(100)
    assert len(os.listdir("/proc/self/fd")) <= open_before + 5
    assert len(set(map(id, receiver.gone))) == 110
