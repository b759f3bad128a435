"""Ticks come in one turn, and time goes on between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.ticks import next_tick_s

PERIODS_S = (0.1, 0.2)


@given(st.floats(0, 1e8), st.sampled_from(PERIODS_S))
def test_a_tick_is_never_now_nor_far_away(now_s: float, every_s: float) -> None:
    due_s = next_tick_s(now_s, every_s)
    assert every_s * 0.49 < due_s - now_s < every_s * 1.51


@pytest.mark.parametrize("every_s", PERIODS_S)
def test_ticks_go_on_from_their_own_times(every_s: float) -> None:
    now_s = 0.0
    for tick in range(1, 5000):
        now_s = next_tick_s(now_s, every_s)
        assert now_s == tick * every_s


def test_ticks_of_two_periods_meet() -> None:
    seldom = {next_tick_s(tick * 0.2, 0.2) for tick in range(2000)}
    apart_s = max(abs(due_s - round(due_s / 0.1) * 0.1) for due_s in seldom)
    assert apart_s < 1e-9, "the event loop calls together what is no further apart"
