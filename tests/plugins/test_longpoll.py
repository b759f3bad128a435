"""A fetch that finds nothing waits, and is woken by what it waits for and by nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cometmq.protocol import (
    Fetch,
    FetchPart,
    Operation,
    Status,
    TopicAlter,
    TopicCreate,
    TopicDelete,
)
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker

Scenario = Callable[[Rig, RawClient], Awaitable[None]]


def play(scenario: Scenario, settings: dict[str, object] | None = None) -> None:
    async def run() -> None:
        options = {"plugin.flush-sync.sync_in_loop_below_us": 0, **(settings or {})}
        async with running_broker(options) as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))
            await rig.settle()
            await scenario(rig, client)

    asyncio.run(run())


def park(client: RawClient, *queues: int, wait_ms: int = 20_000) -> int:
    """A fetch of these queues of topic t that is willing to wait."""
    parts = [FetchPart("t", queue, 0) for queue in queues]
    return client.post(Operation.FETCH, Fetch(parts, wait_ms=wait_ms))


def test_it_is_woken_by_its_own_queue_only() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        waits = park(client, 1)
        assert await client.answer_if_any(waits) is None
        assert len(rig.broker.park) == 1
        await client.send(batch_of("t", 0, b"other"))
        assert await client.answer_if_any(waits) is None
        await client.send(batch_of("t", 1, b"mine"))
        (result,) = (await client.answer(waits)).header.results
        assert (result.part, result.next_offset) == (0, 1)
        assert len(rig.broker.park) == 0

    play(scenario)


def test_any_of_several_queues_wakes_it() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        waits = park(client, 0, 1)
        await client.send(batch_of("t", 1, b"mine"))
        (result,) = (await client.answer(waits)).header.results
        assert result.part == 1

    play(scenario)


def test_it_is_woken_when_it_can_read_not_when_it_was_written() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        waits = park(client, 0)
        await rig.settle()
        rig.environment.files.hold_syncs()
        sent = client.post_send(batch_of("t", 0, b"x"))
        assert await client.answer_if_any(waits) is None
        rig.environment.files.release_syncs()
        assert (await client.answer(waits)).header.results[0].next_offset == 1
        await client.answer(sent)

    play(scenario)


def test_a_parked_fetch_starts_the_sync_that_a_weak_send_does_not() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        waits = park(client, 0)
        await rig.settle()
        await client.send(batch_of("t", 1, b"nobody waits"), level="memory")
        await rig.settle()
        assert rig.broker.log.synced < rig.broker.log.appended
        await client.send(batch_of("t", 0, b"x"), level="memory")
        assert (await client.answer(waits)).header.results[0].next_offset == 1

    play(scenario)


def test_parking_starts_the_sync_of_what_was_sent_before() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"x"), level="memory")
        await rig.settle()
        assert rig.broker.log.synced < rig.broker.log.appended
        assert (await client.answer(park(client, 0))).header.results[0].next_offset == 1

    play(scenario)


def test_it_waits_as_long_as_the_client_and_the_option_allow() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        clock = rig.environment.clock
        short, long = park(client, 0, wait_ms=1000), park(client, 0, wait_ms=60_000)
        await rig.settle()
        await clock.run_for(0.9)
        assert await client.answer_if_any(short) is None
        await clock.run_for(0.2)
        answer = await client.answer(short)
        assert (answer.status, answer.header.results) == (Status.OK, [])
        await clock.run_for(3.0)
        assert await client.answer_if_any(long) is None
        await clock.run_for(1.0)
        assert (await client.answer(long)).header.results == []

    play(scenario, {"plugin.longpoll.wait_max_ms": 5000})


def test_who_will_not_wait_is_answered_at_once() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        assert (await client.answer(park(client, 0, wait_ms=0))).header.results == []

    play(scenario)


def test_the_number_of_the_parked_is_bounded() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        one, two, three = (park(client, 0) for _ in range(3))
        assert (await client.answer(three)).header.results == []
        assert rig.broker.info().metrics["longpoll_turned_away"] == 1
        assert rig.broker.info().parked == 2
        await client.send(batch_of("t", 0, b"x"))
        for request in (one, two):
            assert (await client.answer(request)).header.results[0].next_offset == 1

    play(scenario, {"plugin.longpoll.parked_max": 2})


def test_a_change_of_its_topic_wakes_it() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        waits = park(client, 0)
        await client.ask(Operation.TOPIC_ALTER, TopicAlter("t", queues=3))
        assert (await client.answer(waits)).header.results == []
        waits = park(client, 0)
        await client.ask(Operation.TOPIC_DELETE, TopicDelete("t"))
        (result,) = (await client.answer(waits)).header.results
        assert result.status == Status.TOPIC_NOT_FOUND

    play(scenario)


def test_a_cut_wakes_who_had_read_beyond_it() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        border = rig.broker.log.appended
        await client.send(batch_of("t", 0, b"x"))
        header = Fetch([FetchPart("t", 0, 1, epoch=1)], wait_ms=20_000)
        waits = client.post(Operation.FETCH, header)
        assert await client.answer_if_any(waits) is None
        rig.broker.log.truncate(border)
        (result,) = (await client.answer(waits)).header.results
        assert (result.status, result.next_offset, result.epoch) == (Status.TRUNCATED, 0, 2)

    play(scenario)


def test_the_end_of_a_session_forgets_its_parked_fetches() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        other = await rig.client()
        park(other, 0)
        await rig.settle()
        assert len(rig.broker.park) == 1
        other.close()
        await rig.settle()
        assert len(rig.broker.park) == 0

    play(scenario)


def test_a_stop_answers_the_parked() -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))
            waits = park(client, 0)
            await rig.settle()
            await rig.broker.stop()
            assert (await client.answer(waits)).header.results == []

    asyncio.run(scenario())
