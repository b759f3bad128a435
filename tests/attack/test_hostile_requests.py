"""Requests that lie, ask for the absurd, or come from nobody: an answer to them, and no more."""

from __future__ import annotations

import struct

import pytest

from cometmq.batch.compression import compress
from cometmq.batch.layout import (
    COUNT_AT,
    LENGTH_AT,
    QUEUE_CLAIM_AT,
    SEALED_AT,
    SIZE_AT,
    TOPIC_LENGTH_AT,
    seal,
)
from cometmq.client.codecs import make_codec
from cometmq.protocol import (
    Commit,
    CommitPart,
    Committed,
    FetchPart,
    Goodbye,
    Heartbeat,
    Hello,
    Operation,
    QueueRef,
    Status,
    Token,
)
from cometmq.testing.raw_client import RawClient, Rig, batch_of, play

HUGE = (1 << 63) - 1
HOSTILE_NAMES = ["", "a b", "a\n", "a\x1b[2J", "\u202eevil", "a/b", "%RETRY%x", "x" * 65536, "ä"]


def lying(at: int, form: str, value: int) -> bytearray:
    """A batch of two messages with one field changed, under a good CRC."""
    buffer = batch_of("t", 0, b"one", b"two")
    struct.pack_into(form, buffer, at, value)
    seal(buffer)
    return buffer


def lies() -> list[bytearray]:
    huge = (1, 3, 255, 65535, 1 << 31, (1 << 32) - 1)
    found = [lying(at, "<I", value) for at in (LENGTH_AT, COUNT_AT, SIZE_AT) for value in huge]
    found += [lying(QUEUE_CLAIM_AT, "<H", value) for value in (4, 65535)]
    found += [lying(TOPIC_LENGTH_AT, "<B", value) for value in (0, 3, 255)]
    found += [lying(SEALED_AT, "<H", value) for value in (3, 0x80, 0x100, 0xFFFF)]
    return found


def test_good_batches_of_a_request_do_not_suffer_from_lying_ones_between_them() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        bad = lies()
        batches: list[bytearray] = []
        for batch in bad:
            batches += [batch, batch_of("t", 1, b"good")]
        results = await client.send(*batches)
        assert {part.status for part in results[::2]} <= {Status.BAD_BATCH, Status.QUEUE_NOT_FOUND}
        assert [part.base_offset for part in results[1::2]] == list(range(len(bad)))
        assert rig.broker.log.next_offset(1, 0) == 0

    play(scenario)


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_a_bomb_is_refused_by_the_size_that_it_claims(name: str) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        bomb = compress(batch_of("t", 0, bytes(300_000)), name, make_codec(name))
        assert len(bomb) < 2_000
        (bad, good) = await client.send(bomb, batch_of("t", 0, b"good"))
        assert bad.status == Status.BAD_BATCH
        assert "uncompressed size is 3000" in bad.detail and "at most 100000" in bad.detail
        assert (good.status, good.base_offset) == (Status.OK, 0)

    play(scenario, {"limits.batch_bytes": 100_000})


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_hostile_name_is_refused_in_one_short_printable_line(name: str) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        details = []
        if 0 < len(name.encode()) <= 255:
            (part,) = await client.send(batch_of(name, 0, b"x"))
            assert part.status == Status.BAD_NAME
            details.append(part.detail)
        answer = await client.fetch(FetchPart(name, 0, 0))
        details.append(answer.header.results[0].detail)
        answer = await client.ask(Operation.COMMIT, Commit(name, [CommitPart("t", 0, 0)]))
        assert answer.status == Status.BAD_NAME
        details.append(answer.header.detail)
        if name:
            answer = await client.fetch(FetchPart("t", 0, 0), group=name)
            assert answer.status == Status.BAD_NAME
            details.append(answer.header.detail)
        for detail in details:
            assert detail.isprintable() and len(detail) < 300, detail
        assert len(rig.broker.topics) == 0

    play(scenario)


