"""Offsets: bounds, by time, and what groups commit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cometmq.protocol import (
    Commit,
    CommitPart,
    Committed,
    OffsetByTime,
    Offsets,
    OffsetsPart,
    Operation,
    PartStatus,
    QueueRef,
    Status,
    Token,
    TopicCreate,
)
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.raw_client import RawClient, Rig, batch_of, play, running_broker


async def commit(client: RawClient, group: str, *parts: CommitPart) -> list[PartStatus]:
    answer = await client.ask(Operation.COMMIT, Commit(group, list(parts)))
    assert answer.status == Status.OK, answer
    statuses: list[PartStatus] = answer.header.parts
    return statuses


async def committed(client: RawClient, group: str, topic: str, queue: int) -> OffsetsPart:
    header = Committed(group, [QueueRef(topic, queue)])
    (part,) = (await client.ask(Operation.COMMITTED, header)).header.parts
    assert isinstance(part, OffsetsPart)
    return part


def test_a_commit_is_read_back_with_its_epoch() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"a", b"b", b"c"))
        assert not (await committed(client, "g", "t", 0)).found
        assert await commit(client, "g", CommitPart("t", 0, 2, epoch=1)) == [PartStatus(0)]
        part = await committed(client, "g", "t", 0)
        assert (part.found, part.offset, part.epoch) == (True, 2, 1)
        assert (part.min_offset, part.max_offset) == (0, 3)
        await commit(client, "g", CommitPart("t", 0, 1, epoch=1))
        assert (await committed(client, "g", "t", 0)).offset == 1, "going back is a right"
        assert not (await committed(client, "other", "t", 0)).found

    play(scenario)


@pytest.mark.parametrize(
    ("part", "status", "sentence"),
    [
        (CommitPart("none", 0, 1), Status.TOPIC_NOT_FOUND, "no topic 'none'"),
        (CommitPart("t", 9, 1), Status.QUEUE_NOT_FOUND, "no queue 9"),
        (CommitPart("t", 0, 1, incarnation=5), Status.TOPIC_GONE, "was deleted"),
        (CommitPart("t", 0, 4), Status.TRUNCATED, "the queue ends at 3"),
        (CommitPart("t", 0, 1, token=Token(1, 500)), Status.FENCED, "claim token"),
    ],
)
def test_a_bad_part_of_a_commit_is_refused_alone(
    part: CommitPart, status: Status, sentence: str
) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"a", b"b", b"c"))
        good = CommitPart("t", 0, 3, token=Token())
        refused, taken = await commit(client, "g", part, good)
        assert (refused.status, taken.status) == (status, Status.OK)
        assert sentence in refused.detail
        (alone,) = await commit(client, "g", part)
        assert alone.status == status

    play(scenario)


@pytest.mark.parametrize("group", ["", "a b", "%RETRY%x", "g" * 128])
def test_a_group_has_a_name(group: str) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        for operation, header in (
            (Operation.COMMIT, Commit(group, [CommitPart("t", 0, 0)])),
            (Operation.COMMITTED, Committed(group, [QueueRef("t", 0)])),
        ):
            answer = await client.ask(operation, header)
            assert answer.status == Status.BAD_NAME
            assert "is no group name" in answer.header.detail

    play(scenario)


def test_commits_of_a_drain_are_one_batch_and_seen_within_it() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"a", b"b", b"c"))
        await rig.settle()
        kinds = record_kinds(rig)
        posted = [
            client.post(Operation.COMMIT, Commit(f"g{n}", [CommitPart("t", 0, n)]))
            for n in range(4)
        ]
        read = client.post(Operation.COMMITTED, Committed("g3", [QueueRef("t", 0)]))
        last = client.post(Operation.COMMIT, Commit("g3", [CommitPart("t", 0, 1)]))
        assert (await client.answer(read)).header.parts[0].offset == 3
        for request in (*posted, last):
            assert (await client.answer(request)).header.parts == [PartStatus(0)]
        assert kinds == ["offset-commit", "offset-commit"], "one before the read, one after"
        assert (await committed(client, "g3", "t", 0)).offset == 1

    play(scenario)


def record_kinds(rig: Rig) -> list[str]:
    """Grows by the kind of each control batch appended."""
    log, kinds = rig.broker.log, list[str]()
    original = log.append_control

    def recorded(kind: str, records: Any) -> Any:
        kinds.append(kind)
        return original(kind, records)

    log.append_control = recorded
    return kinds


def test_a_commit_waits_for_the_default_level_and_acts_before() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"x"))
        await rig.settle()
        rig.environment.files.hold_syncs()
        request = client.post(Operation.COMMIT, Commit("g", [CommitPart("t", 0, 1)]))
        assert await client.answer_if_any(request) is None
        assert (await committed(client, "g", "t", 0)).offset == 1
        rig.environment.files.release_syncs()
        assert (await client.answer(request)).status == Status.OK

    play(scenario, {"plugin.flush-sync.sync_in_loop_below_us": 0})


def test_a_one_way_commit_is_taken_without_a_word() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"x"))
        header = Commit("g", [CommitPart("t", 0, 1)], one_way=True)
        assert await client.answer_if_any(client.post(Operation.COMMIT, header)) is None
        assert (await committed(client, "g", "t", 0)).offset == 1

    play(scenario)


def test_bounds_and_offsets_by_time() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        clock = rig.environment.clock
        times = []
        for body in (b"a", b"b", b"c"):
            (result,) = await client.send(batch_of("t", 0, body, body))
            times.append(result.store_time)
            await clock.run_for(10.0)
        refs = [QueueRef("t", 0), QueueRef("t", 1), QueueRef("t", 9), QueueRef("x", 0)]
        bounds = (await client.ask(Operation.OFFSETS, Offsets(refs))).header.parts
        assert [(p.status, p.min_offset, p.max_offset) for p in bounds] == [
            (Status.OK, 0, 6),
            (Status.OK, 0, 0),
            (Status.QUEUE_NOT_FOUND, 0, 0),
            (Status.TOPIC_NOT_FOUND, 0, 0),
        ]
        assert bounds[0].epoch == rig.broker.log.epoch
        for time_ms, offset in (
            (0, 0),
            (times[0], 0),
            (times[0] + 1, 2),
            (times[2], 4),
            (times[2] + 1, 6),
        ):
            header = OffsetByTime([QueueRef("t", 0)], time_ms)
            (part,) = (await client.ask(Operation.OFFSET_BY_TIME, header)).header.parts
            assert (part.offset, part.epoch) == (offset, 1)

    play(scenario)


def test_committed_offsets_survive_a_restart_and_a_flood_of_segments() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        settings = {"log.segment_batches": 20}
        async with running_broker(settings, environment=environment) as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))
            for number in range(200):
                await client.send(batch_of("t", 1, b"x"))
                await commit(client, f"g{number % 7}", CommitPart("t", 1, number, epoch=1))
            assert rig.broker.info().segments > 3
        async with running_broker(settings, environment=environment) as rig:
            client = await rig.client()
            for number in range(193, 200):
                part = await committed(client, f"g{number % 7}", "t", 1)
                assert (part.offset, part.epoch, part.max_offset) == (number, 1, 200)
            header = OffsetByTime([QueueRef("t", 1)], 0)
            (first,) = (await client.ask(Operation.OFFSET_BY_TIME, header)).header.parts
            assert (first.status, first.offset) == (Status.OK, 0)

    asyncio.run(scenario())
