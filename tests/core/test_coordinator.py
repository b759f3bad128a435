"""The group coordinator: who is a member, and what each is advised to hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cometmq.protocol import (
    Claim,
    ClaimPart,
    Goodbye,
    GroupAdvice,
    GroupDescribe,
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
    TopicDelete,
)
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.raw_client import RawClient, Rig, running_broker

TIMEOUT_MS = 10_000


class Member:
    """A member that does as it is told, step by step."""

    def __init__(self, client: RawClient, name: str, *topics: str, **fields: Any) -> None:
        self.client = client
        self.name = name
        self.topics = topics or ("t",)
        self.fields = {"session_timeout_ms": TIMEOUT_MS, **fields}
        self.generation = 0
        self.advised: list[tuple[str, int]] = []
        self.warnings: list[str] = []
        self.subscriptions: list[Subscription] = []
        self.tokens: dict[tuple[str, int], Token] = {}

    def heartbeat(self, wait_ms: int = 0) -> GroupHeartbeat:
        return GroupHeartbeat(
            "g",
            self.name,
            [_subscription(topic) for topic in self.topics],
            known=self.generation,
            held=[HeldQueue(*queue) for queue in self.tokens],
            wait_ms=wait_ms,
            **self.fields,
        )

    async def beat(self) -> list[tuple[str, int]]:
        """Ask for advice; the queues advised."""
        answer = await self.client.ask(Operation.GROUP_HEARTBEAT, self.heartbeat())
        self.take(answer.header)
        return self.advised

    def take(self, advice: GroupAdvice) -> None:
        assert isinstance(advice, GroupAdvice), advice
        self.generation = advice.generation
        self.advised = [(each.topic, each.queue) for each in advice.queues]
        self.warnings = advice.warnings
        self.subscriptions = advice.subscriptions

    def wait(self) -> int:
        """Post a heartbeat that waits for other advice."""
        return self.client.post(Operation.GROUP_HEARTBEAT, self.heartbeat(wait_ms=3000))

    async def follow(self) -> list[tuple[str, int]]:
        """Ask, release what is not advised any more, claim what is; what it holds then."""
        await self.beat()
        gone = [queue for queue in self.tokens if queue not in self.advised]
        if gone:
            parts = [ReleasePart(*queue, self.tokens.pop(queue)) for queue in gone]
            answer = await self.client.ask(Operation.RELEASE, Release("g", self.name, parts))
            assert all(part.status == Status.OK for part in answer.header.parts)
        new = [queue for queue in self.advised if queue not in self.tokens]
        if new:
            claim = Claim("g", self.name, [ClaimPart(*queue) for queue in new])
            answer = await self.client.ask(Operation.CLAIM, claim)
            for queue, part in zip(new, answer.header.parts, strict=True):
                assert part.status == Status.OK, part
                self.tokens[queue] = part.token
        return sorted(self.tokens)


def _subscription(text: str) -> Subscription:
    """`TOPIC` or `TOPIC:FILTER`."""
    topic, _, wanted = text.partition(":")
    return Subscription(topic, wanted)


async def member(rig: Rig, name: str, *topics: str, **fields: Any) -> Member:
    return Member(await rig.client(), name, *topics, **fields)


Scenario = Callable[[Rig], Awaitable[None]]


def play(
    scenario: Scenario, queues: int = 4, settings: dict[str, object] | None = None, **fields: Any
) -> None:
    async def run() -> None:
        async with running_broker(settings, **fields) as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", queues))
            await scenario(rig)

    asyncio.run(run())


def queues(*numbers: int, topic: str = "t") -> list[tuple[str, int]]:
    return [(topic, number) for number in numbers]


def test_a_lone_member_gets_all_queues() -> None:
    async def scenario(rig: Rig) -> None:
        one = await member(rig, "one")
        assert await one.follow() == queues(0, 1, 2, 3)
        generation = one.generation
        await one.follow()
        assert one.generation == generation > 0, "nothing changed, so the number did not"

    play(scenario)


def test_hand_over_is_cooperative() -> None:
    async def scenario(rig: Rig) -> None:
        one, two = await member(rig, "one"), await member(rig, "two")
        await one.follow()
        waiting = one.wait()
        assert await one.client.answer_if_any(waiting) is None
        assert await two.beat() == [], "all is still held"
        one.take((await one.client.answer(waiting)).header)
        assert len(one.advised) == 2, "told at once to let two go"
        parked = two.wait()
        assert await two.client.answer_if_any(parked) is None
        held = await one.follow()
        two.take((await two.client.answer(parked)).header)
        assert sorted(two.advised + held) == queues(0, 1, 2, 3), "told as soon as they were free"
        await two.follow()
        await one.follow()
        assert not set(one.tokens) & set(two.tokens)
        info = rig.broker.info().metrics
        assert info["rebalances"] == 1
        assert info["hand_overs"] == 2

    play(scenario)


@pytest.mark.parametrize("how", ["leave", "goodbye", "silence"])
def test_queues_of_who_is_gone_go_to_others(how: str) -> None:
    async def scenario(rig: Rig) -> None:
        clock = rig.environment.clock
        one, two = await member(rig, "one"), await member(rig, "two")
        for _ in range(3):
            await one.follow()
            await two.follow()
        assert len(two.tokens) == 2
        if how == "silence":
            for _ in range(4):
                await clock.run_for(2.4)
                assert len(await one.follow()) == 2
            await clock.run_for(1.0)
        elif how == "goodbye":
            await two.client.ask(Operation.GOODBYE, Goodbye())
        else:
            await two.client.ask(Operation.GROUP_LEAVE, GroupLeave("g", "two"))
        assert await one.follow() == queues(0, 1, 2, 3)

    play(scenario)


def test_a_parked_heartbeat_is_answered_in_time_to_be_heard_again() -> None:
    async def scenario(rig: Rig) -> None:
        clock = rig.environment.clock
        one = await member(rig, "one", session_timeout_ms=3000)
        await one.follow()
        waiting = one.client.post(Operation.GROUP_HEARTBEAT, one.heartbeat(wait_ms=60_000))
        await clock.run_for(0.9)
        assert await one.client.answer_if_any(waiting) is None
        await clock.run_for(0.2)
        assert (await one.client.answer(waiting)).header.generation == one.generation

    play(scenario)


def test_advice_that_is_not_followed_goes_to_another() -> None:
    async def scenario(rig: Rig) -> None:
        clock = rig.environment.clock
        idle, busy = await member(rig, "idle"), await member(rig, "busy")
        await idle.beat()
        await busy.follow()
        await idle.beat()
        assert len(idle.advised) == len(busy.tokens) == 2
        for _ in range(11):
            await clock.run_for(1.0)
            await idle.beat()
            await busy.follow()
        assert sorted(busy.tokens) == queues(0, 1, 2, 3)
        # Two session times later it is asked again, and this time it is ready.
        for _ in range(21):
            await clock.run_for(1.0)
            await busy.follow()
            await idle.follow()
        assert len(busy.tokens) == len(idle.tokens) == 2

    play(scenario)


def test_who_goes_on_not_claiming_is_asked_ever_more_rarely() -> None:
    async def scenario(rig: Rig) -> None:
        clock = rig.environment.clock
        idle, busy = await member(rig, "idle"), await member(rig, "busy")
        asked = 0
        for _ in range(300):
            await busy.follow()
            before, now = idle.advised, await idle.beat()
            asked += bool(now) and not before
            await clock.run_for(1.0)
        assert 2 <= asked <= 5

    play(scenario)


def test_topics_that_appear_grow_and_go_are_shared_at_once() -> None:
    async def scenario(rig: Rig) -> None:
        client = await rig.client()
        one = await member(rig, "one", "t", "later")
        await one.follow()
        assert one.warnings == [
            "topic 'later' is not there: nothing comes from it until it is created"
        ]
        waiting = one.wait()
        await client.ask(Operation.TOPIC_CREATE, TopicCreate("later", 1))
        one.take((await one.client.answer(waiting)).header)
        assert one.advised == [("later", 0), *queues(0, 1, 2, 3)]
        assert one.warnings == []
        await client.ask(Operation.TOPIC_ALTER, TopicAlter("t", 5))
        await one.follow()
        assert ("t", 4) in one.tokens
        await client.ask(Operation.TOPIC_DELETE, TopicDelete("t"))
        assert await one.beat() == [("later", 0)]

    play(scenario)


def test_a_member_gets_only_queues_of_topics_that_it_subscribes() -> None:
    async def scenario(rig: Rig) -> None:
        client = await rig.client()
        await client.ask(Operation.TOPIC_CREATE, TopicCreate("u", 4))
        both = await member(rig, "both", "t", "u", version=2)
        only = await member(rig, "only", "t", version=1)
        for _ in range(3):
            await both.follow()
            await only.follow()
        assert {topic for topic, _ in only.tokens} == {"t"}
        assert len(only.tokens) == 2
        assert len(both.tokens) == 6

    play(scenario)


def test_the_newest_subscriptions_win_and_both_hear_of_it() -> None:
    async def scenario(rig: Rig) -> None:
        old = await member(rig, "old", "t:a", version=1)
        new = await member(rig, "new", "t:b", version=2)
        await old.beat()
        await new.beat()
        await old.beat()
        for each in (old, new):
            assert each.subscriptions == [Subscription("t", "b")]
            (warning,) = each.warnings
            assert "'new' t:b" in warning and "'old' t:a" in warning
        old.topics, old.fields["version"] = ("t:b",), 2
        await old.beat()
        await new.beat()
        assert old.warnings == new.warnings == []

    play(scenario)


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_strict_members_refuse_to_differ(first: bool, second: bool) -> None:
    async def scenario(rig: Rig) -> None:
        one = await member(rig, "one", "t:a", strict=first)
        await one.beat()
        two = await member(rig, "two", "t:b", strict=second)
        answer = await two.client.ask(Operation.GROUP_HEARTBEAT, two.heartbeat())
        assert answer.status == Status.REFUSED
        assert "'one' t:a" in answer.header.detail and "'two' t:b" in answer.header.detail
        two.topics = ("t:a",)
        await two.beat()

    play(scenario)


def test_after_a_start_everybody_has_a_session_time_to_come_back() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 4))
            one, two = await member(rig, "one"), await member(rig, "two")
            for _ in range(3):
                await one.follow()
                await two.follow()
            before = sorted(one.tokens)
            rig.clients.clear()  # they are still there when the broker goes
        async with running_broker(environment=environment) as rig:
            back = await member(rig, "one")
            back.tokens, back.generation = one.tokens, one.generation
            stranger = await member(rig, "stranger")
            assert await back.beat() == before, "it keeps what it had, and only that"
            assert back.generation > one.generation
            assert await stranger.beat() == []
            answer = await back.client.ask(
                Operation.CLAIM,
                Claim("g", "one", [ClaimPart(*queue, token=one.tokens[queue]) for queue in before]),
            )
            assert all(part.kept for part in answer.header.parts)
            back.tokens = {
                queue: part.token for queue, part in zip(before, answer.header.parts, strict=True)
            }
            for _ in range(9):
                await environment.clock.run_for(1.0)
                assert await back.follow() == before
                assert await stranger.follow() == []
            await environment.clock.run_for(1.5)
            await back.follow()
            await stranger.follow()
            assert len(back.tokens) == len(stranger.tokens) == 2, "the one that did not come back"

    asyncio.run(scenario())


def test_when_all_are_back_nobody_waits() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 4))
            one = await member(rig, "one")
            await one.follow()
            rig.clients.clear()
        async with running_broker(environment=environment) as rig:
            back, new = await member(rig, "one"), await member(rig, "new")
            assert await new.beat() == []
            back.tokens = one.tokens
            await back.follow()
            assert len(await new.follow()) == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "status", "sentence"),
    [
        ({"group": "a b"}, Status.BAD_NAME, "is no group name"),
        ({"member": ""}, Status.BAD_NAME, "no member's name"),
        ({"subscriptions": []}, Status.BAD_REQUEST, "0 subscriptions"),
        ({"subscriptions": [Subscription("t")] * 2}, Status.BAD_REQUEST, "each topic once"),
        ({"subscriptions": [Subscription("a b")]}, Status.BAD_NAME, "no topic name"),
        ({"session_timeout_ms": 0}, Status.BAD_REQUEST, "session timeout of 0"),
        ({"strategy": "random"}, Status.REFUSED, "there are sticky, averagely"),
    ],
)
def test_a_heartbeat_that_makes_no_sense(
    fields: dict[str, Any], status: Status, sentence: str
) -> None:
    async def scenario(rig: Rig) -> None:
        one = await member(rig, "one")
        header = one.heartbeat()
        for name, value in fields.items():
            setattr(header, name, value)
        answer = await one.client.ask(Operation.GROUP_HEARTBEAT, header)
        assert answer.status == status
        assert sentence in answer.header.detail
        described = await one.client.ask(Operation.GROUP_DESCRIBE, GroupDescribe("g"))
        assert described.status == Status.GROUP_NOT_FOUND

    play(scenario)


def test_a_group_has_as_many_queues_as_advice_can_name() -> None:
    async def scenario(rig: Rig) -> None:
        client = await rig.client()
        names = [str(number) * 127 for number in range(7)]
        for name in names:
            await client.ask(Operation.TOPIC_CREATE, TopicCreate(name, 1000))
        one = await member(rig, "one", *names)
        assert len(await one.beat()) == 7000
        two = await member(rig, "two", *names, "t")
        answer = await two.client.ask(Operation.GROUP_HEARTBEAT, two.heartbeat())
        assert answer.status == Status.LIMIT_REACHED
        assert "have 7004 queues" in answer.header.detail

    play(scenario)


def test_the_member_chooses_a_strategy_that_is_there() -> None:
    async def scenario(rig: Rig) -> None:
        one = await member(rig, "a", strategy="circle")
        two = await member(rig, "b", strategy="circle")
        await one.beat()
        await two.beat()
        for _ in range(2):
            await one.follow()
            await two.follow()
        assert (sorted(one.tokens), sorted(two.tokens)) == (queues(0, 2), queues(1, 3))
        described = await one.client.ask(Operation.GROUP_DESCRIBE, GroupDescribe("g"))
        assert described.header.strategy == "circle"
        assert [each.member for each in described.header.members] == ["a", "b"]

    play(scenario, plugins=["circle"])


def test_without_any_strategy_nobody_joins() -> None:
    async def scenario(rig: Rig) -> None:
        one = await member(rig, "one")
        answer = await one.client.ask(Operation.GROUP_HEARTBEAT, one.heartbeat())
        assert answer.status == Status.REFUSED
        assert "enable one, such as sticky" in answer.header.detail

    play(scenario, plugins=["-sticky", "-averagely"])


def test_a_member_that_was_given_up_hears_that_it_is_out() -> None:
    async def scenario(rig: Rig) -> None:
        one = await member(rig, "one")
        await one.follow()
        waiting = one.wait()
        assert await one.client.answer_if_any(waiting) is None
        leaver = await rig.client()
        await leaver.ask(Operation.GROUP_LEAVE, GroupLeave("g", "one"))
        answer = await one.client.answer(waiting)
        assert answer.status == Status.RETRY
        assert "join it again" in answer.header.detail
        one.tokens.clear()
        assert await one.follow() == queues(0, 1, 2, 3)

    play(scenario)
