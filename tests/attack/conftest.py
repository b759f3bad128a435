"""What the attacks on the log share: one on a virtual disk."""

from __future__ import annotations

import pytest

from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.log_kit import LogKit
from cometmq_plugins.group_commit import GroupCommit
from cometmq_plugins.segments import SegmentStorage


@pytest.fixture
def kit() -> LogKit:
    def storage(environment: object, data: str) -> SegmentStorage:
        assert isinstance(environment, VirtualEnvironment)
        return SegmentStorage(
            environment,
            environment.files,
            data,
            persistent=True,
            step_bytes=1 << 16,
            reserve_bytes=1 << 17,
        )

    return LogKit(storage, lambda: GroupCommit("disk", 500))
