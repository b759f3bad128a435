"""`flush-async`: by the interval, and at once for who waits for the disk."""

from __future__ import annotations

import asyncio

from cometmq.environment import Environment
from cometmq.errors import LogError
from cometmq.interfaces import FlushPolicy, Storage
from cometmq.testing.environment import VirtualEnvironment
from cometmq_plugins.commitlog import CommitLogOptions, CommitLogPlugin
from cometmq_plugins.flush_async import FlushAsyncOptions, FlushAsyncPlugin


class StorageSyncer:
    """A real storage on virtual files, synced as the log does it."""

    def __init__(self) -> None:
        self.virtual = VirtualEnvironment()
        self.environment: Environment = self.virtual
        self.appended = 0
        self.synced = 0
        self._storage: Storage = CommitLogPlugin(CommitLogOptions()).storage(
            self.environment, "/data"
        )
        self._storage.open()
        self._storage.begin(0)

    def write(self) -> None:
        self._storage.write(self.appended, [b"0123456789"])
        self.appended += 10

    async def sync(self) -> float:
        covered = self.appended
        took_s = await self._storage.sync()
        self.synced = covered
        return took_s

    def sync_blocking(self) -> float:
        raise LogError("flush-async never syncs in the loop")


def started(syncer: StorageSyncer) -> FlushPolicy:
    policy = FlushAsyncPlugin(FlushAsyncOptions()).flush_policy()
    policy.start(syncer)
    return policy


def test_its_level_is_memory() -> None:
    policy = started(StorageSyncer())
    assert (policy.default_level, policy.interval_ms) == ("memory", 500)


def test_the_disk_follows_by_the_interval() -> None:
    async def run() -> None:
        syncer = StorageSyncer()
        policy = started(syncer)
        clock, files = syncer.virtual.clock, syncer.virtual.files
        for number in range(1, 10):
            syncer.write()
            policy.appended(awaited=False, alone=False)
            await clock.run_for(0.11)
            assert syncer.synced == (50 if number >= 5 else 0)
        await clock.run_for(1.0)
        assert syncer.synced == 90
        assert files.synced == 2

    asyncio.run(run())


def test_who_waits_for_the_disk_gets_a_sync_at_once() -> None:
    async def run() -> None:
        syncer = StorageSyncer()
        policy = started(syncer)
        for _ in range(5):
            syncer.write()
            policy.appended(awaited=True, alone=True)
            await syncer.virtual.clock.run_for(0)
        assert syncer.synced == 50

    asyncio.run(run())


def test_a_reader_that_waits_gets_a_sync_at_once() -> None:
    async def run() -> None:
        syncer = StorageSyncer()
        policy = started(syncer)
        syncer.write()
        policy.appended(awaited=False, alone=False)
        policy.demand()
        await syncer.virtual.clock.run_for(0)
        assert syncer.synced == 10

    asyncio.run(run())


def test_while_a_sync_is_held_the_next_one_waits() -> None:
    async def run() -> None:
        syncer = StorageSyncer()
        policy = started(syncer)
        clock, files = syncer.virtual.clock, syncer.virtual.files
        files.hold_syncs()
        for _ in range(3):
            syncer.write()
            policy.appended(awaited=True, alone=False)
            await clock.run_for(0)
        assert (files.held, syncer.synced) == (1, 0)
        files.release_syncs(1)
        await clock.run_for(0)
        assert (files.held, syncer.synced) == (1, 10)
        files.release_syncs()
        await clock.run_for(0)
        assert syncer.synced == 30

    asyncio.run(run())


def test_a_stop_syncs_what_is_left() -> None:
    async def run() -> None:
        syncer = StorageSyncer()
        policy = started(syncer)
        syncer.write()
        policy.appended(awaited=False, alone=False)
        await policy.stop()
        assert syncer.synced == 10

    asyncio.run(run())
