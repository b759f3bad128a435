"""A machine with a small disk, for tests of what is deleted when: brokers run on it one after the
other, days go by in a moment, others fill the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias, TypeVar

import msgspec
import pytest

from cometmq import protocol
from cometmq.broker import Broker, groups, jobs, loop_lag
from cometmq.protocol import BrokerInfo, BrokerInfoReply, Heartbeat, Operation, Status
from cometmq.testing.clock import VirtualClock
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.files import FaultyFiles
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker

Header = TypeVar("Header", bound=msgspec.Struct)

SEGMENT_BYTES = 1 << 20
CAPACITY_BYTES = 64 << 20
NOON_MS = 1_750_075_200_000
"""16 June 2025, 12:00 UTC."""
BODY = b"x" * 64_000
STORED_BYTES = 64_200
"""A little more than what a batch of one such message takes."""
SETTINGS: Mapping[str, object] = {
    "log.segment_bytes": SEGMENT_BYTES,
    "plugin.commitlog.allocate_step_bytes": 1 << 18,
    "plugin.commitlog.reserve_bytes": 1 << 19,
    "plugin.cleanup.timezone": "UTC",
    "plugin.cleanup.check_interval_s": 600.0,
    "plugin.cleanup.retention_interval_s": 1e9,
    "broker.session_timeout_ms": 86_400_000,
}
SELDOM_S = 590.0
"""A simulated day must not look at its clock thousands of times."""


class CleanupRig:
    """`run` plays a scenario with a broker; clock and disk go on to the next one."""

    def __init__(self) -> None:
        self.clock = VirtualClock(NOON_MS)
        self.files = FaultyFiles(CAPACITY_BYTES)
        self.files.make_folder("/other")
        self.first: list[int] = []
        """Where the segments began that `fill_three` made."""
        self._running: Rig | None = None
        self._client: RawClient | None = None

    def run(
        self,
        scenario: Scenario,
        *plugins: str,
        settings: Mapping[str, object] | None = None,
        extra_plugins: Mapping[str, object] | None = None,
        **options: object,
    ) -> None:
        """A broker starts, the scenario is played, the broker stops. `options` are those of the
        plugin `cleanup`, the rest is as for `running_broker`."""
        merged = {**SETTINGS, **(settings or {})}
        merged.update({f"plugin.cleanup.{name}": value for name, value in options.items()})
        # Another one: timers of the loop before are not this one's.
        self.clock = VirtualClock(self.clock.wall_ms(), self.clock.uptime_s())
        environment = VirtualEnvironment(clock=self.clock, files=self.files)

        async def play() -> None:
            async with running_broker(
                merged, environment=environment, plugins=plugins, extra_plugins=extra_plugins
            ) as self._running:
                self._client = await self._running.client("me")
                await scenario(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jobs, "LOOK_AGAIN_S", SELDOM_S)
            patch.setattr(loop_lag, "INTERVAL_S", SELDOM_S)
            patch.setattr(groups, "TICK_S", SELDOM_S)
            asyncio.run(play())

    @property
    def broker(self) -> Broker:
        """The one that runs."""
        assert self._running is not None, "within a scenario"
        return self._running.broker

    @property
    def client(self) -> RawClient:
        """A client that is there all the time."""
        assert self._client is not None, "within a scenario"
        return self._client

    # --- what happens -------------------------------------------------------------------------

    async def run_for(self, seconds: float) -> None:
        """Time goes by, in steps, so that a long work has its turns."""
        assert self._running is not None, "within a scenario"
        for _ in range(8):
            await self.clock.run_for(seconds / 8)
            self.client.post(Operation.HEARTBEAT, Heartbeat())
        await self._running.settle()

    async def fill(self, segments: float) -> None:
        """Send so many segments' worth, at least one message, to topic `t`."""
        for _ in range(max(int(segments * SEGMENT_BYTES / STORED_BYTES), 1)):
            (part,) = await self.client.send(batch_of("t", 0, BODY))
            assert part.status == Status.OK

    async def fill_three(self) -> None:
        """Fill three segments, for `there`, and a bit of the next one."""
        await self.fill(3.2)
        self.first = self.bases()[:-1]
        assert len(self.first) == 3

    def others_use(self, percent: float) -> None:
        """Others fill the disk up to this, or empty it."""
        if self.files.exists("/other/file"):
            self.files.unlink("/other/file")
        total, free = self.files.space("/")
        size = int(total * percent / 100) - (total - free)
        if size > 0:
            file = self.files.open("/other/file", create=True)
            file.truncate(size)
            file.close()

    # --- how things are -----------------------------------------------------------------------

    def bases(self) -> list[int]:
        """Where the segments begin."""
        return [segment.base for segment in self.broker.log.segments()]

    def there(self) -> int:
        """How many are there of the segments of `fill_three`."""
        return len(set(self.first) & set(self.bases()))

    def post(self, number: int, header: msgspec.Struct, reply: type[msgspec.Struct]) -> int:
        """Begin an operation of a plugin; its id, for `reply`."""
        protocol.REPLIES[number] = reply
        return self.client.post(number, header)

    async def reply(self, pending: int, reply: type[Header]) -> Header:
        """What came of it."""
        answer = await self.client.answer(pending)
        assert answer.status == Status.OK and isinstance(answer.header, reply), answer
        return answer.header

    async def ask(self, number: int, header: msgspec.Struct, reply: type[Header]) -> Header:
        """Do an operation of a plugin, which waits for nothing."""
        return await self.reply(self.post(number, header, reply), reply)

    async def info(self) -> BrokerInfoReply:
        """What the broker says of itself."""
        return await self.ask(Operation.BROKER_INFO, BrokerInfo(), BrokerInfoReply)


Scenario: TypeAlias = Callable[[CleanupRig], Awaitable[None]]
