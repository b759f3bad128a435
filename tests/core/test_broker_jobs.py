"""Housekeeping: late jobs run once, failing ones go on, a stepped wall clock changes nothing."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cometmq.broker.jobs import Jobs
from cometmq.errors import ConfigError
from cometmq.interfaces import Job
from cometmq.testing.environment import VirtualEnvironment

HOUR_MS = 3_600_000


class Counter:
    """A job's function that remembers when it ran."""

    def __init__(self, environment: VirtualEnvironment) -> None:
        self.clock = environment.clock
        self.runs_s: list[float] = []

    def __call__(self) -> None:
        self.runs_s.append(self.clock.monotonic_s())

    def __len__(self) -> int:
        return len(self.runs_s)


def test_an_interval_job_runs_at_its_interval() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        jobs, counter = Jobs(environment), Counter(environment)
        jobs.add(Job("tick", counter, interval_s=10.0))
        jobs.start()
        await environment.clock.run_for(35.0)
        begin_s = counter.runs_s[0]
        assert [at - begin_s for at in counter.runs_s] == [0.0, 10.0, 20.0]
        assert jobs.runs["tick"] == 3
        jobs.stop()
        await environment.clock.run_for(100.0)
        assert len(counter) == 3

    asyncio.run(scenario())


@pytest.mark.parametrize("step_ms", [-HOUR_MS, 24 * HOUR_MS])
def test_a_step_of_the_wall_clock_neither_stops_nor_bunches_interval_jobs(step_ms: int) -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        jobs, counter = Jobs(environment), Counter(environment)
        jobs.add(Job("tick", counter, interval_s=10.0))
        jobs.start()
        await environment.clock.run_for(25.0)
        assert len(counter) == 2
        environment.clock.step_wall(step_ms)
        await environment.clock.run_for(1.0)
        assert len(counter) == 2
        await environment.clock.run_for(30.0)
        assert len(counter) == 5
        jobs.stop()

    asyncio.run(scenario())


def test_a_cron_job_runs_by_wall_time_and_follows_a_step_forward_once() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        clock = environment.clock
        # To the next full hour, so that the test does not depend on the clock's beginning.
        clock.step_wall(HOUR_MS - clock.wall_ms() % HOUR_MS)
        jobs, counter = Jobs(environment), Counter(environment)
        jobs.add(Job("cron", counter, cron="30 * * * *"))
        jobs.start()
        await clock.run_for(29 * 60.0)
        assert len(counter) == 0
        await clock.run_for(2 * 60.0)
        assert len(counter) == 1
        clock.step_wall(24 * HOUR_MS)
        await clock.run_for(60.0)
        assert len(counter) == 2, "a day of missed runs is one run"
        jobs.stop()

    asyncio.run(scenario())


def test_a_cron_job_does_not_wait_for_a_clock_that_was_set_back() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        clock = environment.clock
        clock.step_wall(HOUR_MS - clock.wall_ms() % HOUR_MS)
        jobs, counter = Jobs(environment), Counter(environment)
        jobs.add(Job("cron", counter, cron="*/10 * * * *"))
        jobs.start()
        await clock.run_for(11 * 60.0)
        runs = len(counter)
        clock.step_wall(-HOUR_MS)
        await clock.run_for(20 * 60.0)
        assert len(counter) == runs + 2
        jobs.stop()

    asyncio.run(scenario())


def test_a_job_that_raises_is_logged_counted_and_run_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise ValueError("on purpose")

    async def scenario() -> None:
        environment = VirtualEnvironment()
        jobs = Jobs(environment)
        jobs.add(Job("bad", fail, interval_s=1.0))
        jobs.start()
        await environment.clock.run_for(3.5)
        assert jobs.errors["bad"] == 3
        jobs.stop()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "job bad failed" in caplog.text


def test_a_job_never_overlaps_itself() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        running = most = 0

        async def slow() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await environment.clock.sleep(25.0)
            running -= 1

        jobs = Jobs(environment)
        jobs.add(Job("slow", slow, interval_s=10.0))
        jobs.start()
        await environment.clock.run_for(100.0)
        assert most == 1
        assert jobs.runs["slow"] == 3
        jobs.stop()

    asyncio.run(scenario())


def test_jitter_comes_from_the_environment() -> None:
    async def scenario() -> list[float]:
        environment = VirtualEnvironment()
        jobs, counter = Jobs(environment), Counter(environment)
        jobs.add(Job("tick", counter, interval_s=10.0, jitter_s=4.0))
        jobs.start()
        await environment.clock.run_for(60.0)
        jobs.stop()
        return counter.runs_s

    first, second = asyncio.run(scenario()), asyncio.run(scenario())
    assert first == second
    gaps = [later - earlier for earlier, later in zip(first, first[1:], strict=False)]
    assert all(10.0 <= gap <= 14.001 for gap in gaps)
    assert len(set(gaps)) > 1


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (Job("none", print), "exactly one of interval_s and cron"),
        (Job("both", print, interval_s=1.0, cron="* * * * *"), "exactly one"),
        (Job("zero", print, interval_s=0.0), "above 0"),
        (Job("cron", print, cron="61 * * * *"), "five fields"),
    ],
)
def test_a_job_without_a_usable_time_is_refused_by_name(job: Job, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"job {job.name}: .*{expected}"):
        Jobs(VirtualEnvironment()).add(job)


def test_two_jobs_of_one_name_are_refused() -> None:
    jobs = Jobs(VirtualEnvironment())
    jobs.add(Job("same", print, interval_s=1.0))
    with pytest.raises(ConfigError, match="job same: another job has this name"):
        jobs.add(Job("same", print, cron="0 4 * * *"))
