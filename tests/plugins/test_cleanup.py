"""The plugin in a whole broker: days go by, disks fill, operators ask."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner

from cometmq import Admin, Expired, Message, Producer, PullConsumer
from cometmq.cli import cli
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import DiskPressure
from cometmq.protocol import FetchPart, Status
from cometmq.testing.cleanup_rig import (
    BODY,
    CAPACITY_BYTES,
    SEGMENT_BYTES,
    STORED_BYTES,
    CleanupRig,
)
from cometmq.testing.embedded import EmbeddedBroker
from cometmq.testing.raw_client import batch_of
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

HOUR_S = 3600.0
ONE_SEGMENT = {"log.segment_bytes": 1 << 30}


async def status(rig: CleanupRig) -> CleanupStatus:
    return await rig.ask(CLEANUP_STATUS, AskStatus(), CleanupStatus)


# --- the rules, by the hour -------------------------------------------------------------------


def test_old_segments_go_at_four_and_not_before() -> None:
    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(3.2)
        assert len(rig.bases()) == 4
        await rig.run_for(87 * HOUR_S)  # 03:00 on the fourth day, after 87 h
        assert len([b for b in rig.bases() if b < 3 * SEGMENT_BYTES]) >= 3
        await rig.run_for(0.9 * HOUR_S)
        before = rig.bases()
        await rig.run_for(0.2 * HOUR_S)
        after = rig.bases()
        assert after == before[-1:], "all were older than 72 h but the one that is written to"
        answer = await rig.client.fetch(FetchPart("t", 0, 0))
        (part,) = answer.header.results
        assert part.status == Status.EXPIRED and part.next_offset == part.min_offset > 0

    CleanupRig().run(scenario, retention_interval_s=3600.0)


def test_above_75_percent_old_segments_go_at_any_time_and_young_ones_stay() -> None:
    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(2.2)
        await rig.run_for(73 * HOUR_S)  # 13:00
        await rig.fill(2.0)
        before = rig.bases()
        rig.others_use(78)
        await rig.run_for(700.0)  # more than one interval with its jitter
        assert len(rig.bases()) < len(before)
        kept = rig.broker.log.next_offset(1, 0) - rig.broker.log.min_offset(1, 0)
        assert kept >= 2 * SEGMENT_BYTES // 64_300 - 1, "what is young is all there"
        assert rig.files.space("/")[1] / CAPACITY_BYTES < 0.27, "still above 73 %"

    CleanupRig().run(scenario)


def test_at_85_percent_the_oldest_go_until_the_disk_is_below() -> None:
    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(20.2)
        segments = len(rig.bases())
        rig.others_use(88)
        await rig.run_for(70.0)
        total, free = rig.files.space("/")
        used = 100 * (total - free) / total
        assert 82 < used < 85, "not more than needed"
        assert segments > len(rig.bases()) > 5
        told = await status(rig)
        assert (told.mark, told.refused) == ("space", 0)
        count, size = told.deleted["forced"]
        assert count == len(told.last) == segments - len(rig.bases())
        assert size == rig.bases()[0] and {gone.reason for gone in told.last} == {"forced"}

    CleanupRig().run(scenario, check_interval_s=60.0)


def test_deletion_is_paced_and_twenty_times_faster_on_a_full_disk() -> None:
    async def took_s(rig: CleanupRig, segments: int) -> float:
        """How long it takes until so many segments went, one after the other."""
        clock, begin_s = rig.clock, rig.clock.monotonic_s()
        seen = [len(rig.bases())]
        while seen[-1] > seen[0] - segments:
            await clock.run_for(0.1)
            seen.append(len(rig.bases()))
            assert seen[-2] - seen[-1] <= 1
        return clock.monotonic_s() - begin_s

    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(12.2)
        await rig.run_for(73 * HOUR_S)
        rig.post(CLEANUP_RUN, RunCleanup(), CleanupDone)
        assert 3 * 5.0 <= await took_s(rig, 4) < 4 * 6.0
        rig.others_use(99)
        await took_s(rig, 2)
        assert 3 * 0.25 <= await took_s(rig, 4) < 4 * 0.5

    CleanupRig().run(scenario, check_interval_s=60.0, pause_ms=5000)


def test_at_90_percent_sends_are_refused_and_taken_again_when_below() -> None:
    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(0.5)
        rig.others_use(91)
        await rig.run_for(60.0)
        answer = await rig.client.answer(rig.client.post_send(batch_of("t", 0, b"x")))
        assert answer.status == Status.NO_SPACE
        assert answer.header.retry_after_ms == 1000
        assert "takes no messages from 90 % on" in answer.header.detail
        read = await rig.client.fetch(FetchPart("t", 0, 0))
        assert read.header.results[0].status == Status.OK, "reading goes on"
        await rig.run_for(60.0)
        rig.others_use(50)
        await rig.run_for(60.0)
        (part,) = await rig.client.send(batch_of("t", 0, b"x"))
        assert part.status == Status.OK
        told = await status(rig)
        assert told.refused == 1 and 60 <= told.refused_s <= 180

    CleanupRig().run(scenario, check_interval_s=60.0)


def test_a_disk_filled_at_full_speed_is_never_full() -> None:
    async def scenario(rig: CleanupRig) -> None:
        files, least, refused, sent = rig.files, CAPACITY_BYTES, 0, 0
        for _ in range(6000):
            answer = await rig.client.answer(rig.client.post_send(batch_of("t", 0, BODY)))
            least = min(least, files.space("/")[1])
            if answer.status == Status.OK:
                sent += 1
            else:
                assert answer.status == Status.NO_SPACE
                refused += 1
                await rig.clock.run_for(0.2)
        assert sent > 2 * CAPACITY_BYTES / 64_000, "more than the disk holds, twice"
        assert least > 0.08 * CAPACITY_BYTES

    CleanupRig().run(scenario, check_interval_s=3600.0)


def test_the_last_segment_goes_too_where_sends_were_refused_for_ever_because_of_it() -> None:
    """A log of one large segment and the disk full: it would never close, taking no messages."""

    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(12.0)
        (base,) = rig.bases()
        planned = await rig.ask(CLEANUP_RUN, RunCleanup(dry_run=True), CleanupDone)
        assert planned.gone == [], "below the mark nothing is done"
        rig.others_use(92)
        planned = await rig.ask(CLEANUP_RUN, RunCleanup(dry_run=True), CleanupDone)
        assert [(gone.base, gone.reason) for gone in planned.gone] == [(base, "forced")]
        assert rig.bases() == [base]
        await rig.run_for(70.0)
        assert len(rig.bases()) == 1 and rig.bases()[0] > base
        (part,) = await rig.client.send(batch_of("t", 0, b"x"))
        assert part.status == Status.OK
        (part,) = (await rig.client.fetch(FetchPart("t", 0, 0))).header.results
        assert part.status == Status.EXPIRED and part.next_offset == part.min_offset == 195
        told = await status(rig)
        assert told.deleted["forced"][0] == 1 and told.used_percent < 85

    CleanupRig().run(scenario, settings=ONE_SEGMENT, check_interval_s=60.0)


def test_the_last_segment_stays_where_others_fill_the_disk() -> None:
    """Its messages would go for nothing."""

    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(2.0)
        before = rig.bases()
        rig.others_use(99)
        await rig.run_for(300.0)
        assert rig.bases() == before
        answer = await rig.client.answer(rig.client.post_send(batch_of("t", 0, b"x")))
        assert answer.status == Status.NO_SPACE
        (part,) = (await rig.client.fetch(FetchPart("t", 0, 0))).header.results
        assert part.status == Status.OK
        rig.others_use(50)
        await rig.run_for(60.0)
        (part,) = await rig.client.send(batch_of("t", 0, b"x"))
        assert part.status == Status.OK and rig.bases() == before

    CleanupRig().run(scenario, settings=ONE_SEGMENT, check_interval_s=60.0)


def test_the_last_segment_of_a_disk_without_any_room_is_followed_by_the_reserve() -> None:
    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(12.0)
        (base,) = rig.bases()
        rig.others_use(100)
        assert rig.files.space("/")[1] < 1 << 18
        await rig.run_for(130.0)
        assert base not in rig.bases()
        (part,) = await rig.client.send(batch_of("t", 0, b"x"))
        assert part.status == Status.OK
        assert rig.files.exists("/mq-data/log/reserve"), "there is room again"

    CleanupRig().run(scenario, settings=ONE_SEGMENT, check_interval_s=60.0)


# --- life -------------------------------------------------------------------------------------


def rig_that_was_off_at_four() -> CleanupRig:
    """Old segments lie there; a broker ran until 01:00, and now it is 06:00."""

    async def before(rig: CleanupRig) -> None:
        await rig.fill(2.2)
        await rig.run_for(85 * HOUR_S)
        await rig.fill(0.1)
        assert len(rig.bases()) > 2

    rig = CleanupRig()
    rig.run(before)
    rig.clock.advance(5 * HOUR_S)
    return rig


def test_a_time_missed_while_off_is_made_up_for_at_the_start() -> None:
    async def scenario(rig: CleanupRig) -> None:
        await rig.run_for(700.0)
        assert rig.broker.log.min_offset(1, 0) == 2 * (SEGMENT_BYTES // STORED_BYTES) + 3

    rig_that_was_off_at_four().run(scenario)


def test_a_run_that_was_missed_and_fails_is_tried_again() -> None:
    async def scenario(rig: CleanupRig) -> None:
        before = rig.bases()
        rig.files.fail("unlink", errno.EIO, name=".seg")
        await rig.run_for(700)
        assert before[1] in rig.bases(), "the first one failed"
        await rig.run_for(700)
        assert before[1] not in rig.bases()

    rig_that_was_off_at_four().run(scenario)


def test_a_clock_a_year_ahead_deletes_nothing_for_a_day() -> None:
    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(2.2)
        before = rig.bases()
        await rig.run_for(1300.0)
        rig.clock.step_wall(365 * 24 * 3_600_000)
        for _ in range(23):
            await rig.run_for(HOUR_S)
        assert rig.bases()[:2] == before[:2], "04:00 has passed, but the time is not believed"
        lines = (await rig.info()).status
        assert lines["clock"].startswith("365 d ahead of what is believed; ages count by it in")
        done = await rig.ask(CLEANUP_RUN, RunCleanup(), CleanupDone)
        # A wall clock is read in whole milliseconds, and when is a matter of the jobs' jitter.
        year_ms = pytest.approx(365 * 24 * 3_600_000, abs=1)
        assert done.gone == [] and done.clock_in_doubt_ms == year_ms
        for _ in range(25):
            await rig.run_for(HOUR_S)
        assert not set(before[:2]) & set(rig.bases()), "a day later it is"

    CleanupRig().run(scenario)


def test_an_operator_may_say_that_the_clock_is_right() -> None:
    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(2.2)
        await rig.run_for(1300.0)
        rig.clock.step_wall(365 * 24 * 3_600_000)
        await rig.run_for(1300.0)
        planned = await rig.ask(CLEANUP_RUN, RunCleanup(dry_run=True, force=True), CleanupDone)
        assert planned.gone == [], "a dry run changes nothing, not even what is believed"
        pending = rig.post(CLEANUP_RUN, RunCleanup(force=True), CleanupDone)
        await rig.run_for(10.0)
        done = await rig.reply(pending, CleanupDone)
        assert [gone.reason for gone in done.gone] == ["age", "age"]

    CleanupRig().run(scenario)


def test_a_run_by_hand_does_what_its_dry_run_said() -> None:
    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(3.2)
        await rig.run_for(73 * HOUR_S)
        before = rig.bases()
        planned = await rig.ask(CLEANUP_RUN, RunCleanup(dry_run=True), CleanupDone)
        assert len(planned.gone) >= 3 and rig.bases() == before
        pending = rig.post(CLEANUP_RUN, RunCleanup(), CleanupDone)
        await rig.run_for(10.0)
        done = await rig.reply(pending, CleanupDone)
        assert [g.base for g in done.gone] == [g.base for g in planned.gone] == before[:-1]
        assert (await status(rig)).last == done.gone

    CleanupRig().run(scenario)


def test_what_fails_is_logged_and_counted_and_comes_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(3.2)
        rig.others_use(87)
        rig.files.fail("unlink", errno.EIO, times=1)
        with caplog.at_level(logging.ERROR):
            await rig.run_for(65.0)
        assert "job cleanup-space failed" in caplog.text
        rig.others_use(87)
        await rig.run_for(130.0)
        info = await rig.info()
        assert info.metrics['job_errors{job="cleanup-space"}'] == 1
        assert info.metrics['segments_deleted{reason="forced"}'] >= 1

    CleanupRig().run(scenario, check_interval_s=60.0)


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

    async def scenario(rig: CleanupRig) -> None:
        for percent in (70, 80, 87, 92, 70):
            rig.others_use(percent)
            await rig.run_for(60.0)
        assert listener.marks == ["space", "forced", "refuse", ""]

    CleanupRig().run(scenario, extra_plugins={"listener": listener}, check_interval_s=60.0)


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
