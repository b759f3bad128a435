"""Producers whose broker comes and goes at the worst moment: no report may turn out false."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import pytest

from cometmq.batch import decode_records, parse
from cometmq.client.batching import Receipt
from cometmq.client.producer_options import ProducerOptions
from cometmq.client.producing import Accumulator
from cometmq.errors import Retryable
from cometmq.message import Message
from cometmq.protocol import Operation
from cometmq.testing.client_rig import ClientRig


class ProducerRig(ClientRig):
    """The producer's inside, before a scripted broker."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.producer = Accumulator(self.engine, ProducerOptions(**options), self, nullcontext())

    def send_soon(self, message: Message) -> Receipt:
        return self.run(self.producer.append(message, None))

    def stored(self) -> list[bytes]:
        """All bodies that the broker has."""
        return [
            record[1]
            for batches in self.broker.stored.values()
            for batch in batches
            for record in decode_records(parse(batch))
        ]


def test_what_was_reported_as_not_stored_does_not_get_stored_later() -> None:
    rig = ProducerRig(linger_ms=10_000, send_timeout=30)
    rig.broker.hold(Operation.SEND)
    first = rig.send_soon(Message("t", b"first", sharding_key="a"))
    early = rig.send_soon(Message("t", b"early", sharding_key="b"))
    rig.pass_time(5)
    late = rig.send_soon(Message("t", b"late", sharding_key="c"))
    (request,) = rig.broker.asked(Operation.SEND)
    request.answer(rig.broker.default(request) or pytest.fail())
    rig.broker.full = True
    rig.step()
    assert first.done() and not early.done()
    rig.pass_time(26)
    assert isinstance(early.exception(), Retryable), "its 30 s are over, and it never went out"
    assert not late.done()
    rig.broker.full = False
    rig.broker.on.clear()
    rig.pass_time(1)
    assert late.done() and late.exception() is None
    assert rig.stored() == [b"first", b"late"]


INTERRUPTED = """
import signal
from cometmq import Message, Producer
from cometmq.testing.scripted_broker import ScriptedBroker, ScriptedChannel

shots = []

class Channel(ScriptedChannel):
    def receive(self, max_messages=256):
        messages = super().receive(max_messages)
        if messages and len(shots) < 20:
            # What was received is in no hands yet.
            shots.append(signal.raise_signal(signal.SIGINT))
        return messages

class Broker(ScriptedBroker):
    def connect(self, address, limits):
        channel = Channel(self)
        self.channels.append(channel)
        return channel

interrupts = 0
with Producer("scripted://x", connect=Broker().connect, send_timeout=600) as producer:
    for number in range(30):
        try:
            producer.send(Message("t", b"one"))
            producer.send_many([Message("t", b"many")] * 3)
        except KeyboardInterrupt:
            interrupts += 1
    producer.send(Message("t", b"last"))
assert 0 < interrupts <= len(shots) == 20
print("alive")
"""


def test_ctrl_c_in_the_middle_of_a_change_leaves_a_client_that_works() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.stdout == "alive\n", done.stderr
