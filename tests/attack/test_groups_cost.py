"""What groups cost a broker: idle ones nothing, filtered ones the bytes that match."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from cometmq.batch import RecordTuple, encode_messages
from cometmq.protocol import (
    Claim,
    ClaimPart,
    Fetch,
    FetchPart,
    FetchReply,
    Goodbye,
    GroupHeartbeat,
    Operation,
    Status,
    Subscription,
    TopicCreate,
)
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker

BORN_MS = 1_750_000_000_000
MESSAGES = 20_000
BODY = bytes(1024)


async def read_all(client: RawClient, expression: str) -> tuple[int, int]:
    """Read queue 0 to its end with a filter; bytes of all replies, and how many there were."""
    offset = size = replies = 0
    while offset < MESSAGES:
        answer = await client.fetch(FetchPart("t", 0, offset), filter=expression)
        assert isinstance(answer.header, FetchReply), answer
        size += sum(map(len, answer.body)) + 256  # more than any header takes
        replies += 1
        assert answer.header.results, "no progress"
        for part in answer.header.results:
            assert part.status == Status.OK, part
            assert part.next_offset > offset, "no progress"
            offset = part.next_offset
    return size, replies


@pytest.mark.parametrize("batch", [1, 10, 100, 500])
def test_a_tag_of_one_percent_moves_at_most_three_percent_of_the_bytes(batch: int) -> None:
    async def run() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 1))
            for first in range(0, MESSAGES, batch):
                records: list[RecordTuple] = [
                    (BORN_MS, BODY, "rare" if number % 100 == 7 else "common", (), {})
                    for number in range(first, first + batch)
                ]
                (result,) = await client.send(encode_messages("t", 0, records))
                assert result.status == Status.OK, result
            everything, _ = await read_all(client, "")
            some, replies = await read_all(client, "rare")
            share = some / everything
            print(f"batches of {batch}: {share:.2%} of the bytes, {replies} replies")
            assert share <= 0.03

    asyncio.run(run())


@contextmanager
def counted_calls(found: list[int]) -> Iterator[None]:
    """Count what the broker's and the log's own functions are called; no clock is so exact."""

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            name = frame.f_code.co_filename
            found[0] += "/cometmq/broker/" in name or "/cometmq/log/" in name

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


async def calls_of_sends(rig: Rig, groups: int) -> int:
    """What 100 sends to queue 0 cost, with so many groups that wait at queue 1."""
    client = await rig.client()
    await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))
    for number in range(groups):
        group = f"g{number}"
        member = await rig.client()
        member.post(Operation.GROUP_HEARTBEAT, GroupHeartbeat(group, "m", [Subscription("t")]))
        claimed = await member.ask(Operation.CLAIM, Claim(group, "m", [ClaimPart("t", 1)]))
        (part,) = claimed.header.parts
        fetch = Fetch([FetchPart("t", 1, 0, token=part.token)], 1 << 20, 60_000, group, "x || y")
        member.post(Operation.FETCH, fetch)
    await rig.settle()
    found = [0]
    with counted_calls(found):
        for _ in range(100):
            await client.send(batch_of("t", 0, b"x"))
    return found[0]


def test_fifty_groups_that_wait_elsewhere_cost_a_send_nothing() -> None:
    counts: list[int] = []

    async def run(groups: int) -> None:
        async with running_broker() as rig:
            counts.append(await calls_of_sends(rig, groups))

    for groups in (0, 50):
        asyncio.run(run(groups))
    alone, among = counts
    assert alone > 1000
    assert among < 1.05 * alone


async def claims_of(rig: Rig, queues: int) -> RawClient:
    """A client that holds so many queues of a topic that has no more."""
    client = await rig.client()
    await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", queues))
    parts = [ClaimPart("t", queue) for queue in range(queues)]
    claimed = await client.ask(Operation.CLAIM, Claim("g", "m", parts))
    assert {part.status for part in claimed.header.parts} == {Status.OK}
    return client


def test_a_thousand_claims_cost_a_look_for_silence_nothing() -> None:
    """It comes five times a second, and whoever likes may hold a hundred thousand."""
    counts: list[int] = []

    async def run(queues: int) -> None:
        async with running_broker() as rig:
            client = await claims_of(rig, queues)
            found = [0]
            with counted_calls(found):
                for _ in range(100):
                    await rig.environment.clock.run_for(0.1)
            counts.append(found[0])
            assert len(rig.broker.claims) == queues
            client.close()
            await rig.environment.clock.run_for(20.0)
            assert len(rig.broker.claims) == 0

    for queues in (1, 1000):
        asyncio.run(run(queues))
    few, many = counts
    assert few > 500
    assert many < 1.1 * few


def test_a_claim_of_many_queues_looks_once_at_where_their_group_begins() -> None:
    """Not once for each of them: a thousand queues were a million looks, and everybody waited."""
    counts: list[int] = []

    def look(frame: FrameType, event: str, argument: object) -> object:
        if not frame.f_code.co_filename.endswith("claim_operations.py"):
            return None
        counts[-1] += event == "line"
        return look

    async def run(queues: int) -> None:
        async with running_broker() as rig:
            counts.append(0)
            before = sys.gettrace()
            sys.settrace(look)  # type: ignore[arg-type]  # of the calls from now on
            try:
                await claims_of(rig, queues)
            finally:
                sys.settrace(before)

    for queues in (50, 200):
        asyncio.run(run(queues))
    few, many = counts
    assert few > 500
    assert many < 6 * few


@pytest.mark.parametrize("leaves", [True, False])
def test_members_that_go_together_cost_their_group_one_plan(leaves: bool) -> None:
    """Four hundred of one connection, or of a rack, held the loop for three seconds; a thousand
    for so long that the broker gave up."""
    counts: list[int] = []

    async def run(members: int) -> None:
        async with running_broker() as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 4))
            for number in range(members):
                joining = GroupHeartbeat("g", f"m{number}", [Subscription("t")], 1)
                assert (await client.ask(Operation.GROUP_HEARTBEAT, joining)).status == Status.OK
            groups = rig.broker._service.groups.coordinator.groups  # type: ignore[union-attr]
            assert len(groups["g"].members) == members
            found = [0]
            with counted_calls(found):
                if leaves:
                    await client.ask(Operation.GOODBYE, Goodbye())
                else:
                    client.close()
                    await rig.environment.clock.run_for(5.0)
            counts.append(found[0])
            assert groups == {}

    for members in (40, 160):
        asyncio.run(run(members))
    few, many = counts
    assert many < 6 * few
