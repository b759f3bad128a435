"""What a client's end of ZMTP has to bear from a broker, from the system and from a resolver."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from cometmq.interfaces import Limits
from cometmq.testing.transport_ends import PATIENCE_S, Caller, ReceiverThread
from cometmq.testing.zmtp import frame, message
from cometmq.testing.zmtp_server import ZmtpServer
from cometmq_transports.address import parse, places, resolve
from cometmq_transports.zmtp import ZmtpOptions, ZmtpTransport, channel, connect
from cometmq_transports.zmtp.channel import RECEIVE_BYTES, ZmtpChannel
from cometmq_transports.zmtp.decoder import Decoder

PING = frame(b"\x04PING\0\0", command=True)
PONG = frame(b"\x04PONG", command=True)
BAD_FRAME = b"\x08\x00"


@pytest.fixture
def server() -> Iterator[ZmtpServer]:
    with ZmtpServer(connect) as server:
        yield server.shake_hands()


def link_of(server: ZmtpServer) -> ZmtpChannel:
    return cast(ZmtpChannel, server.caller.channel)


def arrive(server: ZmtpServer, said: bytes) -> ZmtpChannel:
    """Say it, and wait until all of it lies there unread."""
    server.say(said)
    link = link_of(server)
    there = 0
    while there < len(said):
        link.wait(PATIENCE_S)
        there = len(link._socket.recv(len(said), socket.MSG_PEEK))
    return link


# --- much at once -------------------------------------------------------------------------------


def test_messages_of_several_frames_come_as_if_they_had_one(server: ZmtpServer) -> None:
    link = arrive(server, message([b"a", b"b", b"c"]) * 300)
    assert [len(link.receive(256)) for _ in range(3)] == [256, 44, 0]


def test_a_fault_behind_many_messages_ends_the_connection(server: ZmtpServer) -> None:
    link = arrive(server, message([b"x"]) * 300 + BAD_FRAME)
    assert [len(link.receive(256)) for _ in range(2)] == [256, 44]
    assert [event for event, _ in link.events()] == ["disconnected"]


def test_nothing_is_heard_behind_a_fault(server: ZmtpServer) -> None:
    link = arrive(server, message([b"x"]) * 300 + BAD_FRAME)
    assert len(link.receive(256)) == 256
    arrive(server, message([b"behind the fault"]))
    assert link.receive(256) == [[b"x"]] * 44
    assert link.receive(256) == []


def test_a_ping_behind_many_messages_is_answered(server: ZmtpServer) -> None:
    link = arrive(server, message([b"x"]) * 300 + PING)
    assert [len(link.receive(256)) for _ in range(2)] == [256, 44]
    server.hear(PONG)


def test_pongs_to_a_broker_that_reads_nothing_do_not_pile_up(server: ZmtpServer) -> None:
    link = link_of(server)
    assert link.send([bytes(64 << 20)])
    waiting_bytes = link._outbox.cost_bytes
    assert waiting_bytes
    for _ in range(20):
        arrive(server, PING * 1000)
        assert link.receive() == []
    assert link._outbox.cost_bytes <= waiting_bytes


def test_one_call_takes_a_few_megabytes(
    server: ZmtpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = message([bytes(60_000)]) * 300
    at = 0

    def full(buffers: list[memoryview]) -> int:
        """More is always there than there is room for."""
        nonlocal at
        begin = at
        for buffer in buffers:
            buffer[:] = endless[at : at + len(buffer)]
            at += len(buffer)
        return at - begin

    link = link_of(server)
    monkeypatch.setattr(Decoder, "receives", False)  # else in C, from the real socket
    monkeypatch.setattr(link, "_receive_into", full)
    taken = sum(len(part) for frames in link.receive() for part in frames)
    assert RECEIVE_BYTES - 60_000 <= taken <= RECEIVE_BYTES + 100_000


# --- failures of the system ---------------------------------------------------------------------


class FailsOnce(socket.socket):
    """Its first `sendmsg` fails."""

    code = 0

    def sendmsg(self, *arguments: Any) -> int:
        code, self.code = self.code, 0
        if code:
            raise OSError(code, os.strerror(code))
        return super().sendmsg(*arguments)


@pytest.mark.parametrize("code", [errno.ENOBUFS, errno.ENOMEM])
def test_nothing_follows_half_a_message_and_what_came_is_heard(
    server: ZmtpServer, code: int
) -> None:
    link = link_of(server)
    assert link.send([b"head", b"A" * (64 << 20)])
    assert link._outbox
    arrive(server, message([b"said before"]))
    failing = link._socket = FailsOnce(fileno=link._socket.detach())
    failing.code = code
    assert not link.send([b"second", b"B" * 100])
    assert not link.send([b"third", b"B" * 100])
    server.caller.until(lambda: server.caller.events[-1] == "disconnected")
    assert server.caller.messages == [[b"said before"]]
    heard = bytearray()
    while piece := server.socket.recv(1 << 20):
        heard += piece
    assert len(heard) < 64 << 20 and b"B" not in heard


# --- names and addresses ------------------------------------------------------------------------


def stand_for(monkeypatch: pytest.MonkeyPatch, port: int, *hosts: str) -> str:
    """A name that has these addresses, in this order."""
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port)) for host in hosts
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    return f"tcp://several.test:{port}"


def test_the_next_address_of_a_name_is_tried_when_one_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ReceiverThread() as receiver:
        listener = receiver.listen(ZmtpTransport(ZmtpOptions()), "tcp://127.0.0.1:0")
        port = parse(listener.address, listening=False).port
        address = stand_for(monkeypatch, port, "127.0.0.2", "127.0.0.3", "127.0.0.1")
        with Caller(connect(address, Limits())) as caller:
            descriptor = caller.channel.fileno()
            assert caller.ask(b"hello") == [b"hello"]
            assert caller.sentences == [f"connected to {address}"]
            assert caller.channel.fileno() == descriptor


def test_the_next_address_of_a_name_is_tried_when_one_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "CONNECT_S", 0.1)
    with ReceiverThread() as receiver, socket.socket() as silent:
        listener = receiver.listen(ZmtpTransport(ZmtpOptions()), "tcp://127.0.0.1:0")
        port = parse(listener.address, listening=False).port
        silent.bind(("127.0.0.2", port))
        silent.listen(0)
        with socket.create_connection(("127.0.0.2", port)):  # the queue has room for one
            address = stand_for(monkeypatch, port, "127.0.0.2", "127.0.0.1")
            with Caller(connect(address, Limits())) as caller:
                assert caller.ask(b"hello") == [b"hello"]


def test_a_name_without_a_broker_behind_any_address_is_refused_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = stand_for(monkeypatch, taken.getsockname()[1], "127.0.0.1", "127.0.0.1")
        with Caller(connect(address, Limits())) as caller:
            caller.until(lambda: caller.events)
            caller.take()
            assert caller.events == ["refused"]
            assert caller.sentences == [f"nobody listens on {address}"]


def test_a_link_local_address_keeps_its_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    sockaddr = ("fe80::1", 7800, 0, 7)
    found = [(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", sockaddr)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    endpoint = parse("tcp://[fe80::1%eth0]:7800", listening=False)
    assert places(endpoint) == [(socket.AF_INET6, sockaddr)]
    assert resolve(endpoint).text() == "tcp://[fe80::1%7]:7800"


def test_a_broker_at_a_link_local_address_is_reached() -> None:
    table = Path("/proc/net/if_inet6")
    lines = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    local = [line for line in lines if line[0].startswith("fe80")]
    if not local:
        pytest.skip("no interface has a link-local address")
    host = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(local[0][0]))
    with ReceiverThread() as receiver:
        transport = ZmtpTransport(ZmtpOptions())
        listener = receiver.listen(transport, f"tcp://[{host}%{local[0][5]}]:0")
        with Caller(connect(listener.address, Limits())) as caller:
            assert caller.ask(b"hello") == [b"hello"]
