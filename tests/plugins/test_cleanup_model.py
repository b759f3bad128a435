"""Simulated weeks: random load, thresholds, clocks and stops, and each deletion judged by a plain
model of the rules that shares no code with them.

The model knows what the test itself wrote and when, looks at the disk as anybody may, and says of
every deletion whether it was allowed, and of every quiet moment whether nothing is left to do.
"""

from __future__ import annotations

import asyncio
import errno
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cometmq.batch import encode_messages, parse
from cometmq.broker import jobs as jobs_module
from cometmq.broker.jobs import Jobs
from cometmq.broker.offsets import CommittedOffsets
from cometmq.broker.topics import Topics
from cometmq.errors import DiskRefused, LogError, NoSpace
from cometmq.interfaces import DiskPressure, Refuse, Segment
from cometmq.log import Log, LogSettings, RecoveryReport
from cometmq.testing.clock import VirtualClock
from cometmq.testing.environment import SeededRandom, VirtualEnvironment
from cometmq_plugins.cleanup.options import CleanupOptions
from cometmq_plugins.cleanup.plugin import CleanupPlugin
from cometmq_plugins.group_commit import GroupCommit
from cometmq_plugins.segments import SegmentStorage

CAPACITY = 4 << 20
ALLOCATED_AT_ONCE = 1 << 14
RESERVE = 1 << 17
SEGMENT_BYTES = 1 << 17
STEP_S = 1800.0
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BODY = b"x" * 8000


class NoJitter(SeededRandom):
    """Jobs begin on the minute."""

    def uniform(self, low: float, high: float) -> float:
        return low


class Stretch(NamedTuple):
    """Some hours of one kind of life."""

    hours: int
    batches_per_step: int
    jump_ms: int
    """Of the wall clock, at the beginning."""
    off_hours: int
    """The broker is stopped for so long, at the beginning."""
    foreign_percent: int
    """What others have on the disk meanwhile."""
    stuck: bool = False
    """Nothing can be deleted meanwhile."""
    cut_power: bool = False
    """The broker ends by a power cut, if it ends."""


# --- the model --------------------------------------------------------------------------------


