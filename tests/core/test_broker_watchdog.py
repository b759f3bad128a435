"""A loop that stands still: who is to blame, who gets the time back, and memory settings."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time

import pytest

from cometmq.broker import loop_lag, malloc
from cometmq.broker.loop_lag import LoopLag
from cometmq.broker.loop_pulse import CALM_S, INTERVAL_S, LoopPulse
from cometmq.broker.watchdog import Watchdog
from cometmq.real_environment import RealEnvironment
from cometmq.testing.clock import VirtualClock


def watch(running: tuple[str, str] | None, limit_ms: int, block_s: float) -> list[str]:
    """What a watchdog says about a loop that is blocked for a while."""
    said: list[str] = []

    async def scenario() -> None:
        environment = RealEnvironment()
        pulse = LoopPulse()
        watchdog = Watchdog(pulse, environment.threads, lambda: running, said.append, limit_ms)
        watchdog.start()
        await asyncio.sleep(0.25)
        assert not said
        hold_the_loop(block_s)
        await asyncio.sleep(0.25)
        watchdog.stop()
        environment.threads.close()

    asyncio.run(scenario())
    return said


def hold_the_loop(seconds: float) -> None:
    time.sleep(seconds)


def test_the_blocking_hook_is_named_once() -> None:
    (reason,) = watch(("slow", "before_append"), limit_ms=300, block_s=0.9)
    assert "hook before_append of plugin slow has not returned" in reason


def test_without_a_hook_the_place_in_the_code_is_named() -> None:
    (reason,) = watch(None, limit_ms=300, block_s=0.9)
    assert "hold_the_loop" in reason


def test_a_loop_that_runs_is_never_accused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert watch(None, limit_ms=300, block_s=0.0) == []
    assert "blocked" not in caplog.text


def test_a_blocked_loop_is_warned_of_before_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert watch(("slow", "admit"), limit_ms=60_000, block_s=1.5) == []
    assert "the event loop is blocked: hook admit of plugin slow" in caplog.text


def test_the_watchdog_ends_with_its_loop() -> None:
    before = threading.active_count()
    watch(None, limit_ms=1000, block_s=0.0)
    assert threading.active_count() <= before


def test_a_loop_that_beats_is_not_asked_and_a_block_after_a_beat_is_seen() -> None:
    async def scenario() -> None:
        pulse, asked = LoopPulse(), list[object]()
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe = asked.append  # type: ignore[method-assign, assignment]
        for _ in range(5):
            pulse.beat()
            assert pulse.look() == 0.0
            assert pulse.wait_s == CALM_S
        assert not asked
        assert [pulse.look() for _ in range(3)] == [0.0, INTERVAL_S, 2 * INTERVAL_S]
        assert len(asked) == 1, "once, and then it is waited for"
        assert pulse.wait_s == INTERVAL_S
        pulse.beat()
        assert pulse.look() == 0.0

    asyncio.run(scenario())


class LateClock(VirtualClock):
    """A clock whose timers can be late, as those of a busy loop."""

    def be_late(self, seconds: float) -> None:
        self._set(self.monotonic_s() + seconds)


def test_lateness_is_measured_and_a_stall_is_told_once() -> None:
    async def scenario() -> None:
        clock, stalls = LateClock(), list[float]()
        beats = list[None]()
        lag = LoopLag(clock, stalls.append, lambda: beats.append(None))
        assert lag.percentile_ms(100) == 0.0
        lag.start()
        await clock.run_for(1.0)
        assert lag.percentile_ms(99.9) == pytest.approx(0.0, abs=1e-6)
        clock.be_late(5.0)
        lag.observe()
        lag.observe()
        await clock.run_for(1.0)
        assert stalls == [pytest.approx(5.0, abs=0.2)]
        assert lag.percentile_ms(100) == pytest.approx(5000, abs=200)
        assert len(beats) > 10
        lag.stop()
        lag.observe()
        assert len(stalls) == 1

    asyncio.run(scenario())


def test_lateness_of_long_ago_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_lag, "SAMPLES", 20)

    async def scenario() -> None:
        clock = LateClock()
        lag = LoopLag(clock, lambda seconds: None, lambda: None)
        lag.start()
        clock.be_late(0.2)
        await clock.run_for(1.0)
        assert lag.percentile_ms(100) == pytest.approx(200, abs=120)
        await clock.run_for(3.0)
        assert lag.percentile_ms(100) == pytest.approx(0.0, abs=1e-6)

    asyncio.run(scenario())


def test_malloc_is_tuned_where_the_c_library_can() -> None:
    tuned = malloc.tune()
    if sys.platform == "linux" and hasattr(__import__("ctypes").CDLL(None), "mallopt"):
        assert tuned
    else:
        assert not tuned
