"""The pytest plugin of CometMQ: `def test_something(mq_broker): Producer(mq_broker.address) …`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cometmq.testing.embedded import EmbeddedBroker


@pytest.fixture
def mq_broker() -> Iterator[EmbeddedBroker]:
    """A broker in this process, in memory, fresh for every test; `mq_broker.address` is where
    clients connect and `mq_broker.clock` moves its time."""
    # Imported here, so that a test run that does not use the fixture does not pay for it.
    from cometmq.testing.embedded import EmbeddedBroker

    with EmbeddedBroker() as broker:
        yield broker
