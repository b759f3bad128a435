"""Plugins that hold the broker's loop, in every place where it runs their code.

Who blocks is named while it does. The time that it took is nobody's silence: sessions, members of
groups and claims are there afterwards, also those whose connection broke meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from cometmq.batch import Batch
from cometmq.broker import watchdog
from cometmq.errors import Refused
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import DiskPressure, Job, Level, PluginOperation, Syncer
from cometmq.protocol import (
    BrokerInfo,
    Claim,
    ClaimPart,
    Commit,
    CommitPart,
    Fetch,
    FetchPart,
    GroupDescribe,
    GroupHeartbeat,
    Heartbeat,
    Operation,
    Status,
    Subscription,
    Token,
)
from cometmq.testing.clock import VirtualClock
from cometmq.testing.embedded import EmbeddedBroker
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker

TIMEOUT_MS = 10_000
STALL_S = 25.0
OPERATION = 1500


class Blocks:
    """A plugin with all hooks, and with a thing of each kind that a plugin can bring: each calls
    `block`, which calls `hold` in the place that the test wants, once."""

    name = "blocks"
    kinds: Sequence[str] = ("messages",)
    default_level: Level = "disk"
    interval_ms = 100

    def __init__(self, place: str, hold: Callable[[], object], armed: bool = False) -> None:
        self.armed = armed
        self._place, self._hold = place, hold

    def block(self, place: str) -> None:
        if self.armed and place == self._place:
            self.armed = False
            self._hold()

    # --- what it brings -----------------------------------------------------------------------

    @hookimpl
    def filters(self) -> list[Any]:
        return [self]

    @hookimpl
    def rebalance_strategies(self) -> list[Any]:
        return [self]

    @hookimpl
    def state_views(self) -> list[Any]:
        return [self]

    @hookimpl
    def flush_policy(self) -> Any:
        return self

    @hookimpl
    def jobs(self) -> list[Job]:
        return [Job("blocks", self.job, interval_s=0.5)]

    @hookimpl
    def operations(self) -> list[PluginOperation]:
        return [PluginOperation(OPERATION, "BLOCK", Heartbeat, self.operation)]

    def job(self) -> None:
        self.block("job")

    def operation(self, session: object, header: Heartbeat) -> Heartbeat:
        self.block("operation")
        raise Refused("so it is answered")

    def parse(self, expression: str) -> Any:
        self.block("parse")
        return self

    def select(self, batch: Batch) -> None:
        self.block("select")

    def assign(self, members: Any, queues: Any) -> Any:
        self.block("assign")
        return {queue: members[0].name for queue in queues}

    def apply(self, batch: Batch) -> None:
        self.block("apply")

    def slices(self) -> Iterator[bytes]:
        self.block("slices")
        yield b""

    def load(self, data: bytes) -> None: ...

    def reset(self) -> None: ...

    def start(self, syncer: Syncer) -> None:
        self._syncer = syncer

    def appended(self, awaited: bool, alone: bool) -> None:
        self.block("appended")
        if awaited:
            self._syncer.sync_blocking()

    def demand(self) -> None:
        self.block("demand")
        self._syncer.sync_blocking()

    async def stop(self) -> None:
        await self._syncer.sync()

    # --- hooks --------------------------------------------------------------------------------

    @hookimpl
    def started(self) -> None:
        self.block("started")

    @hookimpl
    def stopping(self) -> None:
        self.block("stopping")

    @hookimpl
    def authenticate(self) -> str:
        self.block("authenticate")
        return "somebody"

    @hookimpl
    def authorize(self) -> None:
        self.block("authorize")

    @hookimpl
    def admit(self) -> None:
        self.block("admit")

    @hookimpl
    def before_append(self) -> None:
        self.block("before_append")

    @hookimpl
    def readable_advanced(self) -> None:
        self.block("readable_advanced")

    @hookimpl
    def fetch_wait(self) -> None:
        self.block("fetch_wait")

    @hookimpl
    def metrics(self) -> None:
        self.block("metrics")

    @hookimpl
    def status(self) -> None:
        self.block("status")

    @hookimpl
    def disk_pressure(self) -> None:
        self.block("disk_pressure")


SERVING_HOOKS = [
    *("authenticate", "authorize", "admit", "before_append", "readable_advanced", "fetch_wait"),
    *("metrics", "status", "disk_pressure"),
]
BROUGHT = [
    *("parse", "select", "assign", "apply", "slices", "appended", "demand", "job", "operation"),
]


def chosen(place: str) -> list[str]:
    """Who else would be asked first is left out."""
    return ["-tagfilter", *(["-longpoll"] if place == "fetch_wait" else [])]


async def use_all(broker: Any, address: str) -> RawClient:
    """Have the broker call every hook and everything that a plugin brings, but for jobs."""
    client = RawClient(address)
    await client.hello()
    await client.send(batch_of("used", 0, b"x"))
    await client.send(batch_of("used", 0, b"y"), level="memory")
    everything = FetchPart("used", 0, 0)
    assert (await client.fetch(everything, filter="any")).status == Status.OK
    client.post(Operation.FETCH, Fetch([FetchPart("used", 0, 2)], wait_ms=60_000))
    beat = GroupHeartbeat("users", "m", [Subscription("used")], strategy="blocks")
    assert (await client.ask(Operation.GROUP_HEARTBEAT, beat)).status == Status.OK
    assert (await client.answer(client.post(OPERATION, Heartbeat()))).status == Status.REFUSED
    assert (await client.ask(Operation.BROKER_INFO, BrokerInfo())).status == Status.OK
    broker.composition.collect_sound("disk_pressure", pressure=DiskPressure("space", 0.8, 1, 1))
    broker.log.roll()
    return client


# --- time ---------------------------------------------------------------------------------------


class StallingClock(VirtualClock):
    """Its loop can stand still while time goes on: no timer fires before it goes on."""

    def stall(self) -> None:
        self._set(self.monotonic_s() + STALL_S)

    def _set(self, monotonic_s: float) -> None:
        # A stall within `run_for` has passed its end.
        super()._set(max(monotonic_s, self.monotonic_s()))


class Member:
    """A member of a group with a claim, that only waits."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.token: Token | None = None

    async def join(self) -> None:
        self.client = await self.rig.client("m")
        await self.client.send(batch_of("t", 0, b"a", b"b"))
        beat = GroupHeartbeat("g", "m", [Subscription("t")], session_timeout_ms=TIMEOUT_MS)
        answer = await self.client.ask(Operation.GROUP_HEARTBEAT, beat)
        beat.known, beat.wait_ms = answer.header.generation, 3000
        self.client.post(Operation.GROUP_HEARTBEAT, beat)
        assert not await self.claim()

    async def claim(self) -> bool:
        """Claim the queue, by the token that there is; whether it was kept."""
        parts = [ClaimPart("t", 0, token=self.token)]
        header = Claim("g", "m", parts, session_timeout_ms=TIMEOUT_MS)
        (part,) = (await self.client.ask(Operation.CLAIM, header)).header.parts
        assert part.status == Status.OK
        self.token = part.token
        return bool(part.kept)

    async def check(self) -> None:
        """It is all that it was."""
        assert (await self.client.ask(Operation.HEARTBEAT, Heartbeat())).status == Status.OK
        commit = Commit("g", [CommitPart("t", 0, 1, token=self.token)])
        assert (await self.client.ask(Operation.COMMIT, commit)).header.parts[0].status == Status.OK
        group = (await self.client.ask(Operation.GROUP_DESCRIBE, GroupDescribe("g"))).header
        assert [member.member for member in group.members] == ["m"]
        assert group.queues[0].owner == "m"


