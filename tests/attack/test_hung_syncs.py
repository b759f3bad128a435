"""Sends that wait for a disk that hangs: bounded memory, and who sends little is served."""

from __future__ import annotations

import asyncio

from cometmq.broker.dispatch import FREE_BYTES
from cometmq.protocol import Heartbeat, Hello, Operation, Status
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker

SETTINGS = {
    "limits.batch_bytes": 20_000,
    "limits.frame_bytes": 30_000,
    "limits.credit_bytes": 200_000,
    "limits.held_bytes": 500_000,
    "plugin.flush-sync.sync_in_loop_below_us": 0,
}
TINY = batch_of("t", 0, b"x")
TINY_BYTES = 1024 + len(TINY)
"""At least; what a send that waits takes is counted as 1 KiB more than its bytes."""


async def flooding(rig: Rig, clients: list[RawClient], rounds: int) -> list[tuple[RawClient, int]]:
    """Each client sends tiny batches without waiting for answers."""
    posted = []
    for _ in range(rounds):
        posted += [(client, client.post_send(TINY)) for client in clients]
        if len(posted) % 50 < len(clients):
            await rig.settle()
    await rig.settle()
    return posted


async def refused(posted: list[tuple[RawClient, int]]) -> list[str]:
    """Why those were that are answered by now."""
    answers = [await client.answer_if_any(number) for client, number in posted]
    assert all(answer.status == Status.RETRY for answer in answers if answer is not None)
    return [answer.header.detail for answer in answers if answer is not None]


def unanswered(rig: Rig) -> int:
    return int(rig.broker.info().metrics["unanswered_bytes"])


def test_tiny_sends_of_one_connection_are_bounded_by_what_they_take() -> None:
    async def scenario() -> None:
        async with running_broker(SETTINGS) as rig:
            greedy, modest = await rig.client(), await rig.client()
            await greedy.send(TINY)
            rig.environment.files.hold_syncs()
            posted = await flooding(rig, [greedy], 300)
            waiting = rig.broker.log.stats()["waiting"]
            assert waiting <= 200_000 // TINY_BYTES + 1
            other = modest.post_send(TINY)
            rig.environment.files.release_syncs()
            assert (await modest.answer(other)).header.results[0].status == Status.OK
            answers = [await client.answer(number) for client, number in posted]
            told = [answer.header.detail for answer in answers if answer.status]
            assert len(told) == 300 - waiting
            assert all("this connection's requests are unanswered" in detail for detail in told)

    asyncio.run(scenario())


def test_sends_of_all_connections_are_bounded_together_and_little_is_always_taken() -> None:
    async def scenario() -> None:
        async with running_broker(SETTINGS) as rig:
            crowd = [await rig.client() for _ in range(6)]
            modest = await rig.client()
            await modest.send(TINY)
            rig.environment.files.hold_syncs()
            posted = await flooding(rig, crowd, 150)
            told = await refused(posted)
            assert told and all("limits.held_bytes" in detail for detail in told)
            assert unanswered(rig) <= 500_000 + 6 * FREE_BYTES
            waiting = [modest.post_send(TINY) for _ in range(10)]
            await rig.settle()
            assert not await refused([(modest, number) for number in waiting])
            beat = await crowd[0].ask(Operation.HEARTBEAT, Heartbeat())
            assert beat.status in (Status.OK, Status.RETRY)
            rig.environment.files.release_syncs()
            for number in waiting:
                assert (await modest.answer(number)).header.results[0].status == Status.OK
            assert (await crowd[0].send(TINY))[0].status == Status.OK
            assert unanswered(rig) == 0

    asyncio.run(scenario())


def test_who_leaves_and_comes_again_is_not_counted_anew() -> None:
    """What a connection sent waits on when it has ended, so more of them are not let in."""

    async def scenario() -> None:
        async with running_broker(SETTINGS) as rig:
            await (await rig.client()).send(TINY)
            rig.environment.files.hold_syncs()
            for number in range(100):
                client = rig.stranger()
                answer = await client.ask(Operation.HELLO, Hello(1, 1, f"client-{number}"))
                if answer.status:
                    break
                await flooding(rig, [client], 50)
                client.close()
            assert answer.status == Status.RETRY and "limits.held_bytes" in answer.header.detail
            assert rig.broker.log.stats()["waiting"] <= 500_000 // TINY_BYTES + 50
            rig.environment.files.release_syncs()
            await rig.settle()
            assert (await (await rig.client()).send(TINY))[0].status == Status.OK

    asyncio.run(scenario())
