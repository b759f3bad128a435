"""What tests of the log share: logs on a virtual disk, stored by `commitlog`'s segments."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cometmq.environment import Environment
from cometmq.interfaces import FlushPolicy, Storage
from cometmq.testing.log_kit import LogKit
from cometmq_plugins.group_commit import GroupCommit
from cometmq_plugins.segments import SegmentStorage

MakeKit = Callable[..., LogKit]


def _policy() -> FlushPolicy:
    return GroupCommit("disk", 500)


def _kit(
    make_policy: Callable[[], FlushPolicy] = _policy,
    *,
    step_bytes: int = 1 << 16,
    reserve_bytes: int = 1 << 17,
) -> LogKit:
    def make_storage(environment: Environment, data: str) -> Storage:
        return SegmentStorage(
            environment,
            environment.files,
            data,
            persistent=True,
            step_bytes=step_bytes,
            reserve_bytes=reserve_bytes,
        )

    return LogKit(make_storage, make_policy)


@pytest.fixture
def make_kit() -> MakeKit:
    """Makes a `LogKit` on an empty disk; its arguments are the flush policy's maker, and sizes of
    the storage."""
    return _kit


@pytest.fixture
def kit(make_kit: MakeKit) -> LogKit:
    """A `LogKit` whose default level is `disk`."""
    return make_kit()
