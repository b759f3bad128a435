"""The log says of a step of the wall clock before the first batch that the step stamps."""

from __future__ import annotations

from random import Random

import pytest

from cometmq.batch import Batch, Kind
from cometmq.errors import NoSpace
from cometmq.interfaces import StateView
from cometmq.log import LogSettings
from cometmq.log.clock_ahead import STEP_MS, ClockAheadView
from cometmq.log.records import ClockAhead, SegmentStart
from cometmq.testing.log_bytes import LogBytes
from cometmq.testing.log_kit import LogKit, in_loop
from cometmq.testing.state_view_contract import StateViewContract

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
SELDOM = LogSettings(mark_idle_ms=3_000_000, segment_age_s=1e9)


class TestClockAhead(StateViewContract):
    def make_view(self) -> ClockAheadView:
        return ClockAheadView()

    def make_history(self, log: LogBytes, random: Random) -> list[Batch]:
        history = []
        for _ in range(random.randint(1, 12)):
            ahead_ms = random.choice((0, 70_000, YEAR_MS))
            even_ms = random.randint(0, HOUR_MS) if ahead_ms else 0
            if random.random() < 0.5:
                record = ClockAhead(ahead_ms, even_ms)
                history.append(log.control(Kind.CLOCK_AHEAD, [record]))
            else:
                start = SegmentStart(b"", 1, "n", 0, 0, 0, ahead_ms, even_ms)
                history.append(log.control(Kind.SEGMENT_START, [start]))
        return history

    def observe(self, view: StateView) -> object:
        assert isinstance(view, ClockAheadView)
        return view.now


def known(kit: LogKit) -> ClockAhead:
    return kit.log.state.clock_ahead.now


@in_loop
async def test_a_step_is_told_before_the_batch_that_it_stamps(kit: LogKit) -> None:
    await kit.open(settings=SELDOM)
    await kit.send()
    before = len(kit.batches())
    kit.environment.clock.step_wall(YEAR_MS)
    await kit.send()
    told, message = kit.batches()[before:]
    assert (told.kind, message.kind) == (Kind.CLOCK_AHEAD, Kind.MESSAGES)
    assert known(kit) == ClockAhead(YEAR_MS)
    await kit.send()
    assert kit.kinds().count(Kind.CLOCK_AHEAD) == 1


@in_loop
async def test_an_idle_night_a_correction_and_a_sleeping_machine_are_no_steps(kit: LogKit) -> None:
    await kit.open(settings=SELDOM)
    clock = kit.environment.clock
    await kit.send()
    await kit.settle(12 * 3600)
    await kit.send()
    clock.step_wall(STEP_MS)
    await kit.send()
    clock.suspend(8 * 3600)
    await kit.send()
    assert known(kit) == ClockAhead()
    assert Kind.CLOCK_AHEAD not in kit.kinds()


@in_loop
async def test_a_step_back_takes_away_from_what_is_ahead(kit: LogKit) -> None:
    await kit.open(settings=SELDOM)
    clock = kit.environment.clock
    for step_ms, ahead_ms in (
        (-YEAR_MS, 0),
        (10 * HOUR_MS, 10 * HOUR_MS),
        (-4 * HOUR_MS, 6 * HOUR_MS),
        (-7 * HOUR_MS, 0),
    ):
        clock.step_wall(step_ms)
        await kit.send()
        assert known(kit).ahead_ms == ahead_ms


@in_loop
async def test_the_time_before_a_start_is_in_doubt_from_its_first_batch_on(kit: LogKit) -> None:
    await kit.open(settings=SELDOM)
    await kit.send()
    for ahead_ms in (YEAR_MS, 2 * YEAR_MS):
        kit.kill()
        kit.environment.clock.advance(YEAR_MS / 1000)
        before = (await kit.open(settings=SELDOM)).segments()[-1]
        assert known(kit) == ClockAhead(ahead_ms)
        (first,) = [batch for batch in kit.batches() if batch.position == before.base]
        assert first.kind == Kind.SEGMENT_START
        assert kit.report.clock == ClockAhead(ahead_ms - YEAR_MS), "as it was before the start"
    kit.kill()
    await kit.open(settings=SELDOM)
    assert known(kit) == kit.report.clock == ClockAhead(2 * YEAR_MS)


@in_loop
async def test_a_short_stop_and_a_new_log_are_not_in_doubt(kit: LogKit) -> None:
    await kit.open(settings=SELDOM)
    assert known(kit) == ClockAhead()
    await kit.send()
    kit.kill()
    kit.environment.clock.advance(STEP_MS / 1000)
    await kit.open(settings=SELDOM)
    assert known(kit) == ClockAhead()


@in_loop
async def test_it_outlives_segments_cuts_and_power_cuts(kit: LogKit) -> None:
    log = await kit.open(settings=SELDOM)
    kit.environment.clock.step_wall(YEAR_MS)
    before = await kit.send()
    log.append_control("clock-ahead", [ClockAhead(YEAR_MS, HOUR_MS)])
    log.write()
    assert log.roll()
    await kit.settle(1)
    await kit.send()
    log.truncate(before.end)
    assert known(kit) == ClockAhead(YEAR_MS, HOUR_MS), "what was cut knew more"
    await kit.send()
    assert log.roll()
    await kit.settle(1)
    last = await kit.send()
    await log.trim(last.end)
    assert len(log.segments()) == 1
    kit.crash()
    await kit.open(settings=SELDOM)
    assert known(kit) == ClockAhead(YEAR_MS, HOUR_MS)


@in_loop
async def test_a_step_that_could_not_be_told_is_told_when_there_is_room(
    kit: LogKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(end: int, *, urgent: bool = False) -> None:
        raise NoSpace("the disk is full")

    await kit.open(settings=SELDOM)
    kit.environment.clock.step_wall(YEAR_MS)
    with monkeypatch.context() as patch:
        patch.setattr(kit.storage, "allocate", full)
        with pytest.raises(NoSpace):
            kit.append()
    assert known(kit) == ClockAhead()
    await kit.send()
    assert known(kit) == ClockAhead(YEAR_MS)
