"""What the attacks by network share: a broker that must end well, whatever was done to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.testing.process import BrokerProcess


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, "--plugins=memory") as broker:
        yield broker
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()
