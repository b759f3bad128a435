"""Topics: made, changed, deleted, and never mistaken for their successors."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from cometmq.protocol import (
    Commit,
    CommitPart,
    Committed,
    FetchPart,
    Operation,
    QueueRef,
    Status,
    TopicAlter,
    TopicCreate,
    TopicDelete,
    TopicDescribe,
    TopicDescription,
    TopicList,
)
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.raw_client import Answer, RawClient, Rig, batch_of, play, running_broker


async def create(client: RawClient, topic: str, queues: int = 4) -> TopicDescription:
    answer = await client.ask(Operation.TOPIC_CREATE, TopicCreate(topic, queues))
    assert isinstance(answer.header, TopicDescription), answer
    return answer.header


async def describe(client: RawClient, topic: str, **fields: object) -> Answer:
    header = msgspec.convert({"topic": topic, **fields}, dict)
    return await client.ask(Operation.TOPIC_DESCRIBE, TopicDescribe(**header))


def test_create_and_describe() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        made = await create(client, "orders", 3)
        assert (made.info.topic, made.info.queues, made.info.incarnation) == ("orders", 3, 1)
        assert made.info.created_ms == rig.environment.clock.wall_ms()
        assert made.log_id == rig.broker.log.log_id.hex()
        await client.send(batch_of("orders", 2, b"a", b"b"))
        found = (await describe(client, "orders")).header
        assert [(q.queue, q.min_offset, q.max_offset, q.next_offset) for q in found.queues] == [
            (0, 0, 0, 0),
            (1, 0, 0, 0),
            (2, 0, 2, 2),
        ]

    play(scenario)


@pytest.mark.parametrize(
    ("header", "status", "sentence"),
    [
        (TopicCreate("there"), Status.TOPIC_EXISTS, "there already"),
        (TopicCreate(""), Status.BAD_NAME, "1 to 127"),
        (TopicCreate("ü"), Status.BAD_NAME, "1 to 127"),
        (TopicCreate("x" * 128), Status.BAD_NAME, "1 to 127"),
        (TopicCreate("a/b"), Status.BAD_NAME, "1 to 127"),
        (TopicCreate("a\n"), Status.BAD_NAME, "1 to 127"),
        (TopicCreate("zero", 0), Status.BAD_REQUEST, "give 1 to 1024"),
        (TopicCreate("many", 1025), Status.BAD_REQUEST, "give 1 to 1024"),
    ],
)
def test_what_can_not_be_created_is_refused_by_name(
    header: TopicCreate, status: Status, sentence: str
) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await create(client, "there")
        answer = await client.ask(Operation.TOPIC_CREATE, header)
        assert answer.status == status
        assert sentence in answer.header.detail
        assert len(answer.header.detail) < 250
        assert len(rig.broker.topics) == 1

    play(scenario)


def test_alter_grows_and_switches_but_never_shrinks() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await create(client, "t", 2)
        answer = await client.ask(Operation.TOPIC_ALTER, TopicAlter("t", queues=5, readable=False))
        assert answer.header.info.queues == 5
        assert (await client.send(batch_of("t", 4, b"x")))[0].status == Status.OK
        fetched = await client.fetch(FetchPart("t", 4, 0))
        assert fetched.header.results[0].status == Status.NOT_READABLE
        answer = await client.ask(Operation.TOPIC_ALTER, TopicAlter("t", queues=4))
        assert answer.status == Status.REFUSED
        assert "can't shrink to 4" in answer.header.detail
        answer = await client.ask(Operation.TOPIC_ALTER, TopicAlter("t", incarnation=9))
        assert answer.status == Status.TOPIC_GONE
        answer = await client.ask(Operation.TOPIC_ALTER, TopicAlter("missing"))
        assert answer.status == Status.TOPIC_NOT_FOUND

    play(scenario)


def test_list_is_sorted_and_by_prefix() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        for name in ("b", "a.2", "a.1"):
            await create(client, name)
        listed = (await client.ask(Operation.TOPIC_LIST, TopicList())).header
        assert [topic.topic for topic in listed.topics] == ["a.1", "a.2", "b"]
        listed = (await client.ask(Operation.TOPIC_LIST, TopicList("a."))).header
        assert [topic.topic for topic in listed.topics] == ["a.1", "a.2"]

    play(scenario)


def test_some_topics_can_be_asked_for_by_prefix() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        for name in ("b", "a.2", "a.1", "a.3"):
            await create(client, name)
        for most, told in ((2, 2), (3, 3), (100, 3)):
            listed = (await client.ask(Operation.TOPIC_LIST, TopicList("a.", most))).header
            assert len(listed.topics) == told
            assert {topic.topic for topic in listed.topics} <= {"a.1", "a.2", "a.3"}

    play(scenario)


def test_a_list_that_no_frame_can_hold_is_refused_by_name() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        for number in range(1000):
            client.post(Operation.TOPIC_CREATE, TopicCreate(f"{number:04}" + "x" * 120, 1))
        await rig.settle()
        answer = await client.ask(Operation.TOPIC_LIST, TopicList())
        assert answer.status == Status.LIMIT_REACHED
        assert "the 1000 topics that begin with '' don't fit" in answer.header.detail
        listed = (await client.ask(Operation.TOPIC_LIST, TopicList("00"))).header
        assert len(listed.topics) == 100

    small = {"limits.batch_bytes": 1 << 16, "limits.frame_bytes": 1 << 17}
    play(scenario, {**small})


def test_a_deleted_topic_never_comes_back() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        first = (await create(client, "t")).info.incarnation
        await client.send(batch_of("t", 0, b"old"))
        await client.ask(Operation.COMMIT, Commit("g", [CommitPart("t", 0, 1)]))
        assert (await client.ask(Operation.TOPIC_DELETE, TopicDelete("t", first))).status == 0
        gone = await client.fetch(FetchPart("t", 0, 0, incarnation=first))
        assert gone.header.results[0].status == Status.TOPIC_GONE
        never = await client.fetch(FetchPart("t", 0, 0))
        assert never.header.results[0].status == Status.TOPIC_NOT_FOUND
        second = (await create(client, "t")).info.incarnation
        assert second > first
        gone = await client.fetch(FetchPart("t", 0, 0, incarnation=first))
        assert gone.header.results[0].status == Status.TOPIC_GONE
        (sent,) = await client.send(batch_of("t", 0, b"new"), incarnations=[first])
        assert sent.status == Status.TOPIC_GONE
        (sent,) = await client.send(batch_of("t", 0, b"new"), incarnations=[second])
        assert sent.base_offset == 0
        read = await client.ask(Operation.COMMITTED, Committed("g", [QueueRef("t", 0)]))
        assert not read.header.parts[0].found, "offsets go with their topic"
        again = await client.ask(Operation.TOPIC_DELETE, TopicDelete("t", first))
        assert again.status == Status.TOPIC_GONE

    play(scenario)


def test_commits_of_the_same_drain_go_with_the_deleted_topic() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        incarnation = (await create(client, "t")).info.incarnation
        await client.send(batch_of("t", 0, b"x"))
        commit = client.post(Operation.COMMIT, Commit("g", [CommitPart("t", 0, 1)]))
        delete = client.post(Operation.TOPIC_DELETE, TopicDelete("t"))
        assert (await client.answer(commit)).status == Status.OK
        assert (await client.answer(delete)).status == Status.OK
        assert rig.broker.offsets.get("g", incarnation, 0) is None

    play(scenario)


def test_describe_can_create_unless_an_incarnation_is_known() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        assert (await describe(client, "t")).status == Status.TOPIC_NOT_FOUND
        assert (await describe(client, "t", create=True, incarnation=3)).status == Status.TOPIC_GONE
        made = (await describe(client, "t", create=True)).header
        assert made.info.queues == 7
        assert (await describe(client, "t", create=True)).header == made

    play(scenario, {"broker.default_queues": 7})


def test_describe_creates_nothing_where_that_is_switched_off() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        assert (await describe(client, "t", create=True)).status == Status.TOPIC_NOT_FOUND

    play(scenario, {"broker.auto_create": False})


def test_topics_and_counter_survive_a_restart() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            for name in ("a", "b", "c"):
                await create(client, name)
            await client.ask(Operation.TOPIC_DELETE, TopicDelete("c"))
            await client.ask(Operation.TOPIC_ALTER, TopicAlter("b", queues=9, writable=False))
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            listed = (await client.ask(Operation.TOPIC_LIST, TopicList())).header.topics
            assert [(t.topic, t.queues, t.writable) for t in listed] == [
                ("a", 4, True),
                ("b", 9, False),
            ]
            assert (await create(client, "c")).info.incarnation == 4
            assert rig.broker.log.epoch == 2

    asyncio.run(scenario())
