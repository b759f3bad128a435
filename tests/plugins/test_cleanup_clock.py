"""What cleanup believes of the clock, with a log that sees it step and remembers."""

from __future__ import annotations

import pytest

from cometmq.errors import NoSpace
from cometmq.log import LogSettings
from cometmq.testing.log_kit import LogKit, in_loop
from cometmq_plugins.cleanup.trusted_time import TrustedTime

HOUR_MS = 3_600_000
DAY_S = 86_400.0
SELDOM = LogSettings(mark_idle_ms=3_000_000, segment_age_s=1e9)
CONFIRM_MS = 24 * HOUR_MS


async def trusted_from(kit: LogKit, hours_later: float = 0.0) -> TrustedTime:
    """What cleanup believes of the clock, so long after the last use of a log."""
    await kit.open(settings=SELDOM)
    await kit.send()
    kit.kill()
    kit.environment.clock.advance(hours_later * 3600)
    log = await kit.open(settings=SELDOM)
    return TrustedTime(log, kit.environment.clock, kit.report, CONFIRM_MS)


def ahead_ms(kit: LogKit, trusted: TrustedTime) -> int:
    ahead = kit.environment.clock.wall_ms() - trusted.now_ms()
    assert kit.log.state.clock_ahead.now.ahead_ms == trusted.in_doubt_ms == ahead
    return ahead


@in_loop
async def test_an_even_clock_is_believed_and_so_are_small_corrections(kit: LogKit) -> None:
    trusted, clock = await trusted_from(kit, 1), kit.environment.clock
    for step_ms in (0, 50_000, -50_000, 60_000):
        clock.step_wall(step_ms)
        assert ahead_ms(kit, trusted) == 0
        clock.advance(1000.0)
        assert ahead_ms(kit, trusted) == 0
    assert trusted.in_doubt_ms == trusted.confirmed_in_ms == 0


@in_loop
async def test_a_step_ahead_is_believed_a_day_later(kit: LogKit) -> None:
    trusted, clock = await trusted_from(kit), kit.environment.clock
    clock.step_wall(365 * 24 * HOUR_MS)
    assert ahead_ms(kit, trusted) == 365 * 24 * HOUR_MS
    clock.advance(DAY_S - 1)
    assert ahead_ms(kit, trusted) == 365 * 24 * HOUR_MS
    assert trusted.confirmed_in_ms == 1000
    clock.advance(1.0)
    assert ahead_ms(kit, trusted) == 0


@in_loop
async def test_another_step_makes_it_wait_anew(kit: LogKit) -> None:
    trusted, clock = await trusted_from(kit), kit.environment.clock
    clock.step_wall(10 * HOUR_MS)
    trusted.now_ms()
    clock.advance(DAY_S - 1)
    clock.step_wall(HOUR_MS)
    assert ahead_ms(kit, trusted) == 11 * HOUR_MS
    clock.advance(DAY_S - 1)
    assert ahead_ms(kit, trusted) == 11 * HOUR_MS
    clock.advance(1.0)
    assert ahead_ms(kit, trusted) == 0


@in_loop
async def test_a_step_back_is_followed_at_once(kit: LogKit) -> None:
    trusted, clock = await trusted_from(kit), kit.environment.clock
    clock.step_wall(-10 * HOUR_MS)
    assert ahead_ms(kit, trusted) == 0
    clock.step_wall(10 * HOUR_MS)
    assert ahead_ms(kit, trusted) == 10 * HOUR_MS
    clock.step_wall(-10 * HOUR_MS)
    assert ahead_ms(kit, trusted) == 0


@in_loop
async def test_a_start_long_after_the_logs_last_use_is_a_step(kit: LogKit) -> None:
    trusted = await trusted_from(kit, 240)
    assert ahead_ms(kit, trusted) == 240 * HOUR_MS
    kit.environment.clock.advance(DAY_S)
    assert ahead_ms(kit, trusted) == 0


@in_loop
async def test_a_start_within_the_time_that_confirms_is_none(kit: LogKit) -> None:
    trusted = await trusted_from(kit, 24)
    assert kit.log.state.clock_ahead.now.ahead_ms == 24 * HOUR_MS, "the log doubts all of it"
    assert trusted.in_doubt_ms == 0
    assert ahead_ms(kit, trusted) == 0, "and is told"


@in_loop
async def test_a_step_while_the_log_can_not_be_told_is_doubted_later(
    kit: LogKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(end: int, *, urgent: bool = False) -> None:
        raise NoSpace("the disk is full")

    trusted, clock = await trusted_from(kit, 20), kit.environment.clock
    with monkeypatch.context() as patch:
        patch.setattr(kit.storage, "allocate", full)
        with pytest.raises(NoSpace):
            trusted.now_ms()
        assert trusted.in_doubt_ms == 0, "believed, though the log does not know it"
        clock.step_wall(10 * HOUR_MS)
        with pytest.raises(NoSpace):
            trusted.now_ms()
    assert ahead_ms(kit, trusted) == 10 * HOUR_MS
    clock.advance(DAY_S)
    assert ahead_ms(kit, trusted) == 0


@in_loop
async def test_the_log_hears_every_hour_that_the_clock_is_still_even(kit: LogKit) -> None:
    trusted, clock = await trusted_from(kit), kit.environment.clock
    clock.step_wall(10 * HOUR_MS)
    heard = set()
    for _ in range(5 * 4):
        trusted.now_ms()
        heard.add(kit.log.state.clock_ahead.now.even_ms)
        clock.advance(900.0)
    assert sorted(heard) == [hours * HOUR_MS for hours in range(5)]
    trusted.keep()
    assert kit.log.state.clock_ahead.now.even_ms == 5 * HOUR_MS, "and exactly before a stop"


@in_loop
async def test_somebody_who_knows_may_confirm_the_clock(kit: LogKit) -> None:
    trusted, clock = await trusted_from(kit), kit.environment.clock
    clock.step_wall(240 * HOUR_MS)
    assert ahead_ms(kit, trusted) > 0
    trusted.confirm()
    assert ahead_ms(kit, trusted) == 0
