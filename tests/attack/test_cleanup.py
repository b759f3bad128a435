"""What operators, clocks and disks do to the cleanup plugin at the wrong moment."""

from __future__ import annotations

import asyncio
import errno
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from cometmq import Retention
from cometmq.broker.cron import Cron
from cometmq.errors import ConfigError
from cometmq.protocol import Operation, Status, TopicAlter, TopicCreate
from cometmq.testing.cleanup_rig import CleanupRig
from cometmq.testing.embedded import EmbeddedBroker
from cometmq.testing.raw_client import batch_of
from cometmq_plugins.cleanup import retention
from cometmq_plugins.cleanup.messages import CLEANUP_RUN, CleanupDone, RunCleanup
from cometmq_plugins.cleanup.plugin import CleanupPlugin

HOUR_S = 3600.0
HOUR_MS = 3_600_000


async def keep(rig: CleanupRig, hours: int, topic: str = "t") -> None:
    header = TopicAlter(topic, retention=Retention(time_ms=hours * HOUR_MS))
    assert (await rig.client.ask(Operation.TOPIC_ALTER, header)).status == Status.OK


# --- operators --------------------------------------------------------------------------------


def test_a_dry_run_reckons_with_what_the_run_lets_expire() -> None:
    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(3.2)
        await keep(rig, 75)
        await rig.run_for(76 * HOUR_S)
        before = rig.bases()
        planned = await rig.ask(CLEANUP_RUN, RunCleanup(dry_run=True), CleanupDone)
        assert rig.bases() == before and rig.broker.log.min_offset(1, 0) == 0
        pending = rig.post(CLEANUP_RUN, RunCleanup(), CleanupDone)
        await rig.run_for(60)
        went = await rig.reply(pending, CleanupDone)
        assert planned.raised == went.raised != []
        assert [it.base for it in planned.gone] == [it.base for it in went.gone] == before[:-1]

    CleanupRig().run(scenario, at="0 0 1 1 *")


def test_a_retention_that_is_set_while_old_segments_go_holds_the_rest() -> None:
    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(12.2)
        await rig.run_for(76 * HOUR_S)
        pending = rig.post(CLEANUP_RUN, RunCleanup(), CleanupDone)
        await rig.run_for(11)
        left = rig.bases()
        assert 3 < len(left) < 12
        await keep(rig, 1000)
        await rig.run_for(300)
        assert rig.bases() == left
        assert len((await rig.reply(pending, CleanupDone)).gone) == 13 - len(left)

    CleanupRig().run(scenario, at="0 0 1 1 *", pause_ms=5000)


def test_thousands_of_queues_with_a_retention_leave_turns_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "TURN", 10)

    async def scenario(rig: CleanupRig) -> None:
        await rig.client.ask(Operation.TOPIC_CREATE, TopicCreate("many", queues=200))
        await keep(rig, 100, "many")
        for queue in range(200):
            await rig.client.send(batch_of("many", queue, b"x"))
        (plugin,) = (
            it.plugin
            for it in rig.broker.composition.plugins
            if isinstance(it.plugin, CleanupPlugin)
        )
        assert plugin._work is not None
        for look in (plugin._work._retainer.wanted_from, plugin._work._retainer.expired):
            task, turns = asyncio.ensure_future(look()), 0
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns >= 20, look

    CleanupRig().run(scenario)


# --- disks ------------------------------------------------------------------------------------


def test_sends_go_on_while_nobody_can_say_how_full_the_disk_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(path: str) -> tuple[int, int]:
        raise OSError(errno.EIO, "statvfs", path)

    async def scenario(rig: CleanupRig) -> None:
        with monkeypatch.context() as patch, caplog.at_level(logging.CRITICAL):
            patch.setattr(rig.files, "space", broken)
            await rig.fill(15)
            await rig.run_for(700)
        info = await rig.info()
        assert info.metrics['job_errors{job="cleanup-watch"}'] == 1

    CleanupRig().run(scenario)


def test_a_long_run_is_told_of_once_and_not_every_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(rig: CleanupRig) -> None:
        await rig.fill(12.2)
        rig.others_use(98)
        with caplog.at_level(logging.WARNING, logger="cometmq.broker.jobs"):
            await rig.run_for(40)
        assert len(rig.bases()) < 8
        late = [record for record in caplog.records if "still runs" in record.message]
        assert len(late) == 1, late

    CleanupRig().run(scenario, pause_ms=50_000, check_interval_s=1.0)


# --- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_age_hours", float("inf")),
        ("clock_confirm_hours", float("inf")),
        ("check_interval_s", 1e-9),
        ("check_interval_s", 1e300),
        ("retention_interval_s", float("inf")),
        ("retry_after_ms", 10**20),
        ("pause_ms", 10**16),
        ("at", "0 4 31 2 *"),
    ],
)
def test_numbers_beyond_all_measure_and_dates_that_never_come_are_refused(
    name: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=f"option `{name}`|{name}: "):
        EmbeddedBroker(settings={f"plugin.cleanup.{name}": value}).start()


@pytest.mark.parametrize(
    ("weekdays", "expected"),
    [
        ("0", "Sun"),
        ("7", "Sun"),
        ("sun", "Sun"),
        ("6", "Sat"),
        ("1-5", "Mon Tue Wed Thu Fri"),
        ("5-7", "Sun Fri Sat"),
        ("mon-fri", "Mon Tue Wed Thu Fri"),
        ("*/2", "Sun Tue Thu Sat"),
        ("1/3", "Mon Thu"),
        ("sun,3", "Sun Wed"),
    ],
)
def test_weekdays_have_crons_numbers_and_not_the_schedulers(weekdays: str, expected: str) -> None:
    cron, at, found = Cron(f"0 4 * * {weekdays}"), datetime(2026, 2, 1, tzinfo=UTC), list[str]()
    for _ in expected.split():
        following: Any = cron.after(at)
        at = following
        found.append(f"{at:%a}")
    assert found == expected.split(), "from Sunday on"


@pytest.mark.parametrize("weekdays", ["8", "3-1", "*/0", "1-", "*/x", "-"])
def test_weekdays_that_are_none_are_refused(weekdays: str) -> None:
    with pytest.raises(ConfigError, match="give five fields"):
        Cron(f"0 4 * * {weekdays}")


def test_starts_without_messages_leave_no_row_of_segments() -> None:
    rig = CleanupRig()

    async def run(rig: CleanupRig) -> None:
        pending = rig.post(CLEANUP_RUN, RunCleanup(), CleanupDone)
        await rig.run_for(60)
        await rig.reply(pending, CleanupDone)

    async def nothing(rig: CleanupRig) -> None:
        assert rig.bases()

    async def time_for_old_ones(rig: CleanupRig) -> None:
        assert len(rig.bases()) > 3
        await run(rig)
        assert len(rig.bases()) == 1
        await rig.fill(0.1)

    async def behind_a_young_message(rig: CleanupRig) -> None:
        before = rig.bases()
        assert len(before) == 4
        await run(rig)
        assert rig.bases() == before

    scenarios = nothing, nothing, nothing, time_for_old_ones, nothing, nothing
    for scenario in (*scenarios, behind_a_young_message):
        rig.run(scenario, at="0 0 1 1 *")
