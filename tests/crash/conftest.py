"""What the crash tests of the log share: logs small enough to try every bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from cometmq.testing.log_kit import LogKit


@pytest.fixture
def make_kit(make_kit: Callable[..., LogKit]) -> Callable[[], LogKit]:
    """Makes a `LogKit` on an empty disk, whose default level is `disk`."""
    return partial(make_kit, step_bytes=1 << 12, reserve_bytes=1 << 13)