@pytest.mark.parametrize("place", [*SERVING_HOOKS, *BROUGHT])
def test_a_stall_is_nobodys_silence(place: str) -> None:
    clock = StallingClock()
    plugin = Blocks(place, clock.stall)

    async def scenario() -> None:
        environment = VirtualEnvironment(clock=clock)
        settings = {"broker.session_timeout_ms": TIMEOUT_MS}
        async with running_broker(
            settings,
            environment=environment,
            plugins=chosen(place),
            extra_plugins={"blocks": plugin},
        ) as rig:
            member = Member(rig)
            await member.join()
            before_s = clock.monotonic_s()
            plugin.armed = True
            other = await use_all(rig.broker, rig.broker.addresses[0])
            await clock.run_for(1.0)
            assert not plugin.armed, "nothing called it"
            assert clock.monotonic_s() - before_s >= STALL_S
            await member.check()
            assert (await other.ask(Operation.HEARTBEAT, Heartbeat())).status == Status.OK
            # Silence is still silence.
            await clock.run_for(2 * TIMEOUT_MS / 1000)
            assert rig.broker.info().sessions == 0
            other.close()

    asyncio.run(scenario())


def test_who_lost_its_connection_in_a_stall_has_its_time_to_come_back() -> None:
    """A client takes a broker that is silent for a session's time to be gone, and connects anew."""
    clock = StallingClock()
    plugin = Blocks("authorize", clock.stall)

    async def scenario() -> None:
        environment = VirtualEnvironment(clock=clock)
        async with running_broker(environment=environment, extra_plugins={"blocks": plugin}) as rig:
            member = Member(rig)
            await member.join()
            other = await rig.client()
            plugin.armed = True
            await other.send(batch_of("t", 0, b"x"))
            assert not plugin.armed
            member.client.close()
            await rig.settle()  # the broker hears of it before any timer is due
            await clock.run_for(1.0)
            member.client = await rig.client("m", client_epoch=1)
            assert await member.claim(), "nobody had the queue in between"
            await member.check()

    asyncio.run(scenario())


