"""Housekeeping on APScheduler, whose time comes from the injected clock.

APScheduler reckons by the system's wall clock and so would sleep for an hour or run in a bunch
when that is stepped. Here interval jobs live on a time line made of monotonic time, cron jobs on
one made of the clock's wall time, in UTC; `cron` knows what a place calls that time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.executors.base import BaseExecutor, MaxInstancesReachedError
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.triggers.base import BaseTrigger

from cometmq.broker.cron import Cron
from cometmq.environment import Clock, Environment, Random, Timer
from cometmq.errors import FAILURES, ConfigError
from cometmq.interfaces import Job

logger = logging.getLogger(__name__)

STEP_BACK_S = 60.0
"""A wall clock that falls back further than this was stepped, not corrected."""
LOOK_AGAIN_S = 30.0
"""The wall time line is looked at this often, since nobody tells of a step."""


class Jobs:
    """Runs jobs on the loop: late ones run once, a job never overlaps itself, and a job that
    raises is logged, counted and run again at its next time."""

    def __init__(self, environment: Environment) -> None:
        clock = environment.clock
        self._random = environment.random
        self._monotonic = _TimeLine(clock, lambda: _at(clock.monotonic_s()), None)
        self._wall = _TimeLine(clock, lambda: _at(clock.wall_ms() / 1000), LOOK_AGAIN_S)
        self.runs: dict[str, int] = {}
        """Finished runs by job, failed ones included."""
        self.errors: dict[str, int] = {}
        """Failed runs by job."""

    def add(self, job: Job) -> None:
        """Take a job in, before or after `start`. Raises ConfigError for a time that is none, or
        for a name that another job has."""
        if job.name in self.runs:
            raise ConfigError(f"job {job.name}: another job has this name; rename one of them")
        trigger = _Trigger(job, self._random)
        line = self._monotonic if job.cron is None else self._wall
        self.runs[job.name] = self.errors[job.name] = 0
        line.put(job.name, self._guarded(job), trigger)

    def start(self) -> None:
        """Begin to run them, on the running loop."""
        self._monotonic.start()
        self._wall.start()

    def stop(self) -> None:
        """Run no more; what runs just now is cancelled."""
        for line in (self._monotonic, self._wall):
            if line.running:
                line.shutdown()

    def _guarded(self, job: Job) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            try:
                result = job.run()
                if inspect.isawaitable(result):
                    await result
            except FAILURES:
                self.errors[job.name] += 1
                logger.exception("job %s failed; it runs again at its next time", job.name)
            finally:
                self.runs[job.name] += 1

        return run


class _Trigger(BaseTrigger):  # type: ignore[misc]  # APScheduler 3 has no types
    """When a job is next due on its time line, with chance from the environment."""

    def __init__(self, job: Job, random: Random) -> None:
        if (job.interval_s is None) == (job.cron is None):
            raise ConfigError(f"job {job.name}: give exactly one of interval_s and cron")
        if job.interval_s is not None and job.interval_s <= 0:
            raise ConfigError(f"job {job.name}: interval_s is {job.interval_s}; it must be above 0")
        self._jitter_s = job.jitter_s
        self._random = random
        self._interval = timedelta(seconds=job.interval_s or 0.0)
        self._cron = None if job.cron is None else _cron(job.name, job.cron, job.timezone)

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
        jitter = timedelta(seconds=self._random.uniform(0.0, self._jitter_s))
        if self._cron is not None:
            # However many were missed meanwhile: they are one run, and that is over.
            due = self._cron.next(now) if previous is None else self._cron.after(max(previous, now))
            return None if due is None else due + jitter
        due = (previous or now) + self._interval + jitter
        # What a stall left behind is one run, not a bunch: count on from now.
        return due if due > now else now + self._interval


def _cron(name: str, fields: str, timezone: str) -> Cron:
    try:
        return Cron(fields, timezone)
    except ConfigError as error:
        raise ConfigError(f"job {name}: {error}") from None


class _OnLoop(BaseExecutor):  # type: ignore[misc]  # APScheduler 3 has no types
    """Runs jobs as tasks of the running loop."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: set[asyncio.Task[None]] = set()

    def shutdown(self, wait: bool = True) -> None:
        for task in self._tasks:
            task.cancel()

    def _do_submit_job(self, job: Any, run_times: Sequence[datetime]) -> None:
        task = asyncio.get_running_loop().create_task(job.func())
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(job.id, done))

    def _ended(self, job_id: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._run_job_success(job_id, ())


class _TimeLine(BaseScheduler):  # type: ignore[misc]  # APScheduler 3 has no types
    """APScheduler's jobs, store and executor, driven by a clock of ours."""

    def __init__(
        self, clock: Clock, now: Callable[[], datetime], look_again_s: float | None
    ) -> None:
        super().__init__(timezone=UTC, logger=_quiet(), executors={"default": _OnLoop()})
        self._clock = clock
        self._now = now
        self._look_again_s = look_again_s
        self._timer: Timer | None = None
        self._late: set[str] = set()
        self._seen = now()
        self._store = MemoryJobStore()
        self.add_jobstore(self._store)

    def put(self, name: str, run: Callable[[], Awaitable[None]], trigger: _Trigger) -> None:
        self.add_job(
            run,
            trigger,
            id=name,
            name=name,
            misfire_grace_time=None,
            coalesce=True,
            max_instances=1,
            next_run_time=trigger.get_next_fire_time(None, self._now()),
        )

    def shutdown(self, wait: bool = True) -> None:
        self._stop_timer()
        super().shutdown(wait)

    def wakeup(self) -> None:
        self._stop_timer()
        self._process_jobs()
        due = self._store.get_next_run_time()
        if due is not None:
            wait_s = max((due - self._now()).total_seconds(), 0.0)
            if self._look_again_s is not None:
                wait_s = min(wait_s, self._look_again_s)
            self._timer = self._clock.call_at(self._clock.monotonic_s() + wait_s, self.wakeup)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _process_jobs(self) -> None:
        now = self._now()
        if now < self._seen - timedelta(seconds=STEP_BACK_S):
            self._reckon_anew(now)
        self._seen = now
        for job in self._store.get_due_jobs(now):
            due = job._get_run_times(now)[-1:]
            try:
                self._lookup_executor(job.executor).submit_job(job, due)
                self._late.discard(job.id)
            except MaxInstancesReachedError:
                if job.id not in self._late:
                    # Once: a long run of a job of every second would else fill the log.
                    logger.warning("job %s still runs; it is left out until that ends", job.name)
                self._late.add(job.id)
            self._move(job, job.trigger.get_next_fire_time(due[0], now))

    def _reckon_anew(self, now: datetime) -> None:
        """The clock fell back: what was due soon would else wait until it has caught up."""
        for job in self._store.get_all_jobs():
            self._move(job, job.trigger.get_next_fire_time(None, now))

    def _move(self, job: Any, due: datetime | None) -> None:
        job._modify(next_run_time=due)
        self._store.update_job(job)


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _quiet() -> logging.Logger:
    """APScheduler tells at INFO of each job that it is given."""
    quiet = logging.getLogger("cometmq.apscheduler")
    quiet.setLevel(logging.WARNING)
    return quiet
