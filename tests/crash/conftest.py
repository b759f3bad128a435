"""What the crash tests of the log share: logs on a virtual disk, small enough to try every bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cometmq.environment import Environment
from cometmq.interfaces import Storage
from cometmq.testing.log_kit import LogKit
from cometmq_plugins.group_commit import GroupCommit
from cometmq_plugins.segments import SegmentStorage


def _storage(environment: Environment, data: str) -> Storage:
    return SegmentStorage(
        environment,
        environment.files,
        data,
        persistent=True,
        step_bytes=1 << 12,
        reserve_bytes=1 << 13,
    )


@pytest.fixture
def make_kit() -> Callable[[], LogKit]:
    """Makes a `LogKit` on an empty disk, whose default level is `disk`."""
    return lambda: LogKit(_storage, lambda: GroupCommit("disk", 500))


@pytest.fixture
def kit(make_kit: Callable[[], LogKit]) -> LogKit:
    """One of them."""
    return make_kit()
