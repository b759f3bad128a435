"""Clients that ZeroMQ's own would never be: none of them may harm the others."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Callable

import pytest

from cometmq.interfaces import Limits
from cometmq.testing.transport_ends import Caller, ReceiverThread
from cometmq.testing.zmtp import GREETING, ZmtpPeer, frame
from cometmq_transports.connection_limits import SPARE_CONNECTIONS
from cometmq_transports.zeromq import ZeromqOptions, ZeromqTransport, connect
from cometmq_transports.zeromq.descriptors import Spare
from cometmq_transports.zeromq.listener import RouterListener

Listen = Callable[..., RouterListener]
PassTime = Callable[[int], None]


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
        with ZmtpPeer(listener.address) as garbage:
            try:
                garbage.send(prefix + chance.randbytes(chance.choice([1, 100, 10_000])))
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
        with ZmtpPeer(listener.address).shake_hands() as garbage:
            garbage.send(frame(b"fine"))
            assert garbage.read_message() == [b"fine"]
            try:
                garbage.send(chance.randbytes(5_000))
            except (ConnectionResetError, BrokenPipeError):
                pass  # dropped while it was still speaking
        assert caller.ask(b"still here") == [b"still here"]
        receiver.until(lambda: receiver.gone)
        assert receiver.gone == [receiver.messages[0][0]]


def test_a_message_of_very_many_frames(listen: Listen, receiver: ReceiverThread) -> None:
    listener = listen()
    with ZmtpPeer(listener.address).shake_hands() as many:
        many.send(frame(b"", more=True) * 100_000 + frame(b"end") + frame(b"another"))
        assert many.ended(60.0)
    receiver.until(lambda: receiver.gone)
    assert receiver.messages == []
    assert listener.counters == {"too_many_frames": 1}


def test_nobody_chooses_a_routing_id(listen: Listen, receiver: ReceiverThread) -> None:
    listener = listen()
    # Two names: one that ZeroMQ still holds for a connection just dropped it gives to nobody else.
    for name in (b"me", b"you"):
        with ZmtpPeer(listener.address).shake_hands(name) as chooser:
            chooser.send(frame(b"hello"))
            assert chooser.ended()
    assert receiver.messages == []
    assert listener.counters == {"chosen_routing_id": 2}


def test_a_client_of_the_first_zeromq_is_not_heard(
    listen: Listen, receiver: ReceiverThread, pass_time: PassTime
) -> None:
    listener = listen()
    with ZmtpPeer(listener.address) as old:
        old.send(b"\x01\x00" + b"\x06\x00hello")  # an empty routing id, a message
        with call(listener) as caller:
            caller.ask(b"?")
            while not listener.counters["old_protocol"]:
                assert caller.ask(b"?") == [b"?"]
            pass_time(12)
            assert old.ended()
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
        busy = ZmtpPeer(listener.address).shake_hands()
        busy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        def meanwhile() -> None:
            busy.send(frame(b"x") * 400 + last)
            time.sleep(0.05)
            busy.close()
            time.sleep(0.2)

        receiver.call(meanwhile)
        assert caller.ask(b"still here") == [b"still here"]
        receiver.until(lambda: receiver.gone)


def test_a_client_that_shakes_no_hands_is_dropped(listen: Listen) -> None:
    listener = listen(handshake_ms=50)
    with ZmtpPeer(listener.address) as silent:
        assert silent.ended()
    with call(listener) as caller:
        assert caller.ask(b"hello") == [b"hello"]
    assert listener.counters == {"handshake_failed": 1}


def test_a_client_that_says_nothing_is_dropped(
    listen: Listen, receiver: ReceiverThread, pass_time: PassTime
) -> None:
    listener = listen()
    with call(listener) as caller, ZmtpPeer(listener.address).shake_hands() as silent:
        caller.ask(b"hello")
        pass_time(12)
        assert silent.ended()
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
        late = [ZmtpPeer(listener.address) for _ in range(20)]
        for connection in late:
            with connection:
                assert connection.ended()
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
