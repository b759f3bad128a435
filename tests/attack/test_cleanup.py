"""What operators, clocks and disks do to the cleanup plugin at the wrong moment."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from cometmq import Retention, protocol
from cometmq.broker import groups, jobs, loop_lag
from cometmq.broker.cron import Cron
from cometmq.errors import ConfigError
from cometmq.protocol import BrokerInfo, Heartbeat, Operation, Status, TopicAlter, TopicCreate
from cometmq.testing.clock import VirtualClock
from cometmq.testing.embedded import EmbeddedBroker
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker
from cometmq_plugins.cleanup import retention
from cometmq_plugins.cleanup.messages import CLEANUP_RUN, CleanupDone, RunCleanup
from cometmq_plugins.cleanup.plugin import CleanupPlugin

Scenario = Callable[[Rig, RawClient], Awaitable[None]]
HOUR_S = 3600.0
HOUR_MS = 3_600_000
SEGMENT = 1 << 20
BODY = b"x" * 64_000
NOON_MS = 1_750_075_200_000
"""16 June 2025, 12:00 UTC."""
SETTINGS: dict[str, object] = {
    "log.segment_bytes": SEGMENT,
    "plugin.commitlog.allocate_step_bytes": 1 << 18,
    "plugin.commitlog.reserve_bytes": 1 << 19,
    "plugin.cleanup.timezone": "UTC",
    "plugin.cleanup.check_interval_s": 600.0,
    "plugin.cleanup.retention_interval_s": 1e9,
    "broker.session_timeout_ms": 86_400_000,
}


@pytest.fixture(autouse=True)
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated day must not look at its clock thousands of times."""
    monkeypatch.setattr(jobs, "LOOK_AGAIN_S", 590.0)
    monkeypatch.setattr(loop_lag, "INTERVAL_S", 590.0)
    monkeypatch.setattr(groups, "TICK_S", 590.0)


def world() -> VirtualEnvironment:
    """A small disk, at noon."""
    environment = VirtualEnvironment(clock=VirtualClock(NOON_MS))
    environment.files.capacity_bytes = 64 << 20
    return environment


def play(
    scenario: Scenario, environment: VirtualEnvironment | None = None, **options: object
) -> None:
    settings = {**SETTINGS, **{f"plugin.cleanup.{name}": it for name, it in options.items()}}

    async def run() -> None:
        async with running_broker(settings, environment=environment or world()) as rig:
            await scenario(rig, await rig.client("me"))

    asyncio.run(run())


async def run_for(rig: Rig, client: RawClient, seconds: float) -> None:
    """Time goes by, and the client is there."""
    for _ in range(8):
        await rig.environment.clock.run_for(seconds / 8)
        client.post(Operation.HEARTBEAT, Heartbeat())
    await rig.settle()


def bases(rig: Rig) -> list[int]:
    return [segment.base for segment in rig.broker.log.segments()]


async def fill(client: RawClient, segments: float) -> None:
    for _ in range(int(segments * SEGMENT / 64_200)):
        (part,) = await client.send(batch_of("t", 0, BODY))
        assert part.status == Status.OK


async def keep(client: RawClient, hours: int, topic: str = "t") -> None:
    header = TopicAlter(topic, retention=Retention(time_ms=hours * HOUR_MS))
    assert (await client.ask(Operation.TOPIC_ALTER, header)).status == Status.OK


def post_run(client: RawClient, *, dry_run: bool) -> int:
    protocol.REPLIES[CLEANUP_RUN] = CleanupDone
    return client.post(CLEANUP_RUN, RunCleanup(dry_run))


async def done(client: RawClient, pending: int) -> CleanupDone:
    answer = await client.answer(pending)
    assert isinstance(answer.header, CleanupDone), answer
    return answer.header


# --- operators --------------------------------------------------------------------------------


def test_a_dry_run_reckons_with_what_the_run_lets_expire() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 3.2)
        await keep(client, 75)
        await run_for(rig, client, 76 * HOUR_S)
        before = bases(rig)
        planned = await done(client, post_run(client, dry_run=True))
        assert bases(rig) == before and rig.broker.log.min_offset(1, 0) == 0
        pending = post_run(client, dry_run=False)
        await run_for(rig, client, 60)
        went = await done(client, pending)
        assert planned.raised == went.raised != []
        assert [it.base for it in planned.gone] == [it.base for it in went.gone] == before[:-1]

    play(scenario, at="0 0 1 1 *")


def test_a_retention_that_is_set_while_old_segments_go_holds_the_rest() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 12.2)
        await run_for(rig, client, 76 * HOUR_S)
        pending = post_run(client, dry_run=False)
        await run_for(rig, client, 11)
        left = bases(rig)
        assert 3 < len(left) < 12
        await keep(client, 1000)
        await run_for(rig, client, 300)
        assert bases(rig) == left
        assert len((await done(client, pending)).gone) == 13 - len(left)

    play(scenario, at="0 0 1 1 *", pause_ms=5000)


def test_thousands_of_queues_with_a_retention_leave_turns_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "TURN", 10)

    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.ask(Operation.TOPIC_CREATE, TopicCreate("many", queues=200))
        await keep(client, 100, "many")
        for queue in range(200):
            await client.send(batch_of("many", queue, b"x"))
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

    play(scenario)


# --- disks ------------------------------------------------------------------------------------


def test_sends_go_on_while_nobody_can_say_how_full_the_disk_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(path: str) -> tuple[int, int]:
        raise OSError(errno.EIO, "statvfs", path)

    async def scenario(rig: Rig, client: RawClient) -> None:
        with monkeypatch.context() as patch, caplog.at_level(logging.CRITICAL):
            patch.setattr(rig.environment.files, "space", broken)
            await fill(client, 15)
            await run_for(rig, client, 700)
        info = (await client.ask(Operation.BROKER_INFO, BrokerInfo())).header
        assert info.metrics['job_errors{job="cleanup-watch"}'] == 1

    play(scenario)


def test_a_run_that_was_missed_and_fails_is_tried_again() -> None:
    environment = world()

    async def first(rig: Rig, client: RawClient) -> None:
        await fill(client, 2.2)
        await run_for(rig, client, 85 * HOUR_S)  # 01:00
        await fill(client, 0.1)

    async def second(rig: Rig, client: RawClient) -> None:
        before = bases(rig)
        environment.files.fail("unlink", errno.EIO, name=".seg")
        await run_for(rig, client, 700)
        assert before[1] in bases(rig), "the first one failed"
        await run_for(rig, client, 700)
        assert before[1] not in bases(rig)

    play(first, environment)
    environment.clock.advance(5 * HOUR_S)  # 06:00
    play(second, environment)


def test_a_long_run_is_told_of_once_and_not_every_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await fill(client, 12.2)
        files = rig.environment.files
        files.make_folder("/other")
        file = files.open("/other/file", create=True)
        file.truncate(int(files.space("/")[1] * 0.98))
        file.close()
        with caplog.at_level(logging.WARNING, logger="cometmq.broker.jobs"):
            await run_for(rig, client, 40)
        assert len(bases(rig)) < 8
        late = [record for record in caplog.records if "still runs" in record.message]
        assert len(late) == 1, late

    play(scenario, pause_ms=50_000, check_interval_s=1.0)


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