# --- names --------------------------------------------------------------------------------------


@contextmanager
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set once the watchdog has spoken, which it does soon."""
    monkeypatch.setattr(watchdog, "WARN_AFTER_S", 0.2)
    spoken = threading.Event()

    class Hears(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == watchdog.__name__:
                spoken.set()

    handler, logger = Hears(), logging.getLogger(watchdog.__name__)
    logger.addHandler(handler)
    try:
        yield spoken
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("place", ["started", *SERVING_HOOKS, *BROUGHT, "stopping"])
def test_who_blocks_is_named_while_it_does(
    place: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with told(monkeypatch) as spoken:
        plugin = Blocks(place, lambda: spoken.wait(30), armed=place == "started")
        with EmbeddedBroker(plugins=chosen(place), extra_plugins={"blocks": plugin}) as broker:
            if place != "started":
                plugin.armed = True
            client = broker.await_(lambda: use_all(broker.broker, broker.address))
            broker.call(client.close)
            if place == "job":
                assert spoken.wait(30)
    assert not plugin.armed, "nothing called it"
    if place in BROUGHT:
        assert f"the event loop is blocked: {place} ({__file__}, line" in caplog.text
    else:
        assert f"the event loop is blocked: hook {place} of plugin blocks has not" in caplog.text


def test_a_hook_that_calls_another_plugins_code_is_not_blamed_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long polling looks again at a fetch, in its hook, and the filter of another plugin blocks."""
    with told(monkeypatch) as spoken:
        plugin = Blocks("select", lambda: spoken.wait(30))

        async def wait_filtered(address: str) -> None:
            client = RawClient(address)
            await client.hello()
            await client.send(batch_of("t", 0, b"x"))
            fetch = Fetch([FetchPart("t", 0, 1)], wait_ms=60_000, filter="any")
            waiting = client.post(Operation.FETCH, fetch)
            assert await client.answer_if_any(waiting) is None
            plugin.armed = True
            await client.send(batch_of("t", 0, b"y"))
            assert (await client.answer(waiting)).status == Status.OK
            client.close()

        plugins = {"blocks": plugin}
        with EmbeddedBroker(plugins=["-tagfilter"], extra_plugins=plugins) as broker:
            broker.await_(lambda: wait_filtered(broker.address))
    assert not plugin.armed, "nothing called it"
    assert "hook readable_advanced of plugin longpoll has not returned" in caplog.text
    assert f"select ({__file__}, line" in caplog.text
