"""A clock in doubt, and deletions that fail, over restarts: neither may cost a log."""

from __future__ import annotations

import errno
import logging

import pytest

from cometmq.protocol import Status
from cometmq.testing.cleanup_rig import CleanupRig
from cometmq_plugins.cleanup.messages import (
    CLEANUP_RUN,
    CLEANUP_STATUS,
    AskStatus,
    CleanupDone,
    CleanupStatus,
    RunCleanup,
)

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
YEAR_MS = 365 * 24 * 3_600_000


async def status(rig: CleanupRig) -> CleanupStatus:
    return await rig.ask(CLEANUP_STATUS, AskStatus(), CleanupStatus)


# --- clocks -----------------------------------------------------------------------------------


@pytest.fixture
def machine() -> CleanupRig:
    return CleanupRig()


async def nothing(rig: CleanupRig) -> None:
    """Only a start and a stop."""


@pytest.mark.parametrize("restarts", [1, 3])
def test_a_restart_does_not_end_the_doubt_in_a_clock(machine: CleanupRig, restarts: int) -> None:
    async def stepped(rig: CleanupRig) -> None:
        await rig.fill_three()
        machine.clock.step_wall(YEAR_MS)
        await rig.fill(0)

    async def later(rig: CleanupRig) -> None:
        assert (await status(rig)).clock_in_doubt_ms > 0.99 * YEAR_MS
        await rig.run_for(20 * HOUR_S)  # over 04:00
        assert rig.there() == 3
        await rig.run_for(DAY_S)
        assert (await status(rig)).clock_in_doubt_ms == 0
        assert rig.there() == 0, "the clock was right all the time"

    machine.run(stepped)
    for _ in range(restarts):
        machine.run(nothing)
    machine.run(later)


@pytest.mark.parametrize("seconds", [0, 1, 700])
def test_nor_does_a_power_cut_right_after_the_step(machine: CleanupRig, seconds: float) -> None:
    async def stepped(rig: CleanupRig) -> None:
        await rig.fill_three()
        machine.clock.step_wall(YEAR_MS)
        if seconds:
            await rig.run_for(seconds)
        await rig.fill(0)
        machine.files = rig.files.crash()

    async def later(rig: CleanupRig) -> None:
        await rig.run_for(20 * HOUR_S)
        assert rig.there() == 3
        assert (await status(rig)).clock_in_doubt_ms > 0.99 * YEAR_MS

    machine.run(stepped, check_interval_s=600.0)
    machine.run(later)


@pytest.mark.parametrize("between", [(), ("-cleanup",)])
def test_a_clock_that_was_wrong_at_a_start_is_doubted_at_the_next_one_too(
    machine: CleanupRig, between: tuple[str, ...]
) -> None:
    async def filled(rig: CleanupRig) -> None:
        await rig.fill_three()

    async def later(rig: CleanupRig) -> None:
        await rig.run_for(20 * HOUR_S)
        assert rig.there() == 3
        assert (await status(rig)).clock_in_doubt_ms > 0.99 * YEAR_MS

    machine.run(filled)
    machine.clock.step_wall(YEAR_MS)
    machine.run(nothing, *between)
    machine.run(later)


def test_a_day_of_running_confirms_a_clock_however_often_the_machine_is_off(
    machine: CleanupRig,
) -> None:
    doubts = []

    async def filled(rig: CleanupRig) -> None:
        await rig.fill_three()
        machine.clock.step_wall(YEAR_MS)
        await rig.fill(0)

    async def working_day(rig: CleanupRig) -> None:
        doubts.append((await status(rig)).clock_in_doubt_ms > 0)
        await rig.run_for(9 * HOUR_S)
        await rig.fill(0)

    machine.run(filled)
    for _ in range(4):
        machine.clock.advance(15 * HOUR_S)
        machine.run(working_day)
    assert doubts == [True, True, True, False]


def test_what_was_confirmed_stays_so(machine: CleanupRig) -> None:
    async def stepped(rig: CleanupRig) -> None:
        await rig.fill_three()
        machine.clock.step_wall(YEAR_MS)
        await rig.fill(0)
        pending = rig.post(CLEANUP_RUN, RunCleanup(force=True), CleanupDone)
        await rig.run_for(60)
        assert rig.there() == 0
        await rig.reply(pending, CleanupDone)

    async def later(rig: CleanupRig) -> None:
        assert (await status(rig)).clock_in_doubt_ms == 0

    machine.run(stepped)
    machine.run(later)


def test_a_machine_that_sleeps_every_night_ages_its_log(machine: CleanupRig) -> None:
    async def days(rig: CleanupRig) -> None:
        await rig.fill_three()
        for _ in range(5):
            await rig.run_for(9 * HOUR_S)
            machine.clock.suspend(15 * HOUR_S)
            assert (await status(rig)).clock_in_doubt_ms == 0
        await rig.run_for(DAY_S)
        assert rig.there() == 0

    machine.run(days)


