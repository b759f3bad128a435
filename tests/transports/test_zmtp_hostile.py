"""Clients that mean harm, or die at a bad moment: none may harm the others or the broker."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq.interfaces import Limits
from cometmq.protocol import Heartbeat, Operation, Status
from cometmq.testing.hostile import Hostile
from cometmq.testing.process import BrokerProcess
from cometmq.testing.transport_ends import Caller, ReceiverThread
from cometmq.testing.waiting import until
from cometmq.testing.zmtp import GREETING, ZmtpPeer, frame, ready
from cometmq_transports.connection_limits import SPARE_CONNECTIONS
from cometmq_transports.zeromq import connect
from cometmq_transports.zmtp import ZmtpOptions, ZmtpTransport
from cometmq_transports.zmtp.listener import ZmtpListener

Listen = Callable[..., ZmtpListener]
PassTime = Callable[[int], None]
PING = frame(b"\x04PING\x00\x00", command=True)
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def listen(receiver: ReceiverThread) -> Listen:
    def listen(limits: Limits | None = None, **options: int) -> ZmtpListener:
        transport = ZmtpTransport(ZmtpOptions(**options))
        listener = receiver.listen(transport, "tcp://127.0.0.1:0", limits)
        assert isinstance(listener, ZmtpListener)
        return listener

    return listen


def call(listener: ZmtpListener) -> Caller:
    return Caller(connect(listener.address, Limits())).connected()


def until_connections(receiver: ReceiverThread, listener: ZmtpListener, count: int) -> None:
    there = until(lambda: receiver.call(lambda: listener.connections) == count)
    assert there, f"{listener.connections} connections"


def read(peer: ZmtpPeer, size: int) -> bytes:
    """So many bytes as they come."""
    data = b""
    while len(data) < size:
        part = peer.socket.recv(size - len(data))
        assert part, "the other side closed"
        data += part
    return data


def reset(peer: ZmtpPeer) -> None:
    """Close so that the other side gets a reset."""
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    peer.close()


# --- what they say --------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["tcp", "handshake"])
@pytest.mark.parametrize("seed", range(20))
def test_rubbish_ends_its_own_connection(
    listen: Listen, receiver: ReceiverThread, stage: str, seed: int
) -> None:
    listener = listen(Limits(frame_bytes=1000))
    hostile = Hostile(seed)
    with call(listener) as caller:
        caller.ask(b"hello")
        with ZmtpPeer(listener.address) as peer:
            if stage == "handshake":
                peer.shake_hands()
            try:
                peer.send(hostile.stream(stage) + b"\xff" * 200)
                peer.drain(0.01)
            except ConnectionError:
                pass  # dropped while it was still speaking
        assert caller.ask(b"still here") == [b"still here"]
        until_connections(receiver, listener, 1)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not_zmtp"),
        (b"\x01\x00\x06\x00hello", "not_zmtp"),
        (GREETING[:10] + b"\x02", "old_protocol"),
        (GREETING.replace(b"NULL\0", b"CURVE"), "other_mechanism"),
        (GREETING + ready(b"SUB"), "wrong_socket_type"),
        (GREETING + frame(b"hello"), "bad_handshake"),
    ],
)
def test_who_speaks_something_else_is_dropped(
    listen: Listen, receiver: ReceiverThread, said: bytes, reason: str
) -> None:
    listener = listen()
    with ZmtpPeer(listener.address) as peer:
        peer.send(said)
        assert peer.ended()
    assert listener.counters == {reason: 1}
    assert not receiver.messages
    assert not receiver.gone


@pytest.mark.parametrize("kind", [b"DEALER", b"REQ", b"ROUTER"])
@pytest.mark.parametrize("greeting", [GREETING, GREETING.replace(b"\x03\x00", b"\x03\x01")])
def test_who_may_come_in(
    listen: Listen, receiver: ReceiverThread, kind: bytes, greeting: bytes
) -> None:
    listener = listen()
    with ZmtpPeer(listener.address) as peer:
        peer.send(greeting + ready(kind, b"a name of its own") + frame(b"hello"))
        assert read(peer, 64)[10:13] == b"\x03\x01N"
        assert peer.read_message() == [b"hello"]


def test_pings_are_answered(listen: Listen) -> None:
    listener = listen()
    with ZmtpPeer(listener.address).shake_hands() as peer:
        peer.send(frame(b"\x04PING\x00\x00abc", command=True) + PING)
        assert read(peer, 10) == frame(b"\x04PONGabc", command=True)
        assert read(peer, 7) == frame(b"\x04PONG", command=True)


def test_messages_before_a_fault_are_heard(listen: Listen, receiver: ReceiverThread) -> None:
    listener = listen()
    with ZmtpPeer(listener.address).shake_hands() as peer:
        peer.send(frame(b"good") + frame(b"x", more=True) * 100)
        peer.ended()
    receiver.until(lambda: receiver.gone)
    assert [frames for _, frames in receiver.messages] == [[b"good"]]
    assert receiver.gone == [receiver.messages[0][0]]
    assert listener.counters == {"too_many_frames": 1}


def test_a_message_that_never_ends_is_cut_off(listen: Listen, receiver: ReceiverThread) -> None:
    limits = Limits(frame_bytes=100_000, frames=1_000_000, credit_bytes=1 << 20)
    listener = listen(limits)
    with ZmtpPeer(listener.address).shake_hands() as peer:
        sent = 0
        with pytest.raises(ConnectionError):
            while sent < 100 << 20:
                peer.send(frame(bytes(100_000), more=True))
                sent += 100_000
    assert listener.counters == {"message_too_large": 1}
    assert sent < 20 << 20  # what the system holds in between


# --- how they leave -------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [b"", frame(b"more", more=True), PING, PING * 1000])
def test_a_client_killed_with_its_pipe_full(
    listen: Listen, receiver: ReceiverThread, last: bytes
) -> None:
    """A ping and a reset behind messages that wait make libzmq end the process."""
    listener = listen()
    with call(listener) as caller:
        caller.ask(b"?")
        busy = ZmtpPeer(listener.address).shake_hands()

        def meanwhile() -> None:
            busy.send(frame(b"x") * 20_000 + last)
            time.sleep(0.05)
            reset(busy)
            time.sleep(0.05)

        receiver.call(meanwhile)
        assert caller.ask(b"still here") == [b"still here"]
        receiver.until(lambda: receiver.gone)
        assert receiver.call(lambda: listener.connections) == 1


def test_a_client_that_leaves_before_it_is_welcomed(
    listen: Listen, receiver: ReceiverThread
) -> None:
    listener = listen()
    release = receiver.hold()
    for _ in range(100):
        reset(ZmtpPeer(listener.address))
    release()
    with call(listener) as caller:
        assert caller.ask(b"hello") == [b"hello"]
    until_connections(receiver, listener, 0)


def test_descriptors_are_given_back(listen: Listen, receiver: ReceiverThread) -> None:
    listener = listen()

    def come_and_go(count: int) -> None:
        before = len(receiver.gone)
        for number in range(count):
            peer = ZmtpPeer(listener.address).shake_hands()
            peer.send(frame(b"hello"))
            assert peer.read_message() == [b"hello"]
            reset(peer) if number % 2 else peer.close()
        receiver.until(lambda: len(receiver.gone) == before + count)

    come_and_go(10)
    open_before = len(os.listdir("/proc/self/fd"))
    come_and_go(100)
    assert len(os.listdir("/proc/self/fd")) <= open_before + 5
    assert len(set(map(id, receiver.gone))) == 110


# --- what they leave out --------------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", GREETING[:20], GREETING])
def test_a_client_that_shakes_no_hands_is_dropped(
    listen: Listen, receiver: ReceiverThread, pass_time: PassTime, said: bytes
) -> None:
    listener = listen(handshake_ms=2_000)
    with call(listener) as caller, ZmtpPeer(listener.address) as peer:
        peer.send(said)
        until_connections(receiver, listener, 2)
        pass_time(3)
        assert peer.ended()
        assert caller.ask(b"hello") == [b"hello"]
    assert listener.counters == {"handshake_too_slow": 1}


def test_a_client_that_only_pings_is_dropped(listen: Listen, pass_time: PassTime) -> None:
    listener = listen()
    with call(listener) as caller, ZmtpPeer(listener.address).shake_hands() as silent:
        caller.ask(b"hello")
        pass_time(9)
        silent.send(PING)
        assert read(silent, 7) == frame(b"\x04PONG", command=True)
        pass_time(2)
        assert silent.ended()
        assert caller.ask(b"still here") == [b"still here"]
    assert listener.counters == {"silent": 1}


def test_a_flood_does_not_starve_others(listen: Listen, receiver: ReceiverThread) -> None:
    """While one connection has much more to say than fits into a turn, others are heard."""
    listener = listen()
    seen: list[bytes] = []
    receiver.answer = lambda peer, frames: seen.append(bytes(frames[0]))
    with ZmtpPeer(listener.address).shake_hands() as flood:
        with ZmtpPeer(listener.address).shake_hands() as other:
            release = receiver.hold()
            other.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            flood.send(frame(b"x") * 100_000)
            other.send(frame(b"other"))
            time.sleep(0.05)
            release()
            receiver.until(lambda: len(receiver.messages) == 100_001)
    assert seen.index(b"other") < 2_000
    assert max(receiver.drains) <= 1024


def test_a_hundred_floods_are_heard_in_turn(listen: Listen, receiver: ReceiverThread) -> None:
    """More than one turn hears, each with more than its share of one."""
    listener = listen()
    heard: list[bytes] = []
    receiver.answer = lambda peer, frames: heard.append(bytes(frames[0]))
    floods = [ZmtpPeer(listener.address).shake_hands() for _ in range(100)]
    release = receiver.hold()
    for number, flood in enumerate(floods):
        flood.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        flood.send(frame(b"%d" % number) * 500)
    release()
    receiver.until(lambda: len(receiver.messages) == 50_000)
    firsts = [heard.index(b"%d" % number) for number in range(100)]
    assert max(firsts) < 5_000
    assert max(receiver.drains) <= 2_000
    for flood in floods:
        flood.close()


def test_who_reads_nothing_is_not_read(listen: Listen, receiver: ReceiverThread) -> None:
    """Its replies pile up to half the credit, then its requests wait where they are."""
    listener = listen(Limits(credit_bytes=1 << 20))
    with call(listener) as caller, ZmtpPeer(listener.address, 1.0).shake_hands() as deaf:
        with pytest.raises(TimeoutError):
            for _ in range(1000):
                deaf.send(frame(bytes(50_000)))
        heard = len(receiver.messages)
        assert caller.ask(b"still here") == [b"still here"]
        assert len(receiver.messages) == heard + 1
        assert listener.counters == {}
        deaf.socket.settimeout(10.0)
        for _ in range(heard):
            assert deaf.read_message() == [bytes(50_000)]
        receiver.until(lambda: len(receiver.messages) > heard + 1)


def test_who_holds_most_is_dropped_when_all_together_hold_too_much(
    listen: Listen, receiver: ReceiverThread
) -> None:
    listener = listen(Limits(held_bytes=600_000))
    begun = frame(bytes(100_000), more=True)
    with ZmtpPeer(listener.address) as much, ZmtpPeer(listener.address) as little:
        little.shake_hands().send(begun)
        much.shake_hands().send(begun * 6)
        assert much.ended()
        until_connections(receiver, listener, 1)
        little.send(frame(b""))
        receiver.until(lambda: len(receiver.messages) == 1)
        assert listener.counters == {"too_much_held": 1}
        assert receiver.call(lambda: listener.holdings.total_bytes) == 0


def test_a_client_that_is_closed_gets_what_was_sent(
    listen: Listen, receiver: ReceiverThread
) -> None:
    """Also if it has said more than was heard, which would reset the connection if it were closed
    at once."""
    listener = listen()
    answer = bytes(200_000)

    def refuse(peer: object, frames: object) -> None:
        sender = receiver.messages[0][0]
        if sender.send([answer]):
            sender.close()

    receiver.answer = refuse
    with ZmtpPeer(listener.address).shake_hands() as peer:
        peer.send(frame(b"x") * 50_000)
        assert peer.read_message() == [answer]
        assert peer.ended()
    receiver.until(lambda: receiver.gone)
    assert listener.counters == {"closed": 1}


def test_a_client_that_will_not_leave_is_closed(
    listen: Listen, receiver: ReceiverThread, pass_time: PassTime
) -> None:
    listener = listen()
    receiver.answer = lambda peer, frames: peer.close()
    with ZmtpPeer(listener.address).shake_hands() as peer:
        peer.send(frame(b"x"))
        assert peer.ended()
        assert receiver.call(lambda: listener.connections) == 1
        pass_time(1)
        assert receiver.call(lambda: listener.connections) == 0
        assert receiver.gone == [receiver.messages[0][0]]


# --- too many -------------------------------------------------------------------------------------


def test_connections_beyond_the_limit_are_dropped(listen: Listen, receiver: ReceiverThread) -> None:
    listener = listen(Limits(connections=2))
    peers = [ZmtpPeer(listener.address).shake_hands() for _ in range(2 + SPARE_CONNECTIONS)]
    with ZmtpPeer(listener.address) as surplus:
        assert surplus.ended()
    assert listener.counters == {"too_many_connections": 1}
    peers.pop().close()
    until_connections(receiver, listener, 1 + SPARE_CONNECTIONS)
    with call(listener) as late:
        assert late.ask(b"room again") == [b"room again"]
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("ends_by", ["a connection that closes", "time"])
def test_new_ones_wait_while_few_descriptors_are_left(
    listen: Listen,
    receiver: ReceiverThread,
    pass_time: PassTime,
    monkeypatch: pytest.MonkeyPatch,
    ends_by: str,
) -> None:
    listener = listen()
    with ZmtpPeer(listener.address).shake_hands() as leaving, call(listener) as caller:
        monkeypatch.setattr("cometmq_transports.zmtp.acceptor.ceiling", lambda: 0)
        with Caller(connect(listener.address, Limits())) as late:
            caller.until(lambda: listener.counters["few_descriptors"])
            assert caller.ask(b"still here") == [b"still here"]
            monkeypatch.undo()
            assert receiver.call(lambda: listener.connections) == 2
            if ends_by == "time":
                pass_time(1)
            else:
                leaving.close()
            assert late.connected().ask(b"room again") == [b"room again"]
        assert listener.counters == {"few_descriptors": 1}


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """A whole broker with this transport; a parameter limits its descriptors."""
    prefix = ["prlimit", f"--nofile={request.param}"] if hasattr(request, "param") else []
    with BrokerProcess(tmp_path, "--plugins=memory", prefix=prefix) as broker:
        with ZmtpPeer(broker.address).shake_hands().say_hello() as neighbour:
            yield broker
            assert neighbour.ask(Operation.HEARTBEAT, Heartbeat())[0] == Status.OK
        assert broker.stop() == 0


@pytest.mark.parametrize("broker", [64], indirect=True)
def test_no_descriptor_left_costs_no_core(broker: BrokerProcess) -> None:
    waiting = [ZmtpPeer(broker.address) for _ in range(100)]
    time.sleep(0.2)
    before_s = cpu_s(broker.pid)
    time.sleep(1.5)
    assert cpu_s(broker.pid) - before_s < 0.4
    for peer in waiting:
        peer.close()
    with ZmtpPeer(broker.address).shake_hands().say_hello() as late:
        assert late.ask(Operation.HEARTBEAT, Heartbeat())[0] == Status.OK
    assert broker.log.read_text().count("takes no new connections") == 1


# --- what libzmq can't bear -----------------------------------------------------------------------


def test_endless_messages_take_no_memory(broker: BrokerProcess) -> None:
    before = broker.anonymous_bytes()
    peers = [ZmtpPeer(broker.address).shake_hands().say_hello() for _ in range(4)]
    endless = frame(bytes(1 << 20), more=True)
    ended = set()
    for _ in range(100):
        for peer in peers:
            try:
                peer.send(endless)
            except ConnectionError:
                ended.add(peer)
    assert len(ended) == 4
    assert broker.anonymous_bytes() - before < 100 << 20  # 400 MiB were said
    for peer in peers:
        peer.close()


def test_a_ping_and_a_reset_behind_what_is_not_read(broker: BrokerProcess) -> None:
    """Fifty clients say much, then ping, and are gone before the broker has heard it all."""
    for _ in range(50):
        peer = ZmtpPeer(broker.address).shake_hands()
        peer.send(frame(b"x") * 1000 + PING)
        reset(peer)
