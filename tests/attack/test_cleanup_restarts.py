"""A clock in doubt, and deletions that fail, over restarts: neither may cost a log."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cometmq import protocol
from cometmq.broker import groups, jobs, loop_lag
from cometmq.protocol import BrokerInfo, Heartbeat, Operation, Status
from cometmq.testing.clock import VirtualClock
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.files import FaultyFiles
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker
from cometmq_plugins.cleanup.messages import (
    CLEANUP_RUN,
    CLEANUP_STATUS,
    AskStatus,
    CleanupDone,
    CleanupStatus,
    RunCleanup,
)

Scenario = Callable[[Rig, RawClient], Awaitable[None]]
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
SEGMENT = 1 << 20
CAPACITY = 64 << 20
BODY = b"x" * 64_000
NOON_MS = 1_750_075_200_000
"""16 June 2025, 12:00 UTC."""
SETTINGS: dict[str, object] = {
    "log.segment_bytes": SEGMENT,
    "plugin.commitlog.allocate_step_bytes": 1 << 18,
    "plugin.commitlog.reserve_bytes": 1 << 19,
    "plugin.cleanup.timezone": "UTC",
    "plugin.cleanup.check_interval_s": 600.0,
    "plugin.cleanup.retention_interval_s": 1e9,
    "broker.session_timeout_ms": 86_400_000,
}


@pytest.fixture(autouse=True)
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated day must not look at its clock thousands of times."""
    monkeypatch.setattr(jobs, "LOOK_AGAIN_S", 590.0)
    monkeypatch.setattr(loop_lag, "INTERVAL_S", 590.0)
    monkeypatch.setattr(groups, "TICK_S", 590.0)


class Machine:
    """One after the other, brokers run on it; its clock and its disk stay."""

    def __init__(self) -> None:
        self.clock = VirtualClock(NOON_MS)
        self.files = FaultyFiles(CAPACITY)
        self.files.make_folder("/other")
        self.first: list[int] = []
        """Where the segments began that `fill` made."""

    def run(self, scenario: Scenario, *plugins: str, **options: object) -> None:
        """A broker starts, the scenario is played, the broker stops."""
        settings = {**SETTINGS, **{f"plugin.cleanup.{name}": it for name, it in options.items()}}
        environment = VirtualEnvironment(
            clock=VirtualClock(self.clock.wall_ms(), self.clock.uptime_s()), files=self.files
        )
        self.clock = environment.clock

        async def play() -> None:
            async with running_broker(settings, environment=environment, plugins=plugins) as rig:
                await scenario(rig, await rig.client("me"))

        asyncio.run(play())

    async def fill(self, rig: Rig, client: RawClient) -> None:
        """Three segments, which the tests care for."""
        await send(client, 3.2)
        self.first = bases(rig)[:-1]
        assert len(self.first) == 3

    def there(self, rig: Rig) -> int:
        """How many of those are there."""
        return len(set(self.first) & set(bases(rig)))


async def send(client: RawClient, segments: float) -> None:
    for _ in range(max(int(segments * SEGMENT / 64_200), 1)):
        (part,) = await client.send(batch_of("t", 0, BODY))
        assert part.status == Status.OK


async def run_for(rig: Rig, client: RawClient, seconds: float) -> None:
    """Time goes by, and the client is there."""
    for _ in range(8):
        await rig.environment.clock.run_for(seconds / 8)
        client.post(Operation.HEARTBEAT, Heartbeat())
    await rig.settle()


def bases(rig: Rig) -> list[int]:
    return [segment.base for segment in rig.broker.log.segments()]


async def status(client: RawClient) -> CleanupStatus:
    protocol.REPLIES[CLEANUP_STATUS] = CleanupStatus
    answer = await client.ask(CLEANUP_STATUS, AskStatus())
    assert isinstance(answer.header, CleanupStatus), answer
    return answer.header


async def metrics(client: RawClient) -> Any:
    return (await client.ask(Operation.BROKER_INFO, BrokerInfo())).header.metrics


# --- clocks -----------------------------------------------------------------------------------


@pytest.fixture
def machine() -> Machine:
    return Machine()


async def nothing(rig: Rig, client: RawClient) -> None:
    """Only a start and a stop."""


