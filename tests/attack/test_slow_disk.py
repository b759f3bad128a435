"""A disk that hangs for readers: what they wait with is bounded, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.log import Log, ReadResult
from cometmq.protocol import Fetch, FetchPart, Heartbeat, Operation, Status
from cometmq.testing.log_kit import in_loop
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker

PART_BYTES = 20_000
LIMITS = {
    "limits.batch_bytes": 50_000,
    "limits.frame_bytes": 60_000,
    "limits.credit_bytes": 300_000,
    "limits.held_bytes": 1_000_000,
}
SLOW_MAX = 19
"""So many fetches of 50,000 bytes have room, with what each takes besides."""


class HungDisk:
    """Queue 1 has to be read from the disk, which hangs until `free` is called."""

    def __init__(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        self._read_now, self._read = log.read_now, log.read
        self._free = asyncio.Event()
        monkeypatch.setattr(log, "read_now", self.read_now)
        monkeypatch.setattr(log, "read", self.read)

    def free(self) -> None:
        self._free.set()

    def hang(self) -> None:
        """As at first."""
        self._free.clear()

    def read_now(self, incarnation: int, queue: int, *rest: Any, **how: Any) -> ReadResult | None:
        return None if queue == 1 else self._read_now(incarnation, queue, *rest, **how)

    async def read(self, *asked: Any, **how: Any) -> ReadResult:
        await self._free.wait()
        return await self._read(*asked, **how)


def post(client: RawClient, *queues: int) -> int:
    parts = [FetchPart("t", queue, 0) for queue in queues]
    return client.post(Operation.FETCH, Fetch(parts, max_bytes=50_000))


@asynccontextmanager
async def hung_disk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Rig, HungDisk]]:
    """A broker with messages in two queues, one of which the disk does not give."""
    async with running_broker(LIMITS) as rig:
        client = await rig.client()
        for queue in (0, 1):
            await client.send(batch_of("t", queue, bytes(PART_BYTES)))
        yield rig, HungDisk(rig.broker.log, monkeypatch)


@in_loop
async def test_fetches_that_wait_with_what_they_have_are_bounded_for_all_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who has something gets it, who has nothing tries again, and the others wait."""
    async with hung_disk(monkeypatch) as (rig, disk):
        clients = [await rig.client() for _ in range(SLOW_MAX)]
        for _ in range(2):
            disk.hang()
            waiting = [(client, post(client, 1, 0)) for client in clients]
            await rig.settle()
            answers = [await client.answer_if_any(number) for client, number in waiting]
            assert answers == [None] * SLOW_MAX
            for client in clients[:3]:
                some = await client.answer(post(client, 0, 1))
                assert [result.part for result in some.header.results] == [0]
                none = await client.answer(post(client, 1))
                assert none.status == Status.RETRY
                assert "limits.held_bytes" in none.header.detail
            disk.free()
            for client, number in waiting:
                assert len((await client.answer(number)).header.results) == 2


@in_loop
async def test_fetches_of_one_connection_that_wait_count_against_its_credit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hung_disk(monkeypatch) as (rig, disk):
        greedy, other = await rig.client(), await rig.client()
        numbers = [post(greedy, 1) for _ in range(20)]
        await rig.settle()
        answers = [await greedy.answer_if_any(number) for number in numbers]
        assert answers[:6] == [None] * 6
        refused = [answer for answer in answers if answer is not None]
        assert [answer.status for answer in refused] == [Status.RETRY] * 14
        assert "unanswered" in refused[0].header.detail
        waiting = post(other, 1)
        disk.free()
        for client, number in [(other, waiting), *((greedy, one) for one in numbers[:6])]:
            assert (await client.answer(number)).header.results[0].status == Status.OK
        assert (await greedy.ask(Operation.HEARTBEAT, Heartbeat())).status == Status.OK
