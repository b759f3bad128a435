"""The main road: each batch is decided alone, a drain is written once, and the answer comes when
the awaited position is reached."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from crc32c import crc32c

from cometmq.batch import encode_control, parse
from cometmq.errors import LogStopped
from cometmq.protocol import FetchPart, Operation, Send, Status, TopicAlter, TopicCreate
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker

Scenario = Callable[[Rig, RawClient], Awaitable[None]]
IN_THREAD: dict[str, object] = {"plugin.flush-sync.sync_in_loop_below_us": 0}
"""A sync in the loop's own thread can't be held back."""


def play(scenario: Scenario, settings: dict[str, object] | None = None, **more: Any) -> None:
    """Run a scenario with a broker and one client that said hello."""

    async def run() -> None:
        async with running_broker({**IN_THREAD, **(settings or {})}, **more) as rig:
            await scenario(rig, await rig.client())

    asyncio.run(run())


def test_what_was_sent_is_fetched_as_it_lies() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        sent = batch_of("orders", 0, b"a", b"b")
        (result,) = await client.send(sent)
        assert (result.status, result.base_offset, result.queue) == (Status.OK, 0, 0)
        assert result.epoch == rig.broker.log.epoch
        assert result.store_time == rig.environment.clock.wall_ms()
        answer = await client.fetch(FetchPart("orders", 0, 0))
        (part,) = answer.header.results
        assert (part.next_offset, part.batches, part.epoch) == (2, 1, result.epoch)
        (size,) = answer.header.sizes
        stored = parse(answer.body[0][:size])
        assert bytes(stored.view[76:]) == bytes(sent[76:])
        assert stored.incarnation == result.incarnation

    play(scenario)


def test_several_batches_for_several_queues_in_one_request() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        results = await client.send(
            batch_of("a", 0, b"1", b"2"),
            batch_of("a", 3, b"3"),
            batch_of("b", 1, b"4"),
            batch_of("a", 0, b"5"),
        )
        assert [(r.status, r.queue, r.base_offset) for r in results] == [
            (Status.OK, 0, 0),
            (Status.OK, 3, 0),
            (Status.OK, 1, 0),
            (Status.OK, 0, 2),
        ]

    play(scenario)


def test_two_sends_of_one_drain_see_each_other_and_are_written_once() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"first"))
        writes = count_calls(rig, "write")
        one = client.post_send(batch_of("t", 0, b"a", b"b"))
        two = client.post_send(batch_of("t", 0, b"c"))
        results = [(await client.answer(each)).header.results[0] for each in (one, two)]
        assert [result.base_offset for result in results] == [1, 3]
        assert len(writes) == 1

    play(scenario)


def count_calls(rig: Rig, name: str) -> list[None]:
    """Grows with each call of this method of the storage."""
    storage = rig.broker.log._storage
    original, calls = getattr(storage, name), list[None]()

    def counted(*arguments: Any) -> Any:
        calls.append(None)
        return original(*arguments)

    setattr(storage, name, counted)
    return calls


def bad_crc() -> bytearray:
    batch = batch_of("t", 0, b"x" * 50)
    batch[-1] ^= 1
    return batch


def stamped() -> bytearray:
    batch = batch_of("t", 0, b"x")
    batch[12] = 1
    return batch


@pytest.mark.parametrize(
    ("bad", "status", "sentence"),
    [
        (bad_crc(), Status.BAD_BATCH, "producer's CRC"),
        (stamped(), Status.BAD_BATCH, "broker's part"),
        (bytearray(b"no batch at all" * 20), Status.BAD_BATCH, "magic"),
        (batch_of("t", 0, b"x") + b"more", Status.BAD_BATCH, "one per piece"),
        (encode_control(5, [[1]]), Status.BAD_BATCH, "only messages"),
        (batch_of("t", 4, b"x"), Status.QUEUE_NOT_FOUND, "no queue 4, only 0 to 3"),
        (batch_of("bad name", 0, b"x"), Status.BAD_NAME, "'bad name' is no topic name"),
        (batch_of("%RETRY%g", 0, b"x"), Status.BAD_NAME, "is no topic name"),
        (batch_of("t", 0, b"x" * (1 << 16)), Status.TOO_LARGE, "smaller messages"),
    ],
)
def test_a_bad_batch_is_refused_alone_by_name(bad: bytes, status: Status, sentence: str) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        good = batch_of("t", 0, b"good")
        results = await client.send(good, bad, good)
        assert [r.status for r in results] == [Status.OK, status, Status.OK]
        assert sentence in results[1].detail
        assert [results[0].base_offset, results[2].base_offset] == [0, 1]

    play(scenario, {"limits.batch_bytes": 1 << 16})


def test_records_that_nobody_can_decode_are_the_consumers_business() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        batch = batch_of("t", 0, b"x" * 20)
        batch[-10:] = b"\xc1" * 10
        batch[72:76] = crc32c(batch[76:]).to_bytes(4, "little")
        (result,) = await client.send(batch)
        assert result.status == Status.OK

    play(scenario)


@pytest.mark.parametrize(
    ("sizes", "incarnations", "sentence"),
    [
        ([10_000], [0], "piece 0 of 10000 bytes is not whole"),
        ([100, 0], [0, 0], "piece 1 of 0 bytes is not whole"),
        ([], [], "105 bytes of body that the header does not mention"),
        ([100], [0, 0], "one of each per batch"),
    ],
)
def test_a_request_whose_sizes_lie_is_refused_as_a_whole(
    sizes: list[int], incarnations: list[int], sentence: str
) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        header = Send(sizes=sizes, incarnations=incarnations)
        answer = await client.ask(Operation.SEND, header, [bytes(100), bytes(5)])
        assert answer.status == Status.BAD_REQUEST
        assert sentence in answer.header.detail

    play(scenario)


def test_one_way_gets_no_answer_whatever_happens() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        good = client.post_send(batch_of("t", 0, b"x"), one_way=True)
        bad = client.post_send(bad_crc(), one_way=True)
        lost = client.post_send(batch_of("t", 0, b"x"), one_way=True, level="quorum")
        assert [await client.answer_if_any(each) for each in (good, bad, lost)] == [None] * 3
        answer = await client.fetch(FetchPart("t", 0, 0))
        assert answer.header.results[0].next_offset == 1
        (session,) = rig.broker._service.sessions  # type: ignore[union-attr]
        assert session.unanswered_bytes == 0

    play(scenario)


# --- levels -----------------------------------------------------------------------------------


def test_a_level_that_nobody_brings_is_refused_by_name() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        answer = await client.answer(client.post_send(batch_of("t", 0, b"x"), level="quorum"))
        assert answer.status == Status.LEVEL_NOT_AVAILABLE
        assert "level quorum needs replication" in answer.header.detail
        assert "memory or disk" in answer.header.detail

    play(scenario)


def test_a_held_back_sync_decides_who_is_answered_and_who_reads_what() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"old"))
        files = rig.environment.files
        files.hold_syncs()
        weak = client.post_send(batch_of("t", 0, b"weak"), level="memory")
        strong = client.post_send(batch_of("t", 0, b"strong"), level="disk")
        answer = await client.answer(weak)
        assert answer.header.level == "memory"
        assert await client.answer_if_any(strong) is None
        seen = await client.fetch(FetchPart("t", 0, 0))
        assert seen.header.results[0].next_offset == 1, "not readable before it is on disk"
        files.release_syncs()
        assert (await client.answer(strong)).header.level == "disk"
        seen = await client.fetch(FetchPart("t", 0, 0))
        assert seen.header.results[0].next_offset == 3

    play(scenario)


def test_with_level_memory_as_default_it_is_readable_at_once() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await rig.settle()
        rig.environment.files.hold_syncs()
        request = client.post_send(batch_of("t", 0, b"x"))
        assert (await client.answer(request)).header.level == "memory"
        seen = await client.fetch(FetchPart("t", 0, 0))
        assert seen.header.results[0].next_offset == 1
        stronger = client.post_send(batch_of("t", 0, b"y"), level="disk")
        assert await client.answer_if_any(stronger) is None
        rig.environment.files.release_syncs()
        await client.answer(stronger)

    play(scenario, {"broker.level": "memory"})


# --- disks that fail --------------------------------------------------------------------------


def test_a_failed_write_is_taken_back_and_may_be_tried_again() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"old"))
        rig.environment.files.fail("write", errno.EIO, name=".seg", times=1)
        one = client.post_send(batch_of("t", 0, b"a"), batch_of("t", 1, b"b"))
        two = client.post(Operation.TOPIC_CREATE, TopicCreate("new"))
        results = (await client.answer(one)).header.results
        assert [r.status for r in results] == [Status.RETRY, Status.RETRY]
        assert "try again" in results[0].detail
        assert (await client.answer(two)).status == Status.RETRY
        (again,) = await client.send(batch_of("t", 0, b"a"))
        assert (again.status, again.base_offset) == (Status.OK, 1)

    play(scenario)


def test_a_failed_sync_answers_nobody_and_stops_the_broker() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"old"))
        rig.environment.files.fail("sync", errno.EIO)
        sent = client.post_send(batch_of("t", 0, b"x"))
        assert await client.answer_if_any(sent) is None
        with pytest.raises(LogStopped, match="check the disk"):
            await rig.broker.failed()
        late = await client.answer(client.post_send(batch_of("t", 0, b"y")))
        assert late.status == Status.STOPPING
        assert "a sync of the log failed" in late.header.detail

    play(scenario)


def test_a_full_disk_is_answered_by_name() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"x"))
        rig.environment.files.fail("allocate", errno.ENOSPC, times=None)
        statuses = []
        for _ in range(40):
            (result,) = await client.send(batch_of("t", 0, b"x" * 60_000), level="memory")
            statuses.append(result.status)
        assert set(statuses) == {Status.OK, Status.NO_SPACE}
        assert result.retry_after_ms > 0

    play(scenario, {"plugin.commitlog.allocate_step_bytes": 1 << 20})


@pytest.mark.parametrize(
    ("number", "status", "advice"),
    [
        (errno.EDQUOT, Status.NO_SPACE, "raise the quota"),
        (errno.EFBIG, Status.NO_SPACE, "ulimit -f"),
        (errno.EROFS, Status.DISK_REFUSED, "Read-only file system"),
        (errno.EIO, Status.DISK_REFUSED, "check the disk"),
        (errno.EPERM, Status.DISK_REFUSED, "lsattr"),
    ],
    ids=lambda value: errno.errorcode.get(value, "") if isinstance(value, int) else None,
)
def test_whatever_refuses_room_is_answered_by_name_and_forgotten_when_it_is_over(
    number: int, status: Status, advice: str
) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"x"))
        rig.environment.files.fail("allocate", number, times=None)
        stored = 1
        for _ in range(40):
            (result,) = await client.send(batch_of("t", 0, b"x" * 60_000), level="memory")
            if result.status != Status.OK:
                break
            stored += 1
        assert result.status == status and advice in result.detail
        assert os.strerror(number) in result.detail and result.retry_after_ms > 0
        rig.environment.files.mend()
        (result,) = await client.send(batch_of("t", 0, b"x" * 60_000), level="memory")
        assert (result.status, result.base_offset) == (Status.OK, stored)

    play(scenario, {"plugin.commitlog.allocate_step_bytes": 1 << 20})


# --- topics that are not there ----------------------------------------------------------------


def test_a_topic_is_made_by_its_first_send_unless_switched_off() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        (result,) = await client.send(batch_of("t", 0, b"x"))
        assert result.status == Status.TOPIC_NOT_FOUND
        assert "`mq topic create` makes one" in result.detail

    play(scenario, {"broker.auto_create": False})


def test_who_knew_an_incarnation_never_makes_a_topic() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        (result,) = await client.send(batch_of("t", 0, b"x"), incarnations=[7])
        assert result.status == Status.TOPIC_GONE
        assert "offsets begin anew" in result.detail and "`mq topic create`" in result.detail
        assert len(rig.broker.topics) == 0

    play(scenario)


def test_a_topic_that_takes_no_messages() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", writable=False))
        (result,) = await client.send(batch_of("t", 0, b"x"))
        assert result.status == Status.NOT_WRITABLE
        await client.ask(Operation.TOPIC_ALTER, TopicAlter("t", writable=True))
        (result,) = await client.send(batch_of("t", 0, b"x"))
        assert result.status == Status.OK

    play(scenario)
