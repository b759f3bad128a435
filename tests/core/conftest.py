"""What the tests of the log share: logs on a virtual disk, stored by `commitlog`'s segments."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cometmq.environment import Environment
from cometmq.interfaces import FlushPolicy, Storage
from cometmq.testing.log_kit import LogKit
from cometmq_plugins.group_commit import GroupCommit
from cometmq_plugins.segments import SegmentStorage

MakeKit = Callable[..., LogKit]


def _storage(environment: Environment, data: str) -> Storage:
    return SegmentStorage(
        environment,
        environment.files,
        data,
        persistent=True,
        step_bytes=1 << 16,
        reserve_bytes=1 << 17,
    )


def _policy() -> FlushPolicy:
    return GroupCommit("disk", 500)


@pytest.fixture
def make_kit() -> MakeKit:
    """Makes a `LogKit` on an empty disk; its argument makes the flush policy."""
    return lambda policy=_policy: LogKit(_storage, policy)


@pytest.fixture
def kit(make_kit: MakeKit) -> LogKit:
    """A `LogKit` whose default level is `disk`."""
    return make_kit()
