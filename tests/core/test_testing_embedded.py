"""The embedded broker of tests: its clock, its restart, and what it says of wrong arguments."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cometmq import Message, Producer, PullConsumer
from cometmq.errors import CometError
from cometmq.testing import EmbeddedBroker
from cometmq.testing.clock import VirtualClock
from cometmq.testing.movable_clock import MovableClock


@pytest.mark.parametrize("seconds", [-5, -0.001, float("nan")])
def test_no_clock_of_ours_goes_back(seconds: float) -> None:
    for clock in (VirtualClock(), MovableClock()):
        with pytest.raises(ValueError, match="seconds can't pass: time only goes on"):
            clock.advance(seconds)
    with pytest.raises(ValueError, match="time only goes on"):
        asyncio.run(VirtualClock().run_for(seconds))


def test_a_restart_keeps_the_free_port_that_was_taken(tmp_path: Path) -> None:
    with EmbeddedBroker(data=str(tmp_path), listen="tcp://127.0.0.1:0") as broker:
        address = broker.address
        with Producer(address) as producer:
            producer.send(Message("t", b"before"))
            broker.restart()
            assert broker.address == address and not address.endswith(":0")
            producer.send(Message("t", b"after"))
        with PullConsumer(address, topic="t") as consumer:
            found: set[bytes] = set()
            while len(found) < 2:
                found |= {message.body for message in consumer.poll(timeout=10)}
    assert found == {b"before", b"after"}


def test_a_process_that_never_stops_its_broker_ends_with_what_was_sent(tmp_path: Path) -> None:
    """The broker is there until the producer's end has sent what was still buffered."""
    program = (
        "import sys\n"
        "from cometmq import Message, Producer\n"
        "from cometmq.testing import EmbeddedBroker\n"
        "broker = EmbeddedBroker(data=sys.argv[1]).start()\n"
        "Producer(broker.address, level='disk').send_soon(Message('t', b'late'))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    with (
        EmbeddedBroker(data=str(tmp_path)) as broker,
        PullConsumer(broker.address, topic="t") as consumer,
    ):
        assert [message.body for message in consumer.poll(timeout=10)] == [b"late"]


def test_a_restart_of_what_does_not_run_is_a_start() -> None:
    broker = EmbeddedBroker(listen="tcp://127.0.0.1:0")
    broker.restart()
    try:
        assert not broker.address.endswith(":0")
    finally:
        broker.stop()


@pytest.mark.parametrize(
    "arguments",
    [
        {"settings": {"log.segment_byte": 1 << 20}},
        {"settings": {"log.segment_bytes": 5}},
        {"settings": {"plugin.cleanup.pause_mss": 5}},
        {"plugins": ["longpol"]},
        {"plugins": ["Not a name"]},
    ],
)
def test_wrong_arguments_are_told_as_such(arguments: dict[str, Any]) -> None:
    with pytest.raises(CometError) as caught:
        EmbeddedBroker(**arguments).start()
    assert "the arguments of EmbeddedBroker" in str(caught.value)
    assert "command line" not in str(caught.value)
