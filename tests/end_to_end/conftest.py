"""One fresh broker process a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.testing.process import BrokerProcess


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as process:
        yield process