@pytest.mark.parametrize("restarts", [1, 3])
def test_a_restart_does_not_end_the_doubt_in_a_clock(machine: Machine, restarts: int) -> None:
    async def stepped(rig: Rig, client: RawClient) -> None:
        await machine.fill(rig, client)
        machine.clock.step_wall(YEAR_MS)
        await send(client, 0)

    async def later(rig: Rig, client: RawClient) -> None:
        assert (await status(client)).clock_in_doubt_ms > 0.99 * YEAR_MS
        await run_for(rig, client, 20 * HOUR_S)  # over 04:00
        assert machine.there(rig) == 3
        await run_for(rig, client, DAY_S)
        assert (await status(client)).clock_in_doubt_ms == 0
        assert machine.there(rig) == 0, "the clock was right all the time"

    machine.run(stepped)
    for _ in range(restarts):
        machine.run(nothing)
    machine.run(later)


@pytest.mark.parametrize("seconds", [0, 1, 700])
def test_nor_does_a_power_cut_right_after_the_step(machine: Machine, seconds: float) -> None:
    async def stepped(rig: Rig, client: RawClient) -> None:
        await machine.fill(rig, client)
        machine.clock.step_wall(YEAR_MS)
        if seconds:
            await run_for(rig, client, seconds)
        await send(client, 0)
        machine.files = rig.environment.files.crash()

    async def later(rig: Rig, client: RawClient) -> None:
        await run_for(rig, client, 20 * HOUR_S)
        assert machine.there(rig) == 3
        assert (await status(client)).clock_in_doubt_ms > 0.99 * YEAR_MS

    machine.run(stepped, check_interval_s=600.0)
    machine.run(later)


@pytest.mark.parametrize("between", [(), ("-cleanup",)])
def test_a_clock_that_was_wrong_at_a_start_is_doubted_at_the_next_one_too(
    machine: Machine, between: tuple[str, ...]
) -> None:
    async def filled(rig: Rig, client: RawClient) -> None:
        await machine.fill(rig, client)

    async def later(rig: Rig, client: RawClient) -> None:
        await run_for(rig, client, 20 * HOUR_S)
        assert machine.there(rig) == 3
        assert (await status(client)).clock_in_doubt_ms > 0.99 * YEAR_MS

    machine.run(filled)
    machine.clock.step_wall(YEAR_MS)
    machine.run(nothing, *between)
    machine.run(later)


def test_a_day_of_running_confirms_a_clock_however_often_the_machine_is_off(
    machine: Machine,
) -> None:
    doubts = []

    async def filled(rig: Rig, client: RawClient) -> None:
        await machine.fill(rig, client)
        machine.clock.step_wall(YEAR_MS)
        await send(client, 0)

    async def working_day(rig: Rig, client: RawClient) -> None:
        doubts.append((await status(client)).clock_in_doubt_ms > 0)
        await run_for(rig, client, 9 * HOUR_S)
        await send(client, 0)

    machine.run(filled)
    for _ in range(4):
        machine.clock.advance(15 * HOUR_S)
        machine.run(working_day)
    assert doubts == [True, True, True, False]


def test_what_was_confirmed_stays_so(machine: Machine) -> None:
    async def stepped(rig: Rig, client: RawClient) -> None:
        await machine.fill(rig, client)
        machine.clock.step_wall(YEAR_MS)
        await send(client, 0)
        protocol.REPLIES[CLEANUP_RUN] = CleanupDone
        pending = client.post(CLEANUP_RUN, RunCleanup(force=True))
        await run_for(rig, client, 60)
        assert machine.there(rig) == 0
        assert (await client.answer(pending)).status == Status.OK

    async def later(rig: Rig, client: RawClient) -> None:
        assert (await status(client)).clock_in_doubt_ms == 0

    machine.run(stepped)
    machine.run(later)


def test_a_machine_that_sleeps_every_night_ages_its_log(machine: Machine) -> None:
    async def days(rig: Rig, client: RawClient) -> None:
        await machine.fill(rig, client)
        for _ in range(5):
            await run_for(rig, client, 9 * HOUR_S)
            machine.clock.suspend(15 * HOUR_S)
            assert (await status(client)).clock_in_doubt_ms == 0
        await run_for(rig, client, DAY_S)
        assert machine.there(rig) == 0

    machine.run(days)


def test_a_broker_that_is_off_for_hours_is_in_no_doubt(machine: Machine) -> None:
    async def filled(rig: Rig, client: RawClient) -> None:
        await machine.fill(rig, client)

    async def later(rig: Rig, client: RawClient) -> None:
        assert (await status(client)).clock_in_doubt_ms == 0
        assert rig.broker.log.state.clock_ahead.now.ahead_ms == 0

    machine.run(filled)
    for _ in range(4):
        machine.clock.advance(20 * HOUR_S)
        machine.run(later)


# --- disks ------------------------------------------------------------------------------------


def others_use(files: FaultyFiles, percent: float) -> None:
    """Others fill the disk up to this, or empty it."""
    if files.exists("/other/file"):
        files.unlink("/other/file")
    total, free = files.space("/")
    size = int(total * percent / 100) - (total - free)
    if size > 0:
        file = files.open("/other/file", create=True)
        file.truncate(size)
        file.close()


