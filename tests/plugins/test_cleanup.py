"""The plugin in a whole broker: days go by, disks fill, operators ask."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner

from cometmq import Admin, Expired, Message, Producer, PullConsumer, protocol
from cometmq.broker import groups, jobs, loop_lag
from cometmq.cli import cli
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import DiskPressure
from cometmq.protocol import BrokerInfo, FetchPart, Heartbeat, Operation, Status
from cometmq.testing.clock import VirtualClock
from cometmq.testing.embedded import EmbeddedBroker
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker
from cometmq_plugins.cleanup.messages import (
    CLEANUP_RUN,
    CLEANUP_STATUS,
    AskStatus,
    CleanupDone,
    CleanupStatus,
    RunCleanup,
)
from cometmq_plugins.cleanup.options import CleanupOptions
from cometmq_plugins.cleanup.plugin import CleanupPlugin

Scenario = Callable[[Rig, RawClient], Awaitable[None]]
HOUR_S = 3600.0
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
    "plugin.cleanup.retention_interval_s": 3600.0,
    "broker.session_timeout_ms": 86_400_000,
}
MINUTELY: dict[str, object] = {"plugin.cleanup.check_interval_s": 60.0}


@pytest.fixture(autouse=True)
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated day must not look at its clock thousands of times."""
    monkeypatch.setattr(jobs, "LOOK_AGAIN_S", 590.0)
    monkeypatch.setattr(loop_lag, "INTERVAL_S", 590.0)
    monkeypatch.setattr(groups, "TICK_S", 590.0)


def world() -> VirtualEnvironment:
    """A small disk, at noon."""
    environment = VirtualEnvironment(clock=VirtualClock(NOON_MS))
    environment.files.capacity_bytes = CAPACITY
    environment.files.make_folder("/other")
    return environment


def play(scenario: Scenario, environment: VirtualEnvironment | None = None, **more: Any) -> None:
    settings = {**SETTINGS, **more.pop("settings", {})}

    async def run() -> None:
        async with running_broker(settings, environment=environment or world(), **more) as rig:
            await scenario(rig, await rig.client("me"))

    asyncio.run(run())


def bases(rig: Rig) -> list[int]:
    return [segment.base for segment in rig.broker.log.segments()]


async def fill(client: RawClient, segments: float, topic: str = "t") -> list[int]:
    """Send so many segments' worth; the statuses."""
    statuses: list[int] = []
    for _ in range(int(segments * SEGMENT / 64_200)):
        (part,) = await client.send(batch_of(topic, 0, BODY))
        statuses.append(part.status)
    return statuses


async def run_for(rig: Rig, seconds: float) -> None:
    """Time goes by in steps, so that a long work has its turns."""
    for _ in range(8):
        await rig.environment.clock.run_for(seconds / 8)
        for client in rig.clients:
            client.post(Operation.HEARTBEAT, Heartbeat())
    await rig.settle()


def others_use(rig: Rig, percent: float) -> None:
    """Others fill the disk up to this, or empty it."""
    files = rig.environment.files
    if files.exists("/other/file"):
        files.unlink("/other/file")
    total, free = files.space("/")
    size = int(total * percent / 100) - (total - free)
    if size > 0:
        file = files.open("/other/file", create=True)
        file.truncate(size)
        file.close()


async def status(client: RawClient) -> CleanupStatus:
    told = await ask(client, CLEANUP_STATUS, AskStatus(), CleanupStatus)
    assert isinstance(told, CleanupStatus)
    return told


async def ask(client: RawClient, number: int, header: Any, kind: Any) -> Any:
    protocol.REPLIES[number] = kind
    answer = await client.ask(number, header)
    assert answer.status == Status.OK, answer.header
    return answer.header


# --- the rules, by the hour -------------------------------------------------------------------


def test_old_segments_go_at_four_and_not_before() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 3.2)
        assert len(bases(rig)) == 4
        await run_for(rig, 87 * HOUR_S)  # 03:00 on the fourth day, after 87 h
        assert len([b for b in bases(rig) if b < 3 * SEGMENT]) >= 3
        await run_for(rig, 0.9 * HOUR_S)
        before = bases(rig)
        await run_for(rig, 0.2 * HOUR_S)
        after = bases(rig)
        assert after == before[-1:], "all were older than 72 h but the one that is written to"
        answer = await client.fetch(FetchPart("t", 0, 0))
        (part,) = answer.header.results
        assert part.status == Status.EXPIRED and part.next_offset == part.min_offset > 0

    play(scenario)