def test_absurd_places_are_told_from_real_ones() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"a"))
        expected = [
            (FetchPart("t", 0, HUGE), Status.TRUNCATED),
            (FetchPart("t", 0, HUGE, HUGE), Status.TRUNCATED),
            (FetchPart("t", 0, 0, HUGE), Status.OK),
            (FetchPart("t", 0, 0, 0, HUGE), Status.TOPIC_GONE),
            (FetchPart("t", 0, 0, token=Token(HUGE, HUGE)), Status.FENCED),
            (FetchPart("t", 65535, 0), Status.QUEUE_NOT_FOUND),
        ]
        for part, status in expected:
            answer = await client.fetch(part, max_bytes=HUGE)
            assert answer.header.results[0].status == status, part

    play(scenario)


def test_the_same_queue_4096_times_is_one_bounded_answer() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, bytes(900_000)))
        answer = await client.fetch(*[FetchPart("t", 0, 0)] * 4096, max_bytes=HUGE)
        assert answer.status == Status.OK
        assert sum(map(len, answer.body)) <= rig.broker.config.limits.frame_bytes
        answer = await client.fetch(*[FetchPart("t", 0, 0)] * 4097)
        assert answer.status == Status.BAD_REQUEST

    play(scenario)


def test_who_has_room_for_nothing_still_gets_one_batch() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"a"))
        answer = await client.fetch(FetchPart("t", 0, 0), max_bytes=0)
        assert answer.header.results[0].next_offset == 1

    play(scenario)


def test_commits_beyond_the_end_and_of_other_lives_are_refused_one_by_one() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"a"), batch_of("t", 1, b"b"))
        parts = [
            CommitPart("t", 0, 2),
            CommitPart("t", 1, 1),
            CommitPart("t", 0, HUGE, HUGE),
            CommitPart("t", 2, 0, 0, 99),
            CommitPart("gone", 0, 0),
        ]
        answer = await client.ask(Operation.COMMIT, Commit("g", parts))
        assert [part.status for part in answer.header.parts] == [
            Status.TRUNCATED,
            Status.OK,
            Status.TRUNCATED,
            Status.TOPIC_GONE,
            Status.TOPIC_NOT_FOUND,
        ]
        refs = [QueueRef("t", queue) for queue in range(3)]
        answer = await client.ask(Operation.COMMITTED, Committed("g", refs))
        assert [(p.found, p.offset) for p in answer.header.parts] == [
            (False, 0),
            (True, 1),
            (False, 0),
        ]

    play(scenario)


def test_who_never_says_a_good_hello_does_not_keep_a_connection_for_ever() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        strangers = [rig.stranger() for _ in range(4)]
        await strangers[0].ask(Operation.HEARTBEAT, Heartbeat())
        strangers[1].post_raw([b"rubbish"])
        await strangers[2].ask(Operation.HELLO, Hello(99, 99, "x"))
        await strangers[3].hello("comes and goes")
        await strangers[3].ask(Operation.GOODBYE, Goodbye())
        for _ in range(12):
            await rig.environment.clock.run_for(3)
            assert (await client.ask(Operation.HEARTBEAT, Heartbeat())).status == Status.OK
            # Rubbish is no sign of life.
            if strangers[1].channel.send([b"rubbish"]):
                await rig.settle()
        ended = [
            any(event == "disconnected" for event, _ in stranger.channel.events())
            for stranger in strangers
        ]
        assert ended == [True] * 4

    play(scenario, {"broker.session_timeout_ms": 12_000})


def test_who_says_hello_late_is_no_stranger_any_more() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        late = rig.stranger()
        await late.ask(Operation.HEARTBEAT, Heartbeat())
        await rig.environment.clock.run_for(8)
        await late.hello()
        for _ in range(6):
            await rig.environment.clock.run_for(3)
            assert (await late.ask(Operation.HEARTBEAT, Heartbeat())).status == Status.OK

    play(scenario, {"broker.session_timeout_ms": 12_000})
