"""A turn of the event loop is bounded by what is answered too, not only by what is asked."""

from __future__ import annotations

import random
import time
from pathlib import Path

from cometmq import Message, Producer
from cometmq.protocol import Fetch, FetchPart, Heartbeat, Operation, Status
from cometmq.testing.process import BrokerProcess
from cometmq.testing.zmtp import ZmtpPeer, request


def test_big_fetches_of_others_do_not_hold_a_small_request(tmp_path: Path) -> None:
    """Without turns for fetches one heartbeat took four seconds of these."""
    with BrokerProcess(tmp_path) as broker:
        chance = random.Random(1)
        with Producer(broker.address) as producer:
            for _ in range(20):
                producer.send(Message("t", chance.randbytes(900_000)))
        fetch = request(2, Operation.FETCH, Fetch([FetchPart("t", q, 0) for q in range(4)]))
        peers = [ZmtpPeer(broker.address, 30).shake_hands().say_hello() for _ in range(129)]
        neighbour = peers.pop()
        for peer in peers:
            peer.send(fetch * 16)
        worst_s = 0.0
        until_s = time.monotonic() + 4
        while time.monotonic() < until_s:
            start_s = time.monotonic()
            assert neighbour.ask(Operation.HEARTBEAT, Heartbeat())[0] == Status.OK
            worst_s = max(worst_s, time.monotonic() - start_s)
        for peer in [neighbour, *peers]:
            peer.close()
        assert worst_s < 1.0, worst_s
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()
