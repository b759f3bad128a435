"""What people ask of groups: list, describe, reset and its undo, delete, and the numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cometmq.protocol import (
    Claim,
    ClaimPart,
    Commit,
    CommitPart,
    Committed,
    FetchPart,
    GroupDelete,
    GroupDescribe,
    GroupDescription,
    GroupHeartbeat,
    GroupLeave,
    GroupList,
    GroupReset,
    GroupResetReply,
    Operation,
    PartStatus,
    QueueRef,
    Status,
    Subscription,
    Token,
    TopicCreate,
    TopicDelete,
)
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker

Scenario = Callable[[Rig, RawClient], Awaitable[None]]


async def fill(client: RawClient) -> None:
    """Two queues of t with three messages, group g at 1 and 2."""
    await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))
    for queue in (0, 1):
        await client.send(batch_of("t", queue, b"a", b"b", b"c"))
    await commit(client, 0, 1)
    await commit(client, 1, 2)


def play(scenario: Scenario) -> None:
    async def run() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            await fill(client)
            await scenario(rig, client)

    asyncio.run(run())


async def commit(client: RawClient, queue: int, offset: int, token: Token | None = None) -> int:
    header = Commit("g", [CommitPart("t", queue, offset, epoch=1, token=token)])
    (part,) = (await client.ask(Operation.COMMIT, header)).header.parts
    assert isinstance(part, PartStatus)
    return part.status


async def committed(client: RawClient) -> list[int]:
    header = Committed("g", [QueueRef("t", 0), QueueRef("t", 1)])
    return [part.offset for part in (await client.ask(Operation.COMMITTED, header)).header.parts]


async def reset(client: RawClient, to: str, value: int = 0, **fields: Any) -> GroupResetReply:
    answer = await client.ask(Operation.GROUP_RESET, GroupReset("g", "t", to, value, **fields))
    assert answer.status == Status.OK, answer
    assert isinstance(answer.header, GroupResetReply)
    return answer.header


async def describe(client: RawClient) -> GroupDescription:
    answer = await client.ask(Operation.GROUP_DESCRIBE, GroupDescribe("g"))
    assert isinstance(answer.header, GroupDescription), answer
    return answer.header


async def claimed(client: RawClient, queue: int = 0) -> Token:
    header = Claim("g", "one", [ClaimPart("t", queue)])
    (part,) = (await client.ask(Operation.CLAIM, header)).header.parts
    assert isinstance(part.token, Token)
    return part.token


def test_lag_is_told_in_messages_and_in_age() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await rig.environment.clock.run_for(7.0)
        await claimed(client, 1)
        described = await describe(client)
        assert (described.group, described.mode) == ("g", "claims")
        first, second = described.queues
        assert (first.committed, first.max_offset, first.lag, first.owner) == (1, 3, 2, "")
        assert 7000 <= first.lag_ms < 8000
        assert (second.committed, second.lag, second.owner) == (2, 1, "one")
        await commit(client, 0, 3)
        assert (await describe(client)).queues[0].lag_ms == 0
        metrics = rig.broker.info().metrics
        assert metrics['group_lag_messages{group="g",queue="0",topic="t"}'] == 0
        assert metrics['group_lag_messages{group="g",queue="1",topic="t"}'] == 1
        assert metrics['group_lag_age_ms{group="g",queue="1",topic="t"}'] >= 7000
        assert metrics["claims"] == 1
        assert metrics["group_lag_left_out"] == 0

    play(scenario)


def test_groups_are_listed_with_members_topics_and_lag() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        header = GroupHeartbeat("g2", "one", [Subscription("t")])
        await client.ask(Operation.GROUP_HEARTBEAT, header)
        listing = (await client.ask(Operation.GROUP_LIST, GroupList())).header.groups
        assert [(each.group, each.members, each.topics, each.lag) for each in listing] == [
            ("g", 0, 1, 3),
            ("g2", 1, 0, 0),
        ]
        listing = (await client.ask(Operation.GROUP_LIST, GroupList("g2"))).header.groups
        assert [each.group for each in listing] == ["g2"]

    play(scenario)


def test_members_are_described() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        header = GroupHeartbeat("g", "one", [Subscription("t", "a")], host="h1")
        await client.ask(Operation.GROUP_HEARTBEAT, header)
        described = await describe(client)
        (member,) = described.members
        assert (member.member, member.host) == ("one", "h1")
        assert member.subscriptions == [Subscription("t", "a")]
        assert [(each.topic, each.queue) for each in member.advised] == [("t", 0), ("t", 1)]
        assert described.strategy == "sticky"
        assert described.generation > 0

    play(scenario)


@pytest.mark.parametrize(
    ("to", "value", "offsets"),
    [
        ("earliest", 0, [0, 0]),
        ("latest", 0, [3, 3]),
        ("offset", 2, [2, 2]),
        ("offset", 99, [3, 3]),
        ("time", 0, [0, 0]),
    ],
)
def test_a_reset_moves_all_queues_and_can_be_undone(
    to: str, value: int, offsets: list[int]
) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        plan = await reset(client, to, value, dry_run=True)
        assert not plan.done
        assert await committed(client) == [1, 2]
        assert not (await describe(client)).can_undo
        done = await reset(client, to, value)
        assert done.done
        assert done.parts == plan.parts
        assert [(p.old_offset, p.new_offset) for p in done.parts] == [
            (1, offsets[0]),
            (2, offsets[1]),
        ]
        assert await committed(client) == offsets
        assert (await describe(client)).can_undo
        await reset(client, "undo")
        assert await committed(client) == [1, 2]
        await reset(client, "undo")
        assert await committed(client) == offsets, "an undo can be undone"

    play(scenario)


def test_a_reset_of_one_queue_is_undone_for_that_queue() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await reset(client, "latest")
        await reset(client, "earliest", queues=[1])
        assert await committed(client) == [3, 0]
        undone = await reset(client, "undo")
        assert [(part.queue, part.new_offset) for part in undone.parts] == [(1, 3)]
        assert await committed(client) == [3, 3]

    play(scenario)


def test_a_reset_waits_for_members_unless_it_is_forced() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        token = await claimed(client)
        header = GroupReset("g", "t", "earliest")
        answer = await client.ask(Operation.GROUP_RESET, header)
        assert answer.status == Status.REFUSED
        assert "1 active member ('one')" in answer.header.detail
        assert await committed(client) == [1, 2]
        await reset(client, "earliest", dry_run=True)
        await reset(client, "earliest", force=True)
        assert await committed(client) == [0, 0]
        assert await commit(client, 0, 3, token) == Status.FENCED, "no late commit undoes it"
        found = (await client.fetch(FetchPart("t", 0, 0, token=token), group="g")).header
        assert found.results[0].status == Status.FENCED
        assert await committed(client) == [0, 0]

    play(scenario)


def test_a_member_without_claims_is_active_too() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        header = GroupHeartbeat("g", "one", [Subscription("t")])
        await client.ask(Operation.GROUP_HEARTBEAT, header)
        for operation, request in (
            (Operation.GROUP_RESET, GroupReset("g")),
            (Operation.GROUP_DELETE, GroupDelete("g")),
        ):
            assert (await client.ask(operation, request)).status == Status.REFUSED
        await client.ask(Operation.GROUP_LEAVE, GroupLeave("g", "one"))
        await reset(client, "earliest")

    play(scenario)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (GroupReset("none"), Status.GROUP_NOT_FOUND),
        (GroupReset("a b"), Status.BAD_NAME),
        (GroupReset("g", "none"), Status.TOPIC_NOT_FOUND),
        (GroupReset("g", "t", queues=[7]), Status.QUEUE_NOT_FOUND),
        (GroupReset("g", "t", "somewhere"), Status.BAD_REQUEST),
        (GroupReset("g", "t", "offset", -1), Status.BAD_REQUEST),
        (GroupReset("g", "t", "undo"), Status.REFUSED),
    ],
)
def test_a_reset_that_makes_no_sense(header: GroupReset, status: Status) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        answer = await client.ask(Operation.GROUP_RESET, header)
        assert answer.status == status
        assert answer.header.detail
        assert await committed(client) == [1, 2]

    play(scenario)


def test_a_reset_without_a_topic_moves_all_topics_of_the_group() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.ask(Operation.TOPIC_CREATE, TopicCreate("u", 1))
        await client.send(batch_of("u", 0, b"x"))
        header = Commit("g", [CommitPart("u", 0, 1)])
        await client.ask(Operation.COMMIT, header)
        answer = await client.ask(Operation.GROUP_RESET, GroupReset("g", to="earliest"))
        assert [(part.topic, part.queue) for part in answer.header.parts] == [
            ("t", 0),
            ("t", 1),
            ("u", 0),
        ]

    play(scenario)


def test_a_group_may_be_prepared_for_a_topic_it_never_read() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.ask(Operation.GROUP_RESET, GroupReset("new", "t", "latest"))
        header = Claim("new", "one", [ClaimPart("t", 1)], start="earliest")
        (part,) = (await client.ask(Operation.CLAIM, header)).header.parts
        assert part.offset == 3

    play(scenario)


def test_a_deleted_group_begins_anew() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        token = await claimed(client)
        answer = await client.ask(Operation.GROUP_DELETE, GroupDelete("g"))
        assert answer.status == Status.REFUSED
        await client.ask(Operation.GROUP_DELETE, GroupDelete("g", force=True))
        answer = await client.ask(Operation.GROUP_DESCRIBE, GroupDescribe("g"))
        assert answer.status == Status.GROUP_NOT_FOUND
        assert "mq group list" in answer.header.detail
        assert await commit(client, 0, 2, token) == Status.FENCED
        header = Claim("g", "one", [ClaimPart("t", 0)], start="latest")
        (part,) = (await client.ask(Operation.CLAIM, header)).header.parts
        assert part.offset == 3

    play(scenario)


def test_what_a_reset_did_survives_a_restart() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            await fill(client)
            await reset(client, "latest")
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            assert await committed(client) == [3, 3]
            await reset(client, "undo")
            assert await committed(client) == [1, 2]

    asyncio.run(scenario())


def test_a_deleted_topic_is_no_topic_of_the_group() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await reset(client, "latest")
        await client.ask(Operation.TOPIC_DELETE, TopicDelete("t"))
        answer = await client.ask(Operation.GROUP_DESCRIBE, GroupDescribe("g"))
        assert answer.status == Status.GROUP_NOT_FOUND

    play(scenario)