def test_above_75_percent_old_segments_go_at_any_time_and_young_ones_stay() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 2.2)
        await run_for(rig, 73 * HOUR_S)  # 13:00
        await fill(client, 2.0)
        before = bases(rig)
        others_use(rig, 78)
        await run_for(rig, 120.0)
        assert len(bases(rig)) < len(before)
        kept = rig.broker.log.next_offset(1, 0) - rig.broker.log.min_offset(1, 0)
        assert kept >= 2 * SEGMENT // 64_300 - 1, "what is young is all there"
        assert rig.environment.files.space("/")[1] / CAPACITY < 0.27, "still above 73 %"

    play(scenario)


def test_at_85_percent_the_oldest_go_until_the_disk_is_below() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 20.2)
        segments = len(bases(rig))
        others_use(rig, 88)
        await run_for(rig, 70.0)
        total, free = rig.environment.files.space("/")
        used = 100 * (total - free) / total
        assert 82 < used < 85, "not more than needed"
        assert segments > len(bases(rig)) > 5
        told = await status(client)
        assert (told.mark, told.refused) == ("space", 0)
        count, size = told.deleted["forced"]
        assert count == len(told.last) == segments - len(bases(rig))
        assert size == bases(rig)[0] and {gone.reason for gone in told.last} == {"forced"}

    play(scenario, settings=MINUTELY)


def test_deletion_is_paced_and_twenty_times_faster_on_a_full_disk() -> None:
    async def took_s(rig: Rig, segments: int) -> float:
        """How long it takes until so many segments went, one after the other."""
        clock, begin_s = rig.environment.clock, rig.environment.clock.monotonic_s()
        seen = [len(bases(rig))]
        while seen[-1] > seen[0] - segments:
            await clock.run_for(0.1)
            seen.append(len(bases(rig)))
            assert seen[-2] - seen[-1] <= 1
        return clock.monotonic_s() - begin_s

    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 12.2)
        await run_for(rig, 73 * HOUR_S)
        client.post(CLEANUP_RUN, RunCleanup())
        assert 3 * 5.0 <= await took_s(rig, 4) < 4 * 6.0
        others_use(rig, 99)
        await took_s(rig, 2)
        assert 3 * 0.25 <= await took_s(rig, 4) < 4 * 0.5

    play(scenario, settings={**MINUTELY, "plugin.cleanup.pause_ms": 5000})


def test_at_90_percent_sends_are_refused_and_taken_again_when_below() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 0.5)
        others_use(rig, 91)
        await run_for(rig, 60.0)
        answer = await client.answer(client.post_send(batch_of("t", 0, b"x")))
        assert answer.status == Status.NO_SPACE
        assert answer.header.retry_after_ms == 1000
        assert "takes no messages from 90 % on" in answer.header.detail
        read = await client.fetch(FetchPart("t", 0, 0))
        assert read.header.results[0].status == Status.OK, "reading goes on"
        await run_for(rig, 60.0)
        others_use(rig, 50)
        await run_for(rig, 60.0)
        (part,) = await client.send(batch_of("t", 0, b"x"))
        assert part.status == Status.OK
        told = await status(client)
        assert told.refused == 1 and 60 <= told.refused_s <= 180

    play(scenario, settings=MINUTELY)


def test_a_disk_filled_at_full_speed_is_never_full() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        files, least, refused, sent = rig.environment.files, CAPACITY, 0, 0
        for _ in range(6000):
            answer = await client.answer(client.post_send(batch_of("t", 0, BODY)))
            least = min(least, files.space("/")[1])
            if answer.status == Status.OK:
                sent += 1
            else:
                assert answer.status == Status.NO_SPACE
                refused += 1
                await rig.environment.clock.run_for(0.2)
        assert sent > 2 * CAPACITY / 64_000, "more than the disk holds, twice"
        assert least > 0.08 * CAPACITY

    play(scenario, settings={"plugin.cleanup.check_interval_s": 3600.0})


def test_the_last_segment_goes_too_where_sends_were_refused_for_ever_because_of_it() -> None:
    """A log of one large segment and the disk full: it would never close, taking no messages."""

    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 12.0)
        (base,) = bases(rig)
        planned = await ask(client, CLEANUP_RUN, RunCleanup(dry_run=True), CleanupDone)
        assert planned.gone == [], "below the mark nothing is done"
        others_use(rig, 92)
        planned = await ask(client, CLEANUP_RUN, RunCleanup(dry_run=True), CleanupDone)
        assert [(gone.base, gone.reason) for gone in planned.gone] == [(base, "forced")]
        assert bases(rig) == [base]
        await run_for(rig, 70.0)
        assert len(bases(rig)) == 1 and bases(rig)[0] > base
        (part,) = await client.send(batch_of("t", 0, b"x"))
        assert part.status == Status.OK
        (part,) = (await client.fetch(FetchPart("t", 0, 0))).header.results
        assert part.status == Status.EXPIRED and part.next_offset == part.min_offset == 195
        told = await status(client)
        assert told.deleted["forced"][0] == 1 and told.used_percent < 85

    play(scenario, settings={**MINUTELY, "log.segment_bytes": 1 << 30})