def test_deletions_that_fail_give_up_one_segment_and_say_so(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    async def stuck(rig: Rig, client: RawClient) -> None:
        await send(client, 20.2)
        before = bases(rig)
        others_use(machine.files, 88)
        machine.files.fail("unlink", errno.EACCES, name=".seg", times=None)
        with caplog.at_level(logging.ERROR):
            await run_for(rig, client, 400)
        assert bases(rig) == before[1:]
        told = await status(client)
        assert f"{before[0]:020d}.seg can't be deleted (Permission denied)" in told.stuck
        assert sum(told.stuck in record.message for record in caplog.records) == 1
        assert (await metrics(client))["deletion_stuck"] == 1
        assert told.deleted["forced"] == (0, 0)
        machine.files.mend()
        await run_for(rig, client, 60)
        told = await status(client)
        assert told.stuck == "" and told.used_percent < 85
        assert told.last[0].base == before[0], "it is counted once it is gone"
        assert not machine.files.exists(f"/mq-data/log/{before[0]:020d}.seg")

    machine.run(stuck, check_interval_s=1.0, pause_ms=0)


def test_a_start_goes_on_with_a_deletion_that_failed_also_if_it_fails_again(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    before: list[int] = []

    async def stuck(rig: Rig, client: RawClient) -> None:
        await send(client, 20.2)
        before.extend(bases(rig))
        others_use(machine.files, 88)
        machine.files.fail("unlink", errno.EACCES, name=".seg", times=None)
        await run_for(rig, client, 100)

    async def again(rig: Rig, client: RawClient) -> None:
        with caplog.at_level(logging.ERROR):
            await run_for(rig, client, 100)
        assert bases(rig)[: len(before) - 1] == before[1:]
        assert str(before[0]) in (await status(client)).stuck
        others_use(machine.files, 0)
        machine.files.mend()
        await run_for(rig, client, 10)
        assert not machine.files.exists(f"/mq-data/log/{before[0]:020d}.seg")
        assert (await status(client)).stuck == ""

    machine.run(stuck, check_interval_s=1.0, pause_ms=0)
    machine.run(again, check_interval_s=1.0, pause_ms=0)
    assert "a deletion could not be finished" in caplog.text


def test_a_run_for_old_segments_that_fails_is_tried_until_it_succeeds(machine: Machine) -> None:
    async def days(rig: Rig, client: RawClient) -> None:
        await machine.fill(rig, client)
        machine.files.fail("unlink", errno.EACCES, name=".seg", times=None)
        await run_for(rig, client, 90 * HOUR_S)
        assert machine.there(rig) == 2
        machine.files.mend()
        await run_for(rig, client, 2 * HOUR_S)  # 10:00
        assert machine.there(rig) == 0

    machine.run(days)


def test_a_broker_starts_though_nobody_can_say_how_full_the_disk_is(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(path: str) -> tuple[int, int]:
        raise OSError(errno.EIO, "statvfs", path)

    space = machine.files.space
    monkeypatch.setattr(machine.files, "space", broken)

    async def started(rig: Rig, client: RawClient) -> None:
        await send(client, 1.2)
        assert "disk_used_percent" not in await metrics(client)
        info = (await client.ask(Operation.BROKER_INFO, BrokerInfo())).header
        assert "not known how much used" in str(info)
        monkeypatch.setattr(machine.files, "space", space)
        await run_for(rig, client, 700)
        assert (await status(client)).used_percent > 0

    with caplog.at_level(logging.WARNING):
        machine.run(started)
    assert "can't be judged yet" in caplog.text


# --- operators --------------------------------------------------------------------------------


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_run_on_a_log_in_doubt_is_refused(machine: Machine, dry_run: bool) -> None:
    async def filled(rig: Rig, client: RawClient) -> None:
        await machine.fill(rig, client)

    async def asked(rig: Rig, client: RawClient) -> None:
        assert rig.broker.log.in_doubt
        answer = await client.ask(CLEANUP_RUN, RunCleanup(dry_run))
        assert answer.status == Status.IN_DOUBT, answer
        assert "nothing is deleted while the log is in doubt" in answer.header.detail

    machine.run(filled)
    newest = machine.files.list("/mq-data/log")
    (path,) = [f"/mq-data/log/{name}" for name in sorted(newest) if name.endswith(".seg")][-1:]
    file = machine.files.open(path)
    file.write(len(b"CMB") + 400, [b"\xff" * 8])
    file.close()
    machine.run(asked)
