"""Random lives of groups: members join, leave, fall silent, wake up, and don't listen; the broker
restarts; the topic grows. Whatever happens, no two members are accepted as owners of one queue, and
when all is quiet every queue has exactly one."""

from __future__ import annotations

import asyncio
from itertools import count
from random import Random
from typing import Any

import pytest

from cometmq.protocol import (
    Claim,
    ClaimPart,
    Commit,
    CommitPart,
    GroupAdvice,
    GroupHeartbeat,
    GroupLeave,
    HeldQueue,
    Operation,
    Release,
    ReleasePart,
    Status,
    Subscription,
    Token,
    TopicAlter,
    TopicCreate,
)
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.raw_client import RawClient, Rig, running_broker

TIMEOUT_MS = 3000
STRATEGIES = ("sticky", "averagely", "circle", "consistent-hash", "machine-room")


class Member:
    """What a member believes: tokens, also those that are long void."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.client: RawClient | None = None
        self.generation = 0
        self.tokens: dict[int, Token] = {}
        self.presented: set[int] = set()
        """Queues whose token this connection has shown: as clients do that connect anew."""


class World:
    """The group, and what must be true of it."""

    def __init__(self, random: Random, strategy: str) -> None:
        self.random = random
        self.strategy = strategy
        self.queues = 4
        self.members = [Member(f"m{number}") for number in range(5)]
        self.granted: dict[int, tuple[int, int]] = {}
        """The newest token of each queue."""
        self.commits = {True: 0, False: 0}
        self._epochs = count(1)

    def epoch(self) -> int:
        """Of the next connection of anybody."""
        return next(self._epochs)

    async def connect(self, rig: Rig, member: Member) -> None:
        """A new connection of a member."""
        member.presented.clear()
        member.client = await rig.client(member.name, client_epoch=self.epoch())

    async def step(self, rig: Rig) -> None:
        member = self.random.choice(self.members)
        if member.client is None:
            await self.connect(rig, member)
        act = self.random.choice(
            (self.follow, self.follow, self.follow, self.commit, self.grab, self.leave, self.pause)
        )
        if self.random.random() < 0.05 and self.queues < 9:
            self.queues += 1
            client = await rig.client()
            await client.ask(Operation.TOPIC_ALTER, TopicAlter("t", self.queues))
        await act(rig, member)

    async def pause(self, rig: Rig, member: Member) -> None:
        """Time passes; whoever does nothing meanwhile falls silent."""
        await rig.environment.clock.run_for(self.random.choice((0.1, 0.5, 1.0, 2.5)))

    async def leave(self, rig: Rig, member: Member) -> None:
        if self.random.random() < 0.5:
            await self.ask(member, Operation.GROUP_LEAVE, GroupLeave("g", member.name))
        elif member.client is not None:
            member.client.close()
            await rig.settle()
        member.client = None if self.random.random() < 0.5 else member.client
        if member.client is not None and self.random.random() < 0.5:
            await self.connect(rig, member)

    async def follow(self, rig: Rig, member: Member) -> None:
        """Do what the coordinator says."""
        header = GroupHeartbeat(
            "g",
            member.name,
            [Subscription("t")],
            known=member.generation,
            held=[HeldQueue("t", queue) for queue in member.tokens],
            session_timeout_ms=TIMEOUT_MS,
            strategy=self.strategy,
        )
        advice = await self.ask(member, Operation.GROUP_HEARTBEAT, header)
        if not isinstance(advice, GroupAdvice):
            return
        member.generation = advice.generation
        advised = {each.queue for each in advice.queues}
        await self.release(member, [queue for queue in member.tokens if queue not in advised])
        await self.claim(
            member, [queue for queue in sorted(advised) if not self.owns(member, queue)]
        )

    def owns(self, member: Member, queue: int) -> bool:
        token = member.tokens.get(queue)
        if token is None or queue not in member.presented:
            return False
        return self.granted.get(queue) == (token.epoch, token.position)

    async def grab(self, rig: Rig, member: Member) -> None:
        """Claim without being told to: another coordinator, or a bug."""
        await self.claim(member, [self.random.randrange(self.queues)])

    async def follow_other(self, rig: Rig, member: Member) -> None:
        """Do what a second coordinator says, to whom the last two members are the whole group."""
        pair = self.members[-2:]
        advised = [q for q in range(self.queues) if pair[q % 2] is member]
        await self.claim(member, [queue for queue in advised if not self.owns(member, queue)])

    async def claim(self, member: Member, queues: list[int]) -> None:
        if not queues:
            return
        parts = [ClaimPart("t", queue, token=member.tokens.get(queue)) for queue in queues]
        reply = await self.ask(member, Operation.CLAIM, Claim("g", member.name, parts))
        for queue, part in zip(queues, reply.parts if reply else (), strict=False):
            if part.status != Status.OK:
                assert part.status == Status.CLAIMED, part
                continue
            token = part.token.epoch, part.token.position
            assert token > self.granted.get(queue, (0, 0)), "tokens only grow"
            self.granted[queue] = token
            member.tokens[queue] = part.token
            member.presented.add(queue)

    async def release(self, member: Member, queues: list[int]) -> None:
        if not queues:
            return
        parts = [ReleasePart("t", queue, member.tokens.pop(queue)) for queue in queues]
        await self.ask(member, Operation.RELEASE, Release("g", member.name, parts))

    async def commit(self, rig: Rig, member: Member) -> None:
        """With whatever token it has: only the newest may be taken."""
        for queue, token in list(member.tokens.items()):
            part = CommitPart("t", queue, 0, token=token)
            reply = await self.ask(member, Operation.COMMIT, Commit("g", [part]))
            if reply is None:
                return
            taken = reply.parts[0].status == Status.OK
            self.commits[taken] += 1
            newest = self.granted[queue] == (token.epoch, token.position)
            assert newest or not taken, f"{member.name} is not the owner of {queue} any more"

    async def ask(self, member: Member, operation: int, header: Any) -> Any:
        """The reply's header; None if this connection is no good any more."""
        if member.client is None:
            return None
        try:
            answer = await member.client.ask(operation, header)
        except AssertionError as error:
            if "channel takes nothing" not in str(error) and "was not answered" not in str(error):
                raise
            member.client = None
            return None
        if answer.status == Status.HELLO_REQUIRED:
            member.client = None
            return None
        assert answer.status in (Status.OK, Status.RETRY), answer
        return answer.header if answer.status == Status.OK else None

    async def settle(self, rig: Rig) -> None:
        """Everybody does as they are told until nothing changes any more."""
        for _ in range(60):
            for member in self.members:
                if member.client is None:
                    await self.connect(rig, member)
                await self.follow(rig, member)
            await rig.environment.clock.run_for(0.5)

    def check_quiet(self, rig: Rig) -> None:
        holders = {key[2]: holder for key, holder in rig.broker.claims.items()}
        assert sorted(holders) == list(range(self.queues)), "every queue has one owner"
        for queue, holder in holders.items():
            assert self.granted[queue] == (holder.epoch, holder.position)
        shares = [
            sum(holder.member == member.name for holder in holders.values())
            for member in self.members
        ]
        if self.strategy == "consistent-hash":
            assert max(shares) <= -(-5 * self.queues // 20)
        else:
            assert max(shares) - min(shares) <= 1, shares


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(3))
def test_random_lives_of_a_group(seed: int, strategy: str) -> None:
    world = World(Random(f"{seed} {strategy}"), strategy)

    async def run() -> None:
        environment = VirtualEnvironment()
        for start in range(3):
            async with running_broker(environment=environment, plugins=[*STRATEGIES[2:]]) as rig:
                if not start:
                    client = await rig.client()
                    await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", world.queues))
                for member in world.members:
                    member.client = None
                for _ in range(60):
                    await world.step(rig)
                await world.settle(rig)
                world.check_quiet(rig)
                if world.random.random() < 0.5:
                    rig.clients.clear()  # the broker goes first

    asyncio.run(run())
    assert world.commits[True]


@pytest.mark.parametrize("seed", range(4))
def test_two_coordinators_at_once(seed: int) -> None:
    """Goal: two who advise the same queues to different members cost efficiency, never safety.

    Method: three members obey the broker's coordinator, two another one, and all commit with what
    tokens they have; `World` checks each grant and each commit. With the other one gone, all is
    balanced again.
    """
    world = World(Random(seed), "sticky")

    async def run() -> None:
        async with running_broker(environment=VirtualEnvironment()) as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", world.queues))
            for _ in range(150):
                member = world.random.choice(world.members)
                if member.client is None:
                    await world.connect(rig, member)
                obey = world.follow if member in world.members[:3] else world.follow_other
                act = world.random.choice((obey, obey, world.commit, world.leave, world.pause))
                await act(rig, member)
            claimed_by = {holder.member for _, holder in rig.broker.claims.items()}
            await world.settle(rig)
            world.check_quiet(rig)
        assert claimed_by, "nobody owned anything"

    asyncio.run(run())
    assert world.commits[True]