def test_the_last_segment_stays_where_others_fill_the_disk() -> None:
    """Its messages would go for nothing."""

    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 2.0)
        before = bases(rig)
        others_use(rig, 99)
        await run_for(rig, 300.0)
        assert bases(rig) == before
        answer = await client.answer(client.post_send(batch_of("t", 0, b"x")))
        assert answer.status == Status.NO_SPACE
        (part,) = (await client.fetch(FetchPart("t", 0, 0))).header.results
        assert part.status == Status.OK
        others_use(rig, 50)
        await run_for(rig, 60.0)
        (part,) = await client.send(batch_of("t", 0, b"x"))
        assert part.status == Status.OK and bases(rig) == before

    play(scenario, settings={**MINUTELY, "log.segment_bytes": 1 << 30})


def test_the_last_segment_of_a_disk_without_any_room_is_followed_by_the_reserve() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 12.0)
        (base,) = bases(rig)
        others_use(rig, 100)
        assert rig.environment.files.space("/")[1] < 1 << 18
        await run_for(rig, 130.0)
        assert base not in bases(rig)
        (part,) = await client.send(batch_of("t", 0, b"x"))
        assert part.status == Status.OK
        assert rig.environment.files.exists("/mq-data/log/reserve"), "there is room again"

    play(scenario, settings={**MINUTELY, "log.segment_bytes": 1 << 30})


# --- life -------------------------------------------------------------------------------------


def test_a_time_missed_while_off_is_made_up_for_at_the_start() -> None:
    environment = world()

    async def first(rig: Rig, client: RawClient) -> None:
        await fill(client, 2.2)
        await run_for(rig, 85 * HOUR_S)  # 01:00
        await fill(client, 0.1)

    async def second(rig: Rig, client: RawClient) -> None:
        assert len(bases(rig)) > 2
        await run_for(rig, 700.0)
        assert rig.broker.log.min_offset(1, 0) == 2 * (SEGMENT // 64_200) + 3

    play(first, environment)
    environment.clock.advance(5 * HOUR_S)  # 06:00
    play(second, environment)


def test_a_clock_a_year_ahead_deletes_nothing_for_a_day() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 2.2)
        before = bases(rig)
        await run_for(rig, 1300.0)
        rig.environment.clock.step_wall(365 * 24 * 3_600_000)
        for _ in range(23):
            await run_for(rig, HOUR_S)
        assert bases(rig)[:2] == before[:2], "04:00 has passed, but the time is not believed"
        lines = (await client.ask(Operation.BROKER_INFO, BrokerInfo())).header.status
        assert lines["clock"].startswith("365 d ahead of what is believed; ages count by it in")
        done = await ask(client, CLEANUP_RUN, RunCleanup(), CleanupDone)
        assert done.gone == [] and done.clock_in_doubt_ms == 365 * 24 * 3_600_000
        for _ in range(25):
            await run_for(rig, HOUR_S)
        assert not set(before[:2]) & set(bases(rig)), "a day later it is"

    play(scenario)


def test_an_operator_may_say_that_the_clock_is_right() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 2.2)
        await run_for(rig, 1300.0)
        rig.environment.clock.step_wall(365 * 24 * 3_600_000)
        await run_for(rig, 1300.0)
        planned = await ask(client, CLEANUP_RUN, RunCleanup(dry_run=True, force=True), CleanupDone)
        assert planned.gone == [], "a dry run changes nothing, not even what is believed"
        pending = client.post(CLEANUP_RUN, RunCleanup(force=True))
        await run_for(rig, 10.0)
        done = (await client.answer(pending)).header
        assert [gone.reason for gone in done.gone] == ["age", "age"]

    play(scenario)


def test_a_run_by_hand_does_what_its_dry_run_said() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 3.2)
        await run_for(rig, 73 * HOUR_S)
        before = bases(rig)
        planned = await ask(client, CLEANUP_RUN, RunCleanup(dry_run=True), CleanupDone)
        assert len(planned.gone) >= 3 and bases(rig) == before
        pending = client.post(CLEANUP_RUN, RunCleanup())
        await run_for(rig, 10.0)
        done = (await client.answer(pending)).header
        assert [g.base for g in done.gone] == [g.base for g in planned.gone] == before[:-1]
        assert (await status(client)).last == done.gone

    play(scenario)


