"""`memory` keeps the same contract as `commitlog`, and nothing on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.errors import NoSpace
from cometmq.interfaces import Storage
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.storage_contract import StorageContract
from cometmq_plugins.commitlog import CommitLogOptions, CommitLogPlugin
from cometmq_plugins.memory import MemoryOptions, MemoryPlugin


class TestMemory(StorageContract):
    @pytest.fixture(autouse=True)
    def plugin(self) -> None:
        self._plugin = MemoryPlugin(MemoryOptions())

    def make(self, folder: str) -> Storage:
        return self._plugin.storage(VirtualEnvironment(), folder)


def test_it_says_that_nothing_survives() -> None:
    environment = VirtualEnvironment()
    assert not MemoryPlugin(MemoryOptions()).storage(environment, "/data").persistent
    assert CommitLogPlugin(CommitLogOptions()).storage(environment, "/data").persistent


def test_nothing_is_written_to_the_disk(tmp_path: Path) -> None:
    environment = VirtualEnvironment()
    storage = MemoryPlugin(MemoryOptions()).storage(environment, str(tmp_path / "data"))
    storage.open()
    storage.begin(0)
    assert list(tmp_path.iterdir()) == []
    assert not environment.files.exists(str(tmp_path))


def test_it_is_full_at_its_capacity() -> None:
    plugin = MemoryPlugin(MemoryOptions(capacity_bytes=64 << 20))
    storage = plugin.storage(VirtualEnvironment(), "/data")
    storage.open()
    storage.begin(0)
    storage.allocate(16 << 20)
    with pytest.raises(NoSpace):
        storage.allocate((64 << 20) + 1)
    assert storage.usage()["bytes_total"] == 64 << 20