class Model:
    """The rules of docs/cleanup.md, as plainly as possible."""

    def __init__(self, options: CleanupOptions) -> None:
        self.options = options
        self.zone = ZoneInfo(options.timezone)
        self.stored: list[tuple[int, int]] = []
        """(position, store time) of all messages ever."""
        self.ahead_ms = 0.0
        """How far the wall clock is ahead of what is believed, over all starts."""
        self.even_since_s = 0.0
        self.even_s = 0.0
        """How long it had been even when the broker stopped."""
        self.seen: tuple[float, float] | None = None
        self.borders: list[int] = []
        """Where the segments that are there begin."""
        self._day_times: dict[date, datetime] = {}

    def start(self, wall_ms: int, monotonic_s: float, last_use_ms: int) -> None:
        confirm_ms = self.options.clock_confirm_hours * HOUR_MS
        gap = wall_ms - last_use_ms if last_use_ms else 0
        if gap < 0 or gap > max(confirm_ms, 60_000):
            self.ahead_ms = max(0.0, self.ahead_ms + gap)
            self.even_s = 0.0 if abs(gap) > 60_000 else self.even_s
        self.even_since_s = monotonic_s - self.even_s
        self.seen = wall_ms, monotonic_s

    def stop(self, monotonic_s: float) -> None:
        self.even_s = monotonic_s - self.even_since_s if self.ahead_ms else 0.0

    def tick(self, wall_ms: int, monotonic_s: float) -> None:
        """The clock was looked at."""
        assert self.seen is not None
        step_ms = (wall_ms - self.seen[0]) - (monotonic_s - self.seen[1]) * 1000
        self.seen = wall_ms, monotonic_s
        if abs(step_ms) < 1:
            step_ms = 0.0
        if step_ms > 60_000 or (self.ahead_ms and step_ms < -60_000):
            self.even_since_s = monotonic_s
        if step_ms > 60_000 or self.ahead_ms:
            self.ahead_ms = max(0.0, self.ahead_ms + step_ms)
        evenly_ms = (monotonic_s - self.even_since_s) * 1000
        if self.ahead_ms and evenly_ms >= self.options.clock_confirm_hours * HOUR_MS:
            self.ahead_ms = 0.0

    def believed_ms(self, wall_ms: int) -> float:
        return wall_ms - self.ahead_ms

    def is_old(self, base: int, end: int, open_base: int, now_ms: float) -> bool:
        """Whether the segment [base, end) is too old at a time that is believed."""
        bases = sorted({base, end, open_base, *self.borders})
        for at, here in enumerate(bases):
            if here < base:
                continue
            if here == open_base:
                return False
            times = [t for p, t in self.stored if here <= p < bases[at + 1]]
            if here == base and not times:
                return True
            if times and max(times) <= now_ms:
                return now_ms - max(times) > self.options.max_age_hours * HOUR_MS
        raise AssertionError("the segment that is written to is always there")

    def day_time(self, day: date) -> datetime:
        """The same as `_day_time`, looked for once."""
        if day not in self._day_times:
            self._day_times[day] = self._day_time(day)
        return self._day_times[day]

    def _day_time(self, day: date) -> datetime:
        """When `at` (HH:MM) is on this day, in UTC: the first time there is, or the first minute
        after it would have been."""
        minute, hour = map(int, self.options.at.split()[:2])
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        wanted = (day, hour * 60 + minute)
        for offset in range(-26 * 60, 50 * 60):
            moment = midnight + timedelta(minutes=offset)
            local = moment.astimezone(self.zone)
            if (local.date(), local.hour * 60 + local.minute) >= wanted:
                return moment
        raise AssertionError("every day ends")

    def due_between(self, after_ms: float, until_ms: float) -> bool:
        """Whether the time of the day lies in (after, until]."""
        day = datetime.fromtimestamp(after_ms / 1000, self.zone).date() - timedelta(days=1)
        last = datetime.fromtimestamp(until_ms / 1000, self.zone).date()
        while day <= last:
            if after_ms < self.day_time(day).timestamp() * 1000 <= until_ms:
                return True
            if (last - day).days > 3:
                return True  # so many days have one
            day += timedelta(days=1)
        return False


# --- the world --------------------------------------------------------------------------------