def test_what_fails_is_logged_and_counted_and_comes_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 3.2)
        others_use(rig, 87)
        rig.environment.files.fail("unlink", errno.EIO, times=1)
        with caplog.at_level(logging.ERROR):
            await run_for(rig, 65.0)
        assert "job cleanup-space failed" in caplog.text
        others_use(rig, 87)
        await run_for(rig, 130.0)
        info = (await client.ask(Operation.BROKER_INFO, BrokerInfo())).header
        assert info.metrics['job_errors{job="cleanup-space"}'] == 1
        assert info.metrics['segments_deleted{reason="forced"}'] >= 1

    play(scenario, settings=MINUTELY)


class Listener:
    """Hears of the disk."""

    name = "listener"

    def __init__(self) -> None:
        self.marks: list[str] = []

    @hookimpl
    def disk_pressure(self, pressure: DiskPressure) -> None:
        self.marks.append(pressure.mark)


def test_plugins_hear_of_each_mark_before_sends_are_refused() -> None:
    listener = Listener()

    async def scenario(rig: Rig, client: RawClient) -> None:
        for percent in (70, 80, 87, 92, 70):
            others_use(rig, percent)
            await run_for(rig, 60.0)
        assert listener.marks == ["space", "forced", "refuse", ""]

    play(scenario, settings=MINUTELY, extra_plugins={"listener": listener})


def test_before_the_start_and_after_the_stop_nothing_is_done() -> None:
    plugin = CleanupPlugin(CleanupOptions())
    assert plugin.admit("SEND", 1) is None
    assert plugin.status() is None and plugin.metrics() == []
    for job in plugin.jobs():
        result = job.run()
        if result is not None:
            asyncio.run(result)
    plugin.stopping()


# --- the command ------------------------------------------------------------------------------


def test_the_commands_show_and_do_it(tmp_path: Any) -> None:
    runner = CliRunner()
    with (
        EmbeddedBroker(
            settings={
                "log.segment_bytes": 1 << 20,
                "plugin.cleanup.max_age_hours": 0.0,
                "plugin.cleanup.pause_ms": 1,
            },
            listen=f"ipc://{tmp_path}/mq",
        ) as broker,
        Producer(broker.address) as producer,
        Admin(broker.address) as admin,
    ):
        for _ in range(4):
            producer.send(Message("orders", b"x" * 700_000))
        connect = ["--connect", broker.address]
        shown = runner.invoke(cli, ["cleanup", "status", *connect])
        assert "% used, marks 75/85/90 %" in shown.output, shown.output
        assert "nothing deleted since the start" in shown.output
        planned = runner.invoke(cli, ["cleanup", "run", "--dry-run", *connect])
        assert "segments would go: " in planned.output, planned.output
        done = runner.invoke(cli, ["cleanup", "run", *connect])
        assert "segments deleted: " in done.output and "age" in done.output, done.output
        assert len(admin.offsets("orders")) == 4
        assert "by age" in runner.invoke(cli, ["cleanup", "status", *connect]).output
        as_json = runner.invoke(cli, ["cleanup", "run", "--json", *connect])
        assert as_json.output.startswith('{"gone": ['), as_json.output
        assert "by age" in runner.invoke(cli, ["info", *connect]).output


# --- readers ----------------------------------------------------------------------------------


def test_who_reads_the_oldest_gets_right_bytes_or_hears_that_they_expired(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "log.segment_bytes": 1 << 20,
        "plugin.cleanup.max_age_hours": 0.0,
        "plugin.cleanup.pause_ms": 1,
    }
    with (
        EmbeddedBroker(data=str(tmp_path), settings=settings) as broker,
        Producer(broker.address) as producer,
        Admin(broker.address) as admin,
    ):
        admin.create_topic("t", queues=1)
        for _ in range(6):
            producer.send_many([Message("t", bytes(60_000)) for _ in range(40)])
        cleaning = Thread(target=admin.call, args=(CLEANUP_RUN, RunCleanup(), CleanupDone))
        with PullConsumer(broker.address, topic="t", start=0, fetch_bytes=200_000) as consumer:
            consumer.poll(max_messages=1, timeout=10)
            cleaning.start()
            next_offset = 1
            while next_offset < 240:
                try:
                    messages = consumer.poll(max_messages=5, timeout=10)
                except Expired as error:
                    assert error.next_offset > next_offset
                    next_offset = error.next_offset
                    continue
                for message in messages:
                    assert (message.offset, message.body) == (next_offset, bytes(60_000))
                    next_offset += 1
        cleaning.join()
        bounds = admin.offsets("t")[0]
        assert bounds.min_offset > 150 and bounds.max_offset == 240