def test_a_broker_that_is_off_for_hours_is_in_no_doubt(machine: CleanupRig) -> None:
    async def filled(rig: CleanupRig) -> None:
        await rig.fill_three()

    async def later(rig: CleanupRig) -> None:
        assert (await status(rig)).clock_in_doubt_ms == 0
        assert rig.broker.log.state.clock_ahead.now.ahead_ms == 0

    machine.run(filled)
    for _ in range(4):
        machine.clock.advance(20 * HOUR_S)
        machine.run(later)


# --- disks ------------------------------------------------------------------------------------


def test_deletions_that_fail_give_up_one_segment_and_say_so(
    machine: CleanupRig, caplog: pytest.LogCaptureFixture
) -> None:
    async def stuck(rig: CleanupRig) -> None:
        await rig.fill(20.2)
        before = rig.bases()
        rig.others_use(88)
        machine.files.fail("unlink", errno.EACCES, name=".seg", times=None)
        with caplog.at_level(logging.ERROR):
            await rig.run_for(400)
        assert rig.bases() == before[1:]
        told = await status(rig)
        assert f"{before[0]:020d}.seg can't be deleted (Permission denied)" in told.stuck
        assert sum(told.stuck in record.message for record in caplog.records) == 1
        assert (await rig.info()).metrics["deletion_stuck"] == 1
        assert told.deleted["forced"] == (0, 0)
        machine.files.mend()
        await rig.run_for(60)
        told = await status(rig)
        assert told.stuck == "" and told.used_percent < 85
        assert told.last[0].base == before[0], "it is counted once it is gone"
        assert not machine.files.exists(f"/mq-data/log/{before[0]:020d}.seg")

    machine.run(stuck, check_interval_s=1.0, pause_ms=0)


def test_a_start_goes_on_with_a_deletion_that_failed_also_if_it_fails_again(
    machine: CleanupRig, caplog: pytest.LogCaptureFixture
) -> None:
    before: list[int] = []

    async def stuck(rig: CleanupRig) -> None:
        await rig.fill(20.2)
        before.extend(rig.bases())
        rig.others_use(88)
        machine.files.fail("unlink", errno.EACCES, name=".seg", times=None)
        await rig.run_for(100)

    async def again(rig: CleanupRig) -> None:
        with caplog.at_level(logging.ERROR):
            await rig.run_for(100)
        assert rig.bases()[: len(before) - 1] == before[1:]
        assert str(before[0]) in (await status(rig)).stuck
        rig.others_use(0)
        machine.files.mend()
        await rig.run_for(10)
        assert not machine.files.exists(f"/mq-data/log/{before[0]:020d}.seg")
        assert (await status(rig)).stuck == ""

    machine.run(stuck, check_interval_s=1.0, pause_ms=0)
    machine.run(again, check_interval_s=1.0, pause_ms=0)
    assert "a deletion could not be finished" in caplog.text


def test_a_run_for_old_segments_that_fails_is_tried_until_it_succeeds(machine: CleanupRig) -> None:
    async def days(rig: CleanupRig) -> None:
        await rig.fill_three()
        machine.files.fail("unlink", errno.EACCES, name=".seg", times=None)
        await rig.run_for(90 * HOUR_S)
        assert rig.there() == 2
        machine.files.mend()
        await rig.run_for(2 * HOUR_S)  # 10:00
        assert rig.there() == 0

    machine.run(days)


def test_a_broker_starts_though_nobody_can_say_how_full_the_disk_is(
    machine: CleanupRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(path: str) -> tuple[int, int]:
        raise OSError(errno.EIO, "statvfs", path)

    space = machine.files.space
    monkeypatch.setattr(machine.files, "space", broken)

    async def started(rig: CleanupRig) -> None:
        await rig.fill(1.2)
        assert "disk_used_percent" not in (await rig.info()).metrics
        info = await rig.info()
        assert "not known how much used" in str(info)
        monkeypatch.setattr(machine.files, "space", space)
        await rig.run_for(700)
        assert (await status(rig)).used_percent > 0

    with caplog.at_level(logging.WARNING):
        machine.run(started)
    assert "can't be judged yet" in caplog.text


# --- operators --------------------------------------------------------------------------------


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_run_on_a_log_in_doubt_is_refused(machine: CleanupRig, dry_run: bool) -> None:
    async def filled(rig: CleanupRig) -> None:
        await rig.fill_three()

    async def asked(rig: CleanupRig) -> None:
        assert rig.broker.log.in_doubt
        answer = await rig.client.ask(CLEANUP_RUN, RunCleanup(dry_run))
        assert answer.status == Status.IN_DOUBT, answer
        assert "nothing is deleted while the log is in doubt" in answer.header.detail

    machine.run(filled)
    newest = machine.files.list("/mq-data/log")
    (path,) = [f"/mq-data/log/{name}" for name in sorted(newest) if name.endswith(".seg")][-1:]
    file = machine.files.open(path)
    file.write(len(b"CMB") + 400, [b"\xff" * 8])
    file.close()
    machine.run(asked)
