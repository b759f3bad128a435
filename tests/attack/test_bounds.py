"""What clients can make grow stays bounded, and what is gone is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cometmq.broker import commits, member_room
from cometmq.broker.park import KEYS_PER_ITEM, Park
from cometmq.log import queue_index
from cometmq.protocol import (
    Commit,
    CommitPart,
    FetchPart,
    GroupHeartbeat,
    GroupLeave,
    HeldQueue,
    Operation,
    Status,
    Subscription,
    TopicCreate,
    TopicDelete,
)
from cometmq.testing.clock import VirtualClock
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.files import FaultyFiles
from cometmq.testing.raw_client import Answer, RawClient, Rig, batch_of, running_broker


async def churn(client: RawClient, count: int) -> None:
    """Topics that are made, used by a group of their own, and deleted."""
    for number in range(count):
        topic = f"t{number}"
        await client.ask(Operation.TOPIC_CREATE, TopicCreate(topic, 4))
        await client.send(*[batch_of(topic, queue, b"x") for queue in range(4)])
        parts = [CommitPart(topic, queue, 1) for queue in range(4)]
        answer = await client.ask(Operation.COMMIT, Commit(f"g{number}", parts))
        assert {part.status for part in answer.header.parts} == {Status.OK}
        await client.ask(Operation.TOPIC_DELETE, TopicDelete(topic))


def remembered(rig: Rig) -> tuple[int, int, int, int]:
    broker = rig.broker
    queues = len(list(broker.log.state.next_offsets.items()))
    return queues, broker.offsets.groups, broker.offsets.count, len(broker.topics)


def test_deleted_topics_leave_nothing_in_memory_now_or_after_a_start() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            await churn(client, 20)
            assert remembered(rig) == (0, 0, 0, 0)
            # No later topic can ever be taken for an old one.
            await client.send(batch_of("t0", 0, b"new"))
            assert rig.broker.log.next_offset(21, 0) == 1
            files = environment.files.crash(None)
        assert isinstance(files, FaultyFiles)
        async with running_broker(environment=VirtualEnvironment(files=files)) as rig:
            assert remembered(rig) == (1, 0, 0, 1)
            assert rig.broker.topics.next_incarnation == 22

    asyncio.run(scenario())


def test_deleted_topics_leave_no_hints_in_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_index, "HINTS_MAX", 10)

    async def scenario() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            for number in range(30):
                topic = f"t{number}"
                await client.send(batch_of(topic, 0, b"old"))
                await rig.settle()
                rig.broker.log.roll()
                await rig.settle()
                await client.send(batch_of(topic, 0, b"new"))
                answer = await client.fetch(FetchPart(topic, 0, 0))
                assert answer.header.results[0].next_offset == 1
                await client.ask(Operation.TOPIC_DELETE, TopicDelete(topic))
            assert 0 < len(rig.broker.log.index._last_found) <= 10

    asyncio.run(scenario())


def test_one_group_too_many_is_refused_and_the_known_ones_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commits, "GROUPS_MAX", 3)

    async def scenario() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            await client.send(batch_of("t", 0, b"x"), batch_of("u", 0, b"x"))

            async def commit(group: str, topic: str = "t") -> Status:
                part = CommitPart(topic, 0, 1)
                answer = await client.ask(Operation.COMMIT, Commit(group, [part]))
                found = answer.header.parts[0]
                if found.status == Status.LIMIT_REACHED:
                    assert "3 groups have committed offsets" in found.detail
                    assert "can't commit: use a group again" in found.detail
                return Status(found.status)

            assert [await commit(group) for group in "abc"] == [Status.OK] * 3
            assert await commit("d") == Status.LIMIT_REACHED
            assert await commit("a", "u") == await commit("b") == Status.OK
            await client.ask(Operation.TOPIC_DELETE, TopicDelete("t"))
            assert await commit("d", "u") == await commit("e", "u") == Status.OK
            assert await commit("f", "u") == Status.LIMIT_REACHED

    asyncio.run(scenario())


def test_one_committed_offset_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "PLACES_MAX", 2)

    async def scenario() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            await client.send(*[batch_of("t", queue, b"x") for queue in range(3)])
            statuses = []
            for queue in (0, 1, 2, 1):
                header = Commit("g", [CommitPart("t", queue, 1)])
                answer = await client.ask(Operation.COMMIT, header)
                statuses.append(answer.header.parts[0].status)
            assert statuses == [Status.OK, Status.OK, Status.LIMIT_REACHED, Status.OK]

    asyncio.run(scenario())


class Waiter:
    """Parked and never answered."""

    def retry(self) -> bool:
        return False

    def answer_empty(self) -> None:
        """Nobody hears it."""


def test_few_requests_with_many_keys_do_not_fill_the_memory() -> None:
    async def scenario() -> None:
        park = Park(VirtualClock(), 10)
        wide = [(1, queue) for queue in range(KEYS_PER_ITEM * 5)]
        first, second = Waiter(), Waiter()
        assert park.hold(first, wide, 1000) and park.hold(second, wide, 1000)
        assert not park.hold(Waiter(), [(1, 0)], 1000)
        park.drop(second)
        assert all(park.hold(Waiter(), [(1, queue)], 1000) for queue in range(9))
        assert not park.hold(Waiter(), [(1, 0)], 1000), "ten requests are parked"
        park.close()

    asyncio.run(scenario())


async def beat(client: RawClient, group: str = "g", **fields: Any) -> Answer:
    said = {"member": "m", "subscriptions": [Subscription("t")], **fields}
    return await client.ask(Operation.GROUP_HEARTBEAT, GroupHeartbeat(group, **said))


def test_heartbeats_of_many_groups_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("wide", 1024))
            wide = [Subscription("wide")]
            monkeypatch.setattr(member_room, "ROOM_BYTES", 5_000_000)
            taken = 0
            while (answer := await beat(client, f"g{taken}", subscriptions=wide)).status == 0:
                taken += 1
            assert answer.status == Status.LIMIT_REACHED and "all groups" in answer.header.detail
            assert 5 <= taken <= 20
            # Who is in stays in, may say less, and makes room when it goes.
            assert (await beat(client, "g0", subscriptions=wide)).status == Status.OK
            assert (await beat(client, "g1")).status == Status.OK
            assert (await beat(client, "late", subscriptions=wide)).status == Status.OK
            assert (await beat(client, "later", subscriptions=wide)).status == Status.LIMIT_REACHED
            await client.ask(Operation.GROUP_LEAVE, GroupLeave("g0", "m"))
            assert (await beat(client, "later", subscriptions=wide)).status == Status.OK
            for group in [*(f"g{number}" for number in range(taken)), "late", "later"]:
                await client.ask(Operation.GROUP_LEAVE, GroupLeave(group, "m"))
            assert rig.broker._service is not None
            assert rig.broker._service.groups.coordinator._room.taken_bytes == 0

    asyncio.run(scenario())


def test_a_heartbeat_keeps_no_more_than_it_needs() -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            fat: list[dict[str, Any]] = [
                {"subscriptions": [Subscription("t", "x" * 5000)]},
                {"subscriptions": [Subscription(f"t{n}", "x" * 4000) for n in range(17)]},
                {"room": "x" * 256},
                {"host": "x" * 100_000},
            ]
            for fields in fat:
                assert (await beat(client, **fields)).status == Status.TOO_LARGE
            held = [HeldQueue("t", number % 60_000) for number in range(100_000)]
            assert (await beat(client, held=held)).status == Status.OK
            assert rig.broker._service is not None
            group = rig.broker._service.groups.coordinator.groups["g"]
            assert not group.members["m"].said.held

    asyncio.run(scenario())