class World:
    """A log, the plugin and its jobs, on virtual time and disk; every trim is judged as it is
    asked for."""

    def __init__(self, options: CleanupOptions, begin: datetime, segment_bytes: int) -> None:
        self.options = options
        self.segment_bytes = segment_bytes
        self.model = Model(options)
        self.environment = VirtualEnvironment(
            clock=VirtualClock(int(begin.timestamp() * 1000)), random=NoJitter()
        )
        self.environment.files.capacity_bytes = CAPACITY
        self.environment.files.make_folder("/other")
        self.due = False
        self.pressures: list[DiskPressure] = []
        self.deleted: dict[str, int] = {"age": 0, "space": 0, "forced": 0}
        self.refused = 0
        self.closed = 0
        """Last segments that were closed so that they can go."""
        self.stuck = self.ever_stuck = False
        """Whether nothing can be deleted: now, or at some time since the start."""
        self.given_up = 0
        """Segments that were given up since then."""
        self.untold = False
        """Whether the log was not told what came out about the clock."""

    @property
    def used_percent(self) -> float:
        total, free = self.environment.files.space("/")
        return 100 * (total - free) / total

    async def start_or_mend(self) -> None:
        """Start. Where nothing can be deleted, a new file that found no room can't be taken back:
        then it takes an operator first."""
        try:
            await self.start()
        except LogError as error:
            assert self.stuck and "Permission denied" in str(error)
            self.environment.files.mend()
            await self.start()

    async def start(self) -> None:
        clock = self.environment.clock
        self.ever_stuck = self.stuck
        storage = SegmentStorage(
            self.environment,
            self.environment.files,
            "/data",
            persistent=True,
            step_bytes=ALLOCATED_AT_ONCE,
            reserve_bytes=RESERVE,
        )
        topics, offsets = Topics(), CommittedOffsets()
        self.log = Log(
            storage,
            GroupCommit("disk", 500),
            self.environment,
            views=[topics, offsets],
            settings=LogSettings(
                segment_bytes=self.segment_bytes, mark_idle_ms=3_000_000, segment_age_s=43e3
            ),
        )
        report = await self.log.open()
        self._judge_memory(report)
        self.model.start(clock.wall_ms(), clock.monotonic_s(), report.store_time)
        self.due = bool(report.store_time) and self.model.due_between(
            report.store_time, clock.wall_ms()
        )
        self._judge_trims()
        self._judge_rolls()
        self.plugin = CleanupPlugin(self.options)
        self.jobs = Jobs(self.environment)
        for job in self.plugin.jobs():
            self.jobs.add(job)
        broker = SimpleNamespace(
            environment=self.environment,
            log=self.log,
            topics=topics,
            offsets=offsets,
            report=report,
            composition=SimpleNamespace(collect_sound=self._collect),
        )
        self.plugin.started(broker)
        self.jobs.start()
        self.wall_seen_ms = float(clock.wall_ms())
        self.step_end_s = clock.monotonic_s()

    def _judge_memory(self, report: RecoveryReport) -> None:
        """Is what the log says of the clock what is to be remembered?"""
        model, kept = self.model, report.clock
        if self.untold:
            # The last word found no room, or was not on disk. What is believed is never later.
            believed_ms = model.believed_ms(self.environment.clock.wall_ms())
            assert report.store_time - kept.ahead_ms <= believed_ms + 60_000
            model.ahead_ms = kept.ahead_ms
        else:
            assert abs(kept.ahead_ms - model.ahead_ms) <= 60_000, (kept, model.ahead_ms)
            forgotten_s = model.even_s - kept.even_ms / 1000
            assert -0.001 <= forgotten_s <= 3600 + STEP_S, (kept, model.even_s)
        model.even_s = kept.even_ms / 1000

    async def stop(self, *, cut_power: bool = False) -> None:
        self.jobs.stop()
        clock = self.environment.clock
        self.model.stop(clock.monotonic_s())
        unsynced = cut_power and self.log.synced < self.log.appended
        after = VirtualEnvironment(
            clock=VirtualClock(clock.wall_ms(), clock.monotonic_s()),
            random=NoJitter(),
            files=self.environment.files.crash() if cut_power else self.environment.files,
        )
        assert self.plugin._work is not None
        for reason, (count, _) in self.plugin._work.cleaner.deleted.items():
            self.deleted[reason] += count
        trusted = self.plugin._work._trusted
        self.plugin.stopping()
        self.untold = unsynced or bool(self.jobs.errors["cleanup-watch"])
        self.untold |= self.log.state.clock_ahead.now != trusted.known
        await self.log.close()
        assert self.ever_stuck or not any(self.jobs.errors.values()), self.jobs.errors
        self.environment = after

    def _collect(self, hook: str, pressure: DiskPressure) -> list[tuple[str, Any]]:
        assert hook == "disk_pressure"
        self.pressures.append(pressure)
        return []

    def _judge_trims(self) -> None:
        trim = self.log.trim

        async def judged(position: int) -> list[Segment]:
            self._judge(position)
            try:
                return await trim(position)
            except DiskRefused:
                self.given_up += 1
                assert self.given_up == 1 and self.stuck, "as long as its files are there"
                raise

        self.log.trim = judged  # type: ignore[method-assign]

    def _judge_rolls(self) -> None:
        roll = self.log.roll

        def judged() -> bool:
            (only,) = self.log.segments()
            assert self.used_percent >= self.options.refuse_percent, "it was to grow on"
            assert self.could_go(only.base), "its messages would go for nothing"
            self.closed += 1
            return roll()

        self.log.roll = judged  # type: ignore[method-assign]

    def could_go(self, base: int) -> bool:
        """Whether the segment at `base` holds messages that somebody stored, and sends would be
        taken if the disk had their bytes back."""
        messages = [position for position, _ in self.model.stored if position >= base]
        total, free = self.environment.files.space("/")
        used = 100 * (total - free - (self.log.appended - base)) / total
        return bool(messages) and used < self.options.refuse_percent

    def check_not_stuck(self) -> None:
        """Sends are not refused for the sake of a last segment that could go. (The next one has
        its own first bytes, and a reserve that was used up is made again first.)"""
        segments, (total, free) = self.log.segments(), self.environment.files.space("/")
        if len(segments) > 1 or self.used_percent < self.options.refuse_percent:
            return
        spare = segments[0].size - 2 * ALLOCATED_AT_ONCE - RESERVE // 2
        used = 100 * (total - free - spare) / total
        assert spare <= 0 or used >= self.options.refuse_percent, "the last segment ought to go"

    def _sealed(self) -> list[tuple[int, int]]:
        bases = [segment.base for segment in self.log.segments()]
        self.model.borders = bases
        return list(zip(bases, bases[1:], strict=False))

    def _judge(self, position: int) -> None:
        """Is this deletion allowed, now?"""
        sealed = self._sealed()
        assert sealed, "the segment that is written to was to be deleted"
        used, wall_ms = self.used_percent, self.environment.clock.wall_ms()
        self.model.tick(wall_ms, self.environment.clock.monotonic_s())
        for base, end in sealed:
            if end > position:
                break
            old = self.model.is_old(base, end, sealed[-1][1], self.model.believed_ms(wall_ms))
            allowed = (
                used >= self.options.forced_percent
                or (old and used > self.options.space_percent)
                or (old and self.due)
            )
            assert allowed, (base, end, used, old, self.due)
        assert position in [end for _, end in sealed]

    def check_quiet(self, begin_ms: float, open_then: int) -> None:
        """Nothing is left to do of what was to be done when the step began (at a believed time,
        with the segment at `open_then` being written to), and sends are refused exactly when the
        disk is too full."""
        sealed, used = self._sealed(), self.used_percent
        self.plugin._watch()
        refusal = self.plugin.admit("SEND", 0)
        assert (refusal is not None) == (used >= self.options.refuse_percent), used
        if self.plugin._work is not None and self.plugin._work.status().stuck:
            assert self.stuck
            return
        self.check_not_stuck()
        if not sealed or self.log.settled < self.log.appended:
            # A segment that has just begun is not on disk yet, so the log can't begin with it.
            return
        # An index file may have been written after the last segment went.
        assert used < self.options.forced_percent + 0.5, "the oldest ought to have gone"
        (base, end), open_base = sealed[0], sealed[-1][1]
        sealed_then = base < open_then
        if sealed_then and self.model.is_old(base, end, open_base, begin_ms):
            assert used <= self.options.space_percent + 0.5, "old ones ought to have gone"
            assert not self.due, "it was the time of the day for old ones"

    async def idle(self) -> None:
        """Let all finish that was begun; it takes milliseconds."""
        for _ in range(3):
            await self.environment.clock.run_for(0)
        while self.plugin._work is not None and self.plugin._work.cleaner.busy:
            await self.environment.clock.run_for(0.001)

    def jump(self, milliseconds: int) -> None:
        """The wall clock steps, and somebody looks at it."""
        clock = self.environment.clock
        if milliseconds < 0:
            self.wall_seen_ms = clock.wall_ms() + milliseconds
        clock.step_wall(milliseconds)
        self.plugin._watch()
        self.model.tick(clock.wall_ms(), clock.monotonic_s())

    async def step(self) -> None:
        """Half an hour: what is due is done when it is due, the rest at the end."""
        clock = self.environment.clock
        begin_ms = self.model.believed_ms(clock.wall_ms())
        open_then = self.log.segments()[-1].base
        end_ms = clock.wall_ms() + (self.step_end_s + STEP_S - clock.monotonic_s()) * 1000
        self.due |= self.model.due_between(self.wall_seen_ms, end_ms)
        self.step_end_s += STEP_S
        await clock.run_for(self.step_end_s - clock.monotonic_s())
        await self.idle()
        self.model.tick(clock.wall_ms(), clock.monotonic_s())
        self.wall_seen_ms = clock.wall_ms()
        self.check_quiet(begin_ms, open_then)
        assert self.plugin._work is not None
        self.due = self.stuck and self.plugin._work._due

    async def send(self, batches: int) -> None:
        for _ in range(batches):
            batch = parse(encode_messages("t", 0, [(0, BODY, "", (), {})]))
            refusal = self.plugin.admit("SEND", len(batch.view))
            if isinstance(refusal, Refuse):
                assert refusal.code == "NO_SPACE" and refusal.retry_after_ms > 0
                self.refused += 1
                continue
            try:
                appended = self.log.append(batch, incarnation=1, queue=0)
            except NoSpace:
                # Only where the marks leave less room than what is allocated at once.
                assert self.options.refuse_percent > 96
                continue
            self.model.stored.append((appended.position, appended.store_time))
            self.log.write()
            await self.environment.clock.run_for(0)

    def stick(self, stuck: bool) -> None:
        """From now on nothing can be deleted, or everything again."""
        self.environment.files.mend()
        if stuck:
            self.environment.files.fail("unlink", errno.EACCES, name=".seg", times=None)
        self.stuck, self.given_up = stuck, 0
        self.ever_stuck |= stuck

    def foreign(self, percent: int) -> None:
        """Others fill the disk, or empty it; somebody looks before the next send."""
        files = self.environment.files
        if files.exists("/other/file"):
            files.unlink("/other/file")
        file = files.open("/other/file", create=True)
        room = files.space("/")[1]
        file.truncate(min(CAPACITY * percent // 100, room))
        file.close()
        self.plugin._watch()


async def live(
    options: CleanupOptions,
    begin: datetime,
    phases: list[Stretch],
    segment_bytes: int = SEGMENT_BYTES,
) -> World:
    """Go through all phases; the world at the end of the last one."""
    world = World(options, begin, segment_bytes)
    await world.start()
    await world.idle()
    for phase in phases:
        if phase.off_hours or world.log.stopped:
            assert world.stuck or not world.log.stopped, world.log.stopped
            await world.stop(cut_power=phase.cut_power)
            world.environment.clock.advance(phase.off_hours * 3600.0)
            await world.start_or_mend()
            await world.idle()
        world.stick(phase.stuck)
        world.jump(phase.jump_ms)
        world.foreign(phase.foreign_percent)
        for _ in range(phase.hours * 2):
            await world.send(phase.batches_per_step)
            await world.step()
    await world.stop()
    return world


# --- the tests --------------------------------------------------------------------------------

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo")
BEGINS = (
    datetime(2026, 3, 27, 21, 11, 17, tzinfo=UTC),
    datetime(2026, 10, 23, 2, 41, 17, tzinfo=UTC),
    datetime(2026, 10, 2, 12, 0, 17, tzinfo=UTC),
    datetime(2026, 11, 1, 0, 30, 17, tzinfo=UTC),
    datetime(2026, 6, 1, 4, 0, 17, tzinfo=UTC),
)
JUMPS = (0, 0, 0, 2, -2, 60, -60, 26 * 60, -26 * 60, 365 * 24 * 60, -365 * 24 * 60)


def minutes_ms(minutes: int) -> int:
    return minutes * 60_000


all_options = st.builds(
    lambda marks, age, at, zone: CleanupOptions(
        max_age_hours=age,
        at=at,
        timezone=zone,
        space_percent=marks[0],
        forced_percent=marks[1],
        refuse_percent=marks[2],
        check_interval_s=STEP_S,
        retention_interval_s=STEP_S,
        pause_ms=0,
        clock_confirm_hours=23.9,
    ),
    st.lists(st.sampled_from((20, 40, 60, 75, 85, 90, 97)), min_size=3, max_size=3).map(sorted),
    st.sampled_from((0.26, 3.26, 24.26, 72.26)),
    st.sampled_from(("0 4 * * *", "30 2 * * *", "15 2 * * *", "0 0 * * *", "59 23 * * *")),
    st.sampled_from(ZONES),
)
all_phases = st.lists(
    st.builds(
        Stretch,
        hours=st.integers(1, 60),
        batches_per_step=st.sampled_from((0, 1, 1, 3, 20)),
        jump_ms=st.sampled_from([minutes_ms(minutes) for minutes in JUMPS]),
        off_hours=st.sampled_from((0, 0, 0, 1, 9, 30, 200)),
        foreign_percent=st.sampled_from((0, 0, 0, 30, 70, 95)),
        stuck=st.sampled_from((False, False, False, True)),
        cut_power=st.booleans(),
    ),
    min_size=2,
    max_size=12,
)


all_segment_bytes = st.sampled_from((SEGMENT_BYTES, SEGMENT_BYTES, 2 * CAPACITY))
"""Also such that the whole log is one segment, which closes by its age alone."""

WITHOUT_SHRINKING = (Phase.explicit, Phase.generate)
"""A life takes seconds; a smaller one is looked for by hand."""


@pytest.fixture(autouse=True)
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated week must not look at its clock 20,000 times."""
    monkeypatch.setattr(jobs_module, "LOOK_AGAIN_S", 590.0)


ORDINARY = CleanupOptions(
    max_age_hours=24.26,
    timezone="Europe/Berlin",
    check_interval_s=STEP_S,
    retention_interval_s=STEP_S,
    pause_ms=0,
    clock_confirm_hours=23.9,
)


def test_a_life_that_meets_every_rule() -> None:
    life = [
        Stretch(60, 3, 0, 0, 0),  # the night of the clock change in it
        Stretch(12, 3, 0, 30, 50),  # off at 04:00
        Stretch(20, 3, minutes_ms(365 * 24 * 60), 0, 0),  # a year ahead
        Stretch(30, 20, minutes_ms(-365 * 24 * 60), 0, 60),  # and back, on a full disk
        Stretch(4, 1, 0, 0, 93),  # no room at all
    ]
    world = asyncio.run(live(ORDINARY, BEGINS[0], life))
    assert all(world.deleted.values()) and world.refused, (world.deleted, world.refused)
    assert {pressure.mark for pressure in world.pressures} >= {"space", "forced", "refuse"}


def test_a_life_of_restarts_while_the_clock_is_in_doubt_and_nothing_can_be_deleted() -> None:
    year_ms = minutes_ms(365 * 24 * 60)
    life = [
        Stretch(60, 3, 0, 0, 0),
        Stretch(3, 3, year_ms, 0, 0),
        Stretch(9, 3, 0, 1, 0),  # in doubt before, and after
        Stretch(9, 3, 0, 1, 0, stuck=True, cut_power=True),
        Stretch(9, 3, 0, 1, 40, stuck=True),  # confirmed, but nothing goes
        Stretch(9, 3, 0, 1, 40),
        Stretch(3, 20, year_ms, 0, 90, stuck=True),
        Stretch(30, 3, -year_ms, 30, 0, cut_power=True),
    ]
    world = asyncio.run(live(ORDINARY, BEGINS[0], life))
    assert all(world.deleted.values()), world.deleted


def test_a_life_in_one_large_segment() -> None:
    life = [
        Stretch(20, 20, 0, 0, 50),
        Stretch(10, 20, 0, 0, 95),  # full, and not of us
        Stretch(20, 20, 0, 5, 0),  # the last one before the stop is sealed by the start
        Stretch(20, 20, 0, 0, 70),
    ]
    world = asyncio.run(live(ORDINARY, BEGINS[0], life, 2 * CAPACITY))
    assert world.closed >= 3 and world.refused, (world.closed, world.refused)


@settings(max_examples=8, deadline=None, derandomize=True, phases=WITHOUT_SHRINKING)
@given(all_options, st.sampled_from(BEGINS), all_phases, all_segment_bytes)
def test_weeks_of_random_life(
    options: CleanupOptions, begin: datetime, phases: list[Stretch], segment_bytes: int
) -> None:
    asyncio.run(live(options, begin, phases, segment_bytes))


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=400, deadline=None, derandomize=True, phases=WITHOUT_SHRINKING)
@given(all_options, st.sampled_from(BEGINS), all_phases, all_segment_bytes)
def test_years_of_random_life(
    options: CleanupOptions, begin: datetime, phases: list[Stretch], segment_bytes: int
) -> None:
    asyncio.run(live(options, begin, phases, segment_bytes))
