"""Peers that the broker's own ZMTP endpoint has to bear: memory, descriptors, turns, last words."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.protocol import Fetch, FetchPart, Heartbeat, Operation, Send, Status, unpack
from cometmq.testing.process import BrokerProcess
from cometmq.testing.raw_client import batch_of
from cometmq.testing.zmtp import GREETING, ZmtpPeer, frame, ready, request

MIB = 1 << 20
Word = Callable[[ZmtpPeer], object]


def guest(broker: BrokerProcess) -> ZmtpPeer:
    return ZmtpPeer(broker.address).shake_hands().say_hello()


def begun(size: int, part: bytes) -> bytes:
    """The beginning of a long frame."""
    return struct.pack(">BQ", 2, size) + part


def mechanism(name: bytes) -> bytes:
    return GREETING[:12] + name.ljust(20, b"\0") + bytes(32)


WORDS: list[Word] = [
    lambda peer: None,
    lambda peer: peer.send(b"\xff"),
    lambda peer: peer.send(GREETING),
    lambda peer: peer.shake_hands(),
    lambda peer: peer.shake_hands().send(frame(b"x")),
    lambda peer: peer.shake_hands().say_hello(),
    lambda peer: peer.shake_hands().send(begun(MIB, b"y" * 500)),
    lambda peer: peer.send(b"GET / HTTP/1.1\r\n\r\n"),
    lambda peer: peer.send(b"\x01\x00"),
    lambda peer: peer.send(b"\xff" + bytes(8) + b"\x7f\x01\x05"),
    lambda peer: peer.send(mechanism(b"PLAIN")),
    lambda peer: peer.send(mechanism(b"CURVE")),
    lambda peer: peer.send(GREETING + ready(b"PUB")),
    lambda peer: peer.send(GREETING + ready(b"REQ") + frame(b"", more=True) + frame(b"hi")),
    lambda peer: peer.send(GREETING + ready(b"DEALER", bytes(255)) + frame(b"name")),
    lambda peer: peer.shake_hands().send(frame(b"\x09SUBSCRIBE", command=True)),
]


def test_whoever_comes_and_goes_leaves_nothing_behind(broker: BrokerProcess) -> None:
    chance = random.Random(1)
    files = Path(f"/proc/{broker.pid}/fd")
    with guest(broker) as neighbour:
        before = len(os.listdir(files))
        for word in WORDS * 20:
            with ZmtpPeer(broker.address) as peer:
                if chance.random() < 0.5:  # its close is a reset
                    linger = struct.pack("ii", 1, 0)
                    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                word(peer)
        until_s = time.monotonic() + 10
        while len(os.listdir(files)) > before and time.monotonic() < until_s:
            time.sleep(0.02)
        assert len(os.listdir(files)) == before
        assert neighbour.ask(Operation.HEARTBEAT, Heartbeat())[0] == Status.OK


@pytest.mark.parametrize(
    "unfinished",
    [
        begun(MIB, b"x"),
        begun(7000, bytes(6999)),
        frame(b"", more=True) * 15,
        frame(bytes(250), more=True) * 15,
    ],
    ids=["a claim", "a small frame", "no bytes", "few bytes"],
)
def test_two_hundred_unfinished_messages_take_what_was_said_and_little_more(
    broker: BrokerProcess, unfinished: bytes
) -> None:
    peers = [guest(broker) for _ in range(200)]
    before = broker.anonymous_bytes()
    for peer in peers:
        peer.send(unfinished)
    with guest(broker) as neighbour:
        assert neighbour.ask(Operation.HEARTBEAT, Heartbeat())[0] == Status.OK
    assert broker.anonymous_bytes() - before < 200 * len(unfinished) + 16 * MIB
    for peer in peers:
        peer.close()


def test_any_pieces_of_a_conversation_are_the_same_conversation(broker: BrokerProcess) -> None:
    chance = random.Random(4)
    batch = batch_of("t", 0, b"body")
    header = Send([len(batch)], [0])
    for _ in range(20):
        with guest(broker) as peer:
            said = b"".join(request(at, Operation.SEND, header, batch) for at in range(2, 7))
            said += frame(b"\x04PING\0\0ab", command=True)
            said += request(7, Operation.SEND, header, batch)
            while said:
                size = chance.choice((1, 1, 2, 3, 9, 60, 200))
                peer.send(said[:size])
                said = said[size:]
            replies = [unpack(peer.read_message()) for _ in range(6)]
            assert [(reply[0], reply[1]) for reply in replies] == [(at, 0) for at in range(2, 8)]


def test_what_was_said_before_a_close_is_stored(broker: BrokerProcess) -> None:
    """Both halves, and with nothing read."""
    batch = batch_of("t", 0, b"body")
    said = b"".join(
        request(at, Operation.SEND, Send([len(batch)], [0]), batch) for at in range(2, 102)
    )
    for half in (True, False):
        with guest(broker) as peer:
            peer.send(said)
            if half:
                peer.socket.shutdown(socket.SHUT_WR)
                assert peer.ended()
    with guest(broker) as reader:
        until_s = time.monotonic() + 10
        while stored(reader) < 200 and time.monotonic() < until_s:
            time.sleep(0.02)
        assert stored(reader) == 200


def stored(reader: ZmtpPeer) -> int:
    """The end of the first queue."""
    status, reply = reader.ask(Operation.FETCH, Fetch([FetchPart("t", 0, 0)], max_bytes=1))
    assert status == Status.OK
    return max((int(result.max_offset) for result in reply.results), default=0)


def test_what_was_acknowledged_before_a_stop_is_stored_and_what_was_stored_is_told(
    tmp_path: Path,
) -> None:
    batch = batch_of("t", 0, b"body")
    header = Send([len(batch)], [0])
    with BrokerProcess(tmp_path) as broker:
        peer = guest(broker)
        said = b"".join(request(at, Operation.SEND, header, batch) for at in range(2, 502))
        peer.send(said)
        peer.read_message()  # it is at it
        assert broker.stop() == 0
        told = 1
        try:
            while True:
                told += unpack(peer.read_message())[1] == Status.OK
        except ConnectionError:
            peer.close()
        broker.start()
        with guest(broker) as reader:
            assert stored(reader) == told
