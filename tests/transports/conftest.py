"""What the tests of transports share: a receiver whose time is theirs, and short paths."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq.real_environment import RealEnvironment
from cometmq.testing.clock import VirtualClock
from cometmq.testing.transport_ends import ReceiverThread


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket, wherever pytest keeps its own."""
    with tempfile.TemporaryDirectory(prefix="mq-") as name:
        yield Path(name)


@pytest.fixture
def clock() -> VirtualClock:
    """The time of `receiver`."""
    return VirtualClock()


@pytest.fixture
def receiver(clock: VirtualClock) -> Iterator[ReceiverThread]:
    """A receiver for which time stands still, unless it is passed."""
    with ReceiverThread(RealEnvironment(clock=clock)) as receiver:
        yield receiver


@pytest.fixture
def pass_time(clock: VirtualClock, receiver: ReceiverThread) -> Callable[[int], None]:
    """Lets so many seconds go by, one at a time."""

    def pass_time(seconds: int) -> None:
        for _ in range(seconds):
            receiver.call(lambda: None)
            clock.advance(1.0)
        receiver.call(lambda: None)

    return pass_time
