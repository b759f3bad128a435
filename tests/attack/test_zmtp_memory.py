"""What peers can make the broker's own ZMTP endpoint hold: it goes with them, and has bounds."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.protocol import Heartbeat, Operation, Status
from cometmq.testing.process import BrokerProcess
from cometmq.testing.zmtp import ZmtpPeer

MIB = 1 << 20
FRAME_BYTES = MIB + (64 << 10)
HALF_SAID = (struct.pack(">BQ", 3, FRAME_BYTES) + bytes(FRAME_BYTES)) * 15
"""A message of 16 frames without its last one."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, "--plugins=zmtp,-zeromq,memory") as broker:
        yield broker
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()


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
