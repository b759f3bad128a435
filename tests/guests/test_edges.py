"""Every operation with headers at every edge: one answer each, and never a mistake of ours."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cometmq import protocol
from cometmq.batch import RecordTuple, decode_records, encode_messages, parse
from cometmq.protocol import (
    FetchPart,
    GroupHeartbeat,
    OffsetByTime,
    Operation,
    QueueRef,
    Status,
    TopicCreate,
)
from cometmq.testing.hostile import TIMES_MS, Hostile
from cometmq.testing.raw_client import RawClient, batch_of, running_broker

ROUNDS = 150


async def mistakes(client: RawClient, request_id: int) -> list[str]:
    """What its answer says of failures of the broker itself."""
    answer = await client.answer_if_any(request_id)
    if answer is None:
        return []
    parts = getattr(answer.header, "results", None) or getattr(answer.header, "parts", None) or []
    told = [(answer.status, answer.header), *((getattr(part, "status", 0), part) for part in parts)]
    return [header.detail for status, header in told if status == Status.INTERNAL]


def mistakes_told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as an error; a client's report of damage is believed, once a minute."""
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    return [line for line in lines if "read damaged bytes" not in line]


async def at_every_edge(operation: Operation, seed: int, rounds: int) -> None:
    hostile = Hostile(seed)
    async with running_broker() as rig:
        good = await rig.client()
        await good.ask(Operation.TOPIC_CREATE, TopicCreate("victim", 4))
        await good.ask(Operation.TOPIC_CREATE, TopicCreate("good", 1))
        client = await rig.client()
        for number in range(rounds):
            await good.send(batch_of("victim", number % 4, b"x"))
            header = hostile.header(operation)
            body = [hostile.batch()] if operation == Operation.SEND else []
            request = client.post(operation, header, body)
            await rig.environment.clock.run_for(0.1)
            assert await mistakes(client, request) == [], f"seed {seed}, {number}: {header!r}"
            if operation == Operation.GOODBYE:
                client = await rig.client()
        (result,) = await good.send(batch_of("good", 0, b"x"))
        assert (result.status, result.base_offset) == (Status.OK, 0)


@pytest.mark.parametrize("operation", list(protocol.REQUESTS), ids=lambda it: Operation(it).name)
def test_no_header_of_any_operation_is_more_than_its_sender_can_bear(
    operation: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        asyncio.run(at_every_edge(Operation(operation), operation, ROUNDS))
    assert mistakes_told(caplog) == []


def test_all_operations_in_any_order(caplog: pytest.LogCaptureFixture) -> None:
    """Groups, claims and topics that were made, changed and deleted by each other's requests."""

    async def run() -> None:
        hostile = Hostile(77)
        async with running_broker() as rig:
            clients = [await rig.client() for _ in range(4)]
            for number in range(1500):
                if number % 20 == 0:
                    await clients[0].send(batch_of("victim", number % 4, b"x"))
                    beat = GroupHeartbeat("g", "m", [])
                    clients[0].post(Operation.GROUP_HEARTBEAT, beat)
                at = hostile.dice.randrange(4)
                operation = hostile.dice.choice(list(protocol.REQUESTS))
                body = [hostile.batch()] if operation == Operation.SEND else []
                request = clients[at].post(operation, hostile.header(operation), body)
                await rig.environment.clock.run_for(hostile.dice.choice([0.01, 0.1, 1.0]))
                assert await mistakes(clients[at], request) == [], number
                if operation in (Operation.HELLO, Operation.GOODBYE):
                    clients[at] = await rig.client()

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert mistakes_told(caplog) == []


@pytest.mark.parametrize("born_ms", TIMES_MS)
def test_the_clock_of_a_client_is_nobody_elses(born_ms: int) -> None:
    """Born in 1970 or in 2100: stored now, found by the time it was stored, and read as it was."""

    async def run() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            now_ms = rig.environment.clock.wall_ms()
            records: list[RecordTuple] = [(born_ms, b"x", "", (), {})]
            (stored,) = await client.send(encode_messages("t", 0, records))
            assert (stored.status, stored.base_offset) == (Status.OK, 0)
            assert abs(stored.store_time - now_ms) < 1000
            await client.send(batch_of("t", 0, b"y"))
            for time_ms, offset in ((0, 0), (now_ms - 1, 0), (now_ms + 60_000, 2)):
                header = OffsetByTime([QueueRef("t", 0)], time_ms)
                found = (await client.ask(Operation.OFFSET_BY_TIME, header)).header.parts[0]
                assert found.offset == offset, time_ms
            answer = await client.fetch(FetchPart("t", 0, 0))
            batch = parse(b"".join(answer.body)[: answer.header.sizes[0]])
            assert decode_records(batch)[0][0] == born_ms

    asyncio.run(run())
