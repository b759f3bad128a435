"""Group commit as `flush-sync` does it."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest

from cometmq.environment import Environment
from cometmq.errors import LogStopped
from cometmq.interfaces import FlushPolicy
from cometmq.testing.environment import VirtualEnvironment
from cometmq_plugins.flush_sync import FlushSyncOptions, FlushSyncPlugin


class FakeSyncer:
    """A log whose syncs a test lets end."""

    def __init__(self) -> None:
        self.virtual = VirtualEnvironment()
        self.environment: Environment = self.virtual
        self.appended = 0
        self.synced = 0
        self.begun = 0
        self.in_loop = 0
        self.sync_takes_s = 0.0002
        self.hand_over_takes_s = 0.0
        self.answers_take_s = 0.0
        self.error: Exception | None = None
        self._running: list[asyncio.Future[None]] = []

    async def sync(self) -> float:
        self.begun += 1
        covered = self.appended
        self._running.append(asyncio.get_running_loop().create_future())
        await self._running[-1]
        self.virtual.clock.advance(self.hand_over_takes_s)
        self._end(covered)
        return self.sync_takes_s

    def sync_blocking(self) -> float:
        self.in_loop += 1
        self._end(self.appended)
        self.virtual.clock.advance(self.answers_take_s)
        return self.sync_takes_s

    def _end(self, covered: int) -> None:
        self.virtual.clock.advance(self.sync_takes_s)
        if self.error is not None:
            raise self.error
        self.synced = max(self.synced, covered)

    async def turn(self) -> None:
        """Let tasks run."""
        for _ in range(5):
            await asyncio.sleep(0)

    async def let_end(self) -> None:
        """The oldest sync ends."""
        self._running.pop(0).set_result(None)
        await self.turn()

    @property
    def running(self) -> int:
        return len(self._running)


def started(syncer: FakeSyncer, options: FlushSyncOptions | None = None) -> FlushPolicy:
    policy = FlushSyncPlugin(options or FlushSyncOptions()).flush_policy()
    policy.start(syncer)
    return policy


def put(syncer: FakeSyncer, policy: FlushPolicy, awaited: bool, alone: bool = False) -> None:
    """One drain."""
    syncer.appended += 10
    policy.appended(awaited, alone)


def test_its_level_is_disk() -> None:
    policy = started(FakeSyncer())
    assert (policy.default_level, policy.interval_ms) == ("disk", 500)


def test_an_awaited_drain_starts_a_sync_and_later_ones_share_the_next() -> None:
    async def run() -> None:
        syncer = FakeSyncer()
        policy = started(syncer)
        put(syncer, policy, awaited=True)
        await syncer.turn()
        assert syncer.running == 1
        for _ in range(3):
            put(syncer, policy, awaited=True)
        await syncer.turn()
        assert (syncer.begun, syncer.running) == (1, 1)
        await syncer.let_end()
        assert (syncer.begun, syncer.running, syncer.synced) == (2, 1, 10)
        await syncer.let_end()
        assert (syncer.begun, syncer.running, syncer.synced) == (2, 0, 40)

    asyncio.run(run())


def test_what_nobody_awaits_is_synced_within_the_interval() -> None:
    async def run() -> None:
        syncer = FakeSyncer()
        policy = started(syncer, FlushSyncOptions(flush_interval_ms=200))
        put(syncer, policy, awaited=False)
        await syncer.virtual.clock.run_for(0.199)
        put(syncer, policy, awaited=False)
        assert syncer.begun == 0
        await syncer.virtual.clock.run_for(0.002)
        assert syncer.begun == 1
        await syncer.let_end()
        assert syncer.synced == 20
        await syncer.virtual.clock.run_for(10)
        assert syncer.begun == 1

    asyncio.run(run())


def test_what_came_unawaited_during_a_sync_is_not_forgotten() -> None:
    async def run() -> None:
        syncer = FakeSyncer()
        policy = started(syncer)
        put(syncer, policy, awaited=True)
        await syncer.turn()
        put(syncer, policy, awaited=False)
        await syncer.let_end()
        assert (syncer.synced, syncer.running) == (10, 0)
        await syncer.virtual.clock.run_for(0.6)
        assert syncer.running == 1
        await syncer.let_end()
        assert syncer.synced == 20

    asyncio.run(run())


def test_a_demand_starts_a_sync_or_one_behind_the_running_one() -> None:
    async def run() -> None:
        syncer = FakeSyncer()
        policy = started(syncer)
        put(syncer, policy, awaited=False)
        policy.demand()
        await syncer.turn()
        assert syncer.running == 1
        put(syncer, policy, awaited=False)
        policy.demand()
        await syncer.let_end()
        assert (syncer.synced, syncer.running) == (10, 1)
        await syncer.let_end()
        assert (syncer.synced, syncer.running) == (20, 0)

    asyncio.run(run())


def test_a_lone_waiter_is_served_in_the_loop_once_syncs_are_known_to_be_short() -> None:
    async def run() -> None:
        syncer = FakeSyncer()
        policy = started(syncer)
        put(syncer, policy, awaited=True, alone=True)
        assert syncer.in_loop == 0
        await syncer.turn()
        await syncer.let_end()
        put(syncer, policy, awaited=True, alone=True)
        assert (syncer.in_loop, syncer.synced) == (1, 20)
        put(syncer, policy, awaited=True, alone=False)
        await syncer.turn()
        assert (syncer.in_loop, syncer.running) == (1, 1)
        put(syncer, policy, awaited=True, alone=True)
        assert syncer.in_loop == 1
        await syncer.let_end()
        await syncer.let_end()

    asyncio.run(run())


def test_one_long_sync_ends_that_at_once_and_trust_comes_back_slowly() -> None:
    async def run() -> None:
        syncer = FakeSyncer()
        policy = started(syncer)
        put(syncer, policy, awaited=True)
        await syncer.turn()
        await syncer.let_end()
        syncer.sync_takes_s = 0.05
        put(syncer, policy, awaited=True, alone=True)
        assert syncer.in_loop == 1
        syncer.sync_takes_s = 0.0002
        for _ in range(5):
            put(syncer, policy, awaited=True, alone=True)
            await syncer.turn()
            await syncer.let_end()
        assert syncer.in_loop == 1
        for _ in range(30):
            put(syncer, policy, awaited=True, alone=True)
            await syncer.turn()
            if syncer.running:
                await syncer.let_end()
        assert syncer.in_loop > 1

    asyncio.run(run())


def test_neither_a_slow_hand_over_nor_slow_answers_make_a_sync_a_slow_one() -> None:
    async def run() -> None:
        syncer = FakeSyncer()
        syncer.hand_over_takes_s = syncer.answers_take_s = 0.005
        policy = started(syncer)
        put(syncer, policy, awaited=True)
        await syncer.turn()
        await syncer.let_end()
        for _ in range(3):
            put(syncer, policy, awaited=True, alone=True)
        assert syncer.in_loop == 3

    asyncio.run(run())


def test_zero_switches_syncs_in_the_loop_off() -> None:
    async def run() -> None:
        syncer = FakeSyncer()
        syncer.sync_takes_s = 0.0
        policy = started(syncer, FlushSyncOptions(sync_in_loop_below_us=0))
        for _ in range(4):
            put(syncer, policy, awaited=True, alone=True)
            await syncer.turn()
            await syncer.let_end()
        assert (syncer.in_loop, syncer.begun) == (0, 4)

    asyncio.run(run())


def test_a_stop_syncs_what_is_left() -> None:
    async def run() -> None:
        syncer = FakeSyncer()
        policy = started(syncer)
        put(syncer, policy, awaited=True)
        await syncer.turn()
        put(syncer, policy, awaited=False)
        stop = asyncio.ensure_future(policy.stop())
        await syncer.let_end()
        assert not stop.done()
        await syncer.let_end()
        await stop
        assert syncer.synced == syncer.appended == 20
        policy.demand()
        await syncer.turn()
        assert syncer.running == 0

    asyncio.run(run())


def test_a_stop_with_nothing_left_syncs_nothing() -> None:
    async def run() -> None:
        syncer = FakeSyncer()
        await started(syncer).stop()
        assert syncer.begun == 0

    asyncio.run(run())


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), LogStopped("ended")])
def test_a_failed_sync_is_told_once_and_never_repeated(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        syncer = FakeSyncer()
        policy = started(syncer)
        syncer.error = error
        put(syncer, policy, awaited=True)
        await syncer.turn()
        put(syncer, policy, awaited=True)
        await syncer.let_end()
        put(syncer, policy, awaited=True, alone=True)
        put(syncer, policy, awaited=False)
        policy.demand()
        await syncer.virtual.clock.run_for(5)
        await policy.stop()
        assert (syncer.begun, syncer.in_loop, syncer.running) == (1, 0, 0)

    with caplog.at_level(logging.ERROR, logger="cometmq.flush"):
        asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == [
        f"the log is no longer synced: {error}"
    ]


def test_a_failed_sync_in_the_loop_ends_it_too(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        syncer = FakeSyncer()
        policy = started(syncer)
        put(syncer, policy, awaited=True)
        await syncer.turn()
        await syncer.let_end()
        syncer.error = OSError(errno.EIO, "Input/output error")
        for _ in range(3):
            put(syncer, policy, awaited=True, alone=True)
        await syncer.turn()
        assert (syncer.in_loop, syncer.begun) == (1, 1)

    asyncio.run(run())
    assert len(caplog.records) == 1
