"""What peers can make the broker's own ZMTP endpoint hold: it goes with them, and has bounds."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq import Message, Producer
from cometmq.protocol import Fetch, FetchPart, Heartbeat, Operation, Send, Status, unpack
from cometmq.testing.process import BrokerProcess
from cometmq.testing.raw_client import batch_of
from cometmq.testing.zmtp import ZmtpPeer, request

MIB = 1 << 20
FRAME_BYTES = MIB + (64 << 10)
HALF_SAID = (struct.pack(">BQ", 3, FRAME_BYTES) + bytes(FRAME_BYTES)) * 15
"""A message of 16 frames without its last one."""


def guest(broker: BrokerProcess) -> ZmtpPeer:
    return ZmtpPeer(broker.address, 30).shake_hands().say_hello()


def settled(broker: BrokerProcess) -> int:
    """Its memory once all that was said so far has been read."""
    with guest(broker) as neighbour:
        for _ in range(20):
            time.sleep(0.02)
            assert neighbour.ask(Operation.HEARTBEAT, Heartbeat())[0] == Status.OK
    return broker.anonymous_bytes()


def test_what_a_closed_connection_had_not_finished_is_given_back(broker: BrokerProcess) -> None:
    held = []
    for _ in range(4):
        peers = [guest(broker) for _ in range(10)]
        for peer in peers:
            peer.send(HALF_SAID)
            peer.close()
        held.append(settled(broker))
    assert held[-1] < held[0] + 100 * MIB, held


def test_a_kilobyte_of_a_claimed_megabyte_takes_a_kilobyte(broker: BrokerProcess) -> None:
    peers = [guest(broker) for _ in range(100)]
    before = broker.anonymous_bytes()
    for peer in peers:
        peer.send(struct.pack(">BQ", 2, MIB) + bytes(1024))
    grown = settled(broker) - before
    for peer in peers:
        peer.close()
    assert grown < 20 * MIB, grown


MOST_BYTES = 128 * MIB


@pytest.fixture
def bounded(tmp_path: Path) -> Iterator[BrokerProcess]:
    prefix = ("env", f"MQ_LIMITS__HELD_BYTES={MOST_BYTES}")
    with BrokerProcess(tmp_path, "--plugins=memory", prefix=prefix) as broker:
        yield broker
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()


def say(peer: ZmtpPeer, data: bytes) -> None:
    try:
        peer.send(data)
    except ConnectionError:
        pass  # it was dropped meanwhile


def test_unfinished_messages_of_many_have_a_bound_together(bounded: BrokerProcess) -> None:
    with guest(bounded) as honest:
        before = bounded.anonymous_bytes()
        begun = batch_of("t", 0, bytes(900_000))
        said = request(2, Operation.SEND, Send([len(begun)], [0]), begun)
        honest.send(said[:500_000])
        peers = [guest(bounded) for _ in range(30)]
        for peer in peers:
            say(peer, HALF_SAID)
        grown = settled(bounded) - before
        assert grown < MOST_BYTES + 64 * MIB, grown
        honest.send(said[500_000:])  # who held little was not dropped for what others hold
        assert unpack(honest.read_message())[1] == Status.OK
        for peer in peers:
            peer.close()


def test_unread_replies_of_many_have_a_bound_together(bounded: BrokerProcess) -> None:
    with Producer(bounded.address) as producer:
        producer.send(Message("t", bytes(900_000)))
    fetch = request(2, Operation.FETCH, Fetch([FetchPart("t", q, 0) for q in range(4)]))
    before = bounded.anonymous_bytes()
    peers = [guest(bounded) for _ in range(60)]
    for peer in peers:
        say(peer, fetch * 12)
    grown = settled(bounded) - before
    assert grown < MOST_BYTES + 64 * MIB, grown
    for peer in peers:
        peer.close()


def test_who_never_ends_a_message_is_silent_however_much_it_says(tmp_path: Path) -> None:
    prefix = ("env", "MQ_BROKER__SESSION_TIMEOUT_MS=1000")
    with BrokerProcess(tmp_path, "--plugins=memory", prefix=prefix) as broker:
        with guest(broker) as slow, pytest.raises(ConnectionError):
            slow.send(struct.pack(">BQ", 2, MIB))
            for _ in range(200):
                time.sleep(0.05)
                slow.send(b"x")
