"""Fetches: several queues in one reply, nothing skipped silently, whatever became of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.batch import parse
from cometmq.broker.fetch_turns import TURN_BYTES
from cometmq.log import NotLoaded, ReadResult
from cometmq.protocol import (
    Commit,
    CommitPart,
    Fetch,
    FetchPart,
    Heartbeat,
    Hello,
    Offsets,
    Operation,
    QueueRef,
    ReportDamage,
    Status,
    Token,
    TopicCreate,
    TopicDescribe,
)
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.raw_client import Answer, RawClient, Rig, batch_of, play, running_broker


def batches(answer: Answer) -> list[tuple[int, int]]:
    """(base offset, count) of all batches of a reply."""
    body = b"".join(answer.body)
    found, at = [], 0
    for size in answer.header.sizes:
        batch = parse(body[at : at + size])
        found.append((batch.base_offset, batch.count))
        at += size
    assert at == len(body)
    return found


def test_several_queues_in_the_order_of_the_parts() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(
            batch_of("t", 0, b"a"), batch_of("t", 1, b"b", b"b"), batch_of("u", 0, b"c")
        )
        answer = await client.fetch(
            FetchPart("t", 1, 0), FetchPart("t", 2, 0), FetchPart("u", 0, 0), FetchPart("t", 0, 0)
        )
        results = answer.header.results
        assert [(r.part, r.batches, r.next_offset) for r in results] == [
            (0, 1, 2),
            (2, 1, 1),
            (3, 1, 1),
        ]
        assert batches(answer) == [(0, 2), (0, 1), (0, 1)]

    play(scenario)


def test_a_fetch_into_a_batch_gets_the_whole_batch() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"a", b"b", b"c"), batch_of("t", 0, b"d"))
        answer = await client.fetch(FetchPart("t", 0, 1))
        assert batches(answer) == [(0, 3), (3, 1)]
        assert answer.header.results[0].next_offset == 4

    play(scenario)


def test_what_can_not_be_had_is_told_part_by_part() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"a"))
        answer = await client.fetch(
            FetchPart("x", 0, 0),
            FetchPart("t", 9, 0),
            FetchPart("t", 0, 0, incarnation=8),
            FetchPart("t", 0, 0, token=Token(1, 1)),
            FetchPart("t", 0, 2),
            FetchPart("t", 0, 0),
        )
        assert [result.status for result in answer.header.results] == [
            Status.TOPIC_NOT_FOUND,
            Status.QUEUE_NOT_FOUND,
            Status.TOPIC_GONE,
            Status.FENCED,
            Status.TRUNCATED,
            Status.OK,
        ]
        beyond = answer.header.results[4]
        assert (beyond.next_offset, beyond.epoch) == (1, 1)
        assert "go on from 1" in beyond.detail

    play(scenario)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (Fetch([]), Status.BAD_REQUEST),
        (Fetch([FetchPart("t", 0, 0)] * 5000), Status.BAD_REQUEST),
        (Fetch([FetchPart("t", 0, 0)], filter="x" * 5000), Status.TOO_LARGE),
    ],
)
def test_a_fetch_that_makes_no_sense_is_refused(header: Fetch, status: Status) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        assert (await client.ask(Operation.FETCH, header)).status == status

    play(scenario)


def test_bytes_are_bounded_but_one_batch_always_comes() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        big = b"x" * 10_000
        await client.send(*[batch_of("t", queue, big) for queue in (0, 0, 0, 1)])
        parts = FetchPart("t", 0, 0), FetchPart("t", 1, 0)
        assert batches(await client.fetch(parts[0], max_bytes=1)) == [(0, 1)]
        assert batches(await client.fetch(parts[0], max_bytes=25_000)) == [(0, 1), (1, 1)]
        for max_bytes, count in ((1, 1), (15_000, 1), (25_000, 2), (35_000, 3), (1 << 40, 4)):
            assert len(batches(await client.fetch(*parts, max_bytes=max_bytes))) == count

    play(scenario)


@pytest.mark.parametrize("slowly", [False, True])
def test_what_does_not_fit_any_more_is_not_read(slowly: bool) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        big = b"x" * 10_000
        await client.send(*[batch_of("t", queue, big) for queue in (0, 1, 2)])
        parts = [FetchPart("t", queue, 0) for queue in range(3)]
        log = rig.broker.log
        storage = log.reader._storage
        taken: list[int] = []
        if slowly:
            log.read_now = lambda *_, **__: None  # type: ignore[method-assign]

        def counted(read: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
            def reading(position: int, size: int) -> bytes:
                taken.append(size)
                return read(position, size)

            return reading

        for way in ("read", "read_now"):
            setattr(storage, way, counted(getattr(storage, way)))
        for max_bytes, count in ((1, 1), (15_000, 1), (25_000, 2), (35_000, 3)):
            taken.clear()
            assert len(batches(await client.fetch(*parts, max_bytes=max_bytes))) == count
            assert len(taken) == count

    play(scenario)


def test_no_queue_starves_behind_one_that_has_much_to_read() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(*[batch_of("t", queue, b"x" * 10_000) for queue in (0, 0, 1, 2)])
        parts = [FetchPart("t", queue, 0) for queue in range(3)]
        firsts = set()
        for _ in range(3):
            (result,) = (await client.fetch(*parts, max_bytes=1)).header.results
            firsts.add(result.part)
        assert firsts == {0, 1, 2}

    play(scenario)


def test_many_small_batches_fit_into_the_frames_of_a_reply() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(*[batch_of("t", 0, b"x" * 1000) for _ in range(300)])
        answer = await client.fetch(FetchPart("t", 0, 0))
        assert len(batches(answer)) == 300

    play(scenario)


def test_nothing_there_is_answered_empty_at_once_unless_it_may_wait() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.ask(Operation.TOPIC_CREATE, TopicCreate("t"))
        answer = await client.fetch(FetchPart("t", 0, 0))
        assert (answer.status, answer.header.results, answer.body) == (Status.OK, [], [])

    play(scenario)


def test_what_retention_deleted_is_expired() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        for _ in range(30):
            await client.send(batch_of("t", 0, b"x" * 5000))
        await rig.broker.log.trim(rig.broker.log.appended)
        answer = await client.fetch(FetchPart("t", 0, 0, epoch=1))
        (result,) = answer.header.results
        assert result.status == Status.EXPIRED
        assert result.next_offset == result.min_offset > 0
        assert "deleted by retention: go on from" in result.detail
        again = await client.fetch(FetchPart("t", 0, result.next_offset, epoch=result.epoch))
        assert again.header.results[0].next_offset == 30

    play(scenario, {"log.segment_batches": 10})


def test_a_consumer_ahead_of_a_cut_is_told_and_never_skips() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        log = rig.broker.log
        await client.send(batch_of("t", 0, *[b"x"] * 90))
        border = log.appended
        await client.send(batch_of("t", 0, *[b"old"] * 10))
        first = (await client.fetch(FetchPart("t", 0, 0))).header.results[0]
        assert (first.next_offset, first.epoch) == (100, 1)
        log.truncate(border)
        (sent,) = await client.send(batch_of("t", 0, *[b"new"] * 20))
        assert (sent.base_offset, sent.epoch) == (90, 2)
        (cut,) = (await client.fetch(FetchPart("t", 0, 100, epoch=1))).header.results
        assert (cut.status, cut.next_offset, cut.epoch) == (Status.TRUNCATED, 90, 2)
        on = await client.fetch(FetchPart("t", 0, 90, epoch=cut.epoch))
        assert batches(on) == [(90, 20)]
        (future,) = (await client.fetch(FetchPart("t", 0, 110, epoch=9))).header.results
        assert future.status == Status.TRUNCATED, "an epoch that never was"
        commit = Commit("g", [CommitPart("t", 0, 100, epoch=1)])
        (part,) = (await client.ask(Operation.COMMIT, commit)).header.parts
        assert part.status == Status.TRUNCATED

    play(scenario)


def test_old_segments_are_read_from_disk_without_blocking_others() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        settings = {"log.segment_batches": 20}
        async with running_broker(settings, environment=environment) as rig:
            client = await rig.client()
            for number in range(100):
                await client.send(batch_of("t", number % 3, b"%d" % number))
        async with running_broker(settings, environment=environment) as rig:
            client = await rig.client()
            seen = 0
            for queue in range(3):
                offset = 0
                while True:
                    answer = await client.fetch(FetchPart("t", queue, offset, epoch=1))
                    if not answer.header.results:
                        break
                    (result,) = answer.header.results
                    assert result.status == Status.OK
                    assert batches(answer)[0][0] == offset
                    seen += result.next_offset - offset
                    offset = result.next_offset
            assert seen == 100

    asyncio.run(scenario())


def test_a_handler_that_needs_a_cold_index_begins_again_when_it_is_there() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        settings = {"log.segment_batches": 20}
        for _start in range(3):
            async with running_broker(settings, environment=environment) as rig:
                client = await rig.client()
                for _ in range(40):
                    await client.send(batch_of("t", 0, b"x" * 1000))
        async with running_broker(settings, environment=environment) as rig:
            client = await rig.client()
            log = rig.broker.log
            with pytest.raises(NotLoaded):
                log.judge(1, 0, 40, 2)
            commit = Commit("g", [CommitPart("t", 0, 40, epoch=2), CommitPart("t", 0, 81, epoch=2)])
            answer = await client.ask(Operation.COMMIT, commit)
            assert [part.status for part in answer.header.parts] == [Status.OK, Status.TRUNCATED]
            (cut,) = (await client.fetch(FetchPart("t", 0, 45, epoch=1))).header.results
            assert (cut.status, cut.next_offset) == (Status.TRUNCATED, 40)

    asyncio.run(scenario())


def test_a_cut_while_the_disk_is_read_is_told_with_the_next_fetch() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        log = rig.broker.log
        await client.send(batch_of("t", 0, b"a"))
        border = log.appended
        await client.send(batch_of("t", 0, b"b"))
        read_slowly, cut = log.read, asyncio.Event()

        async def read(*asked: Any, **how: Any) -> ReadResult:
            result = await read_slowly(*asked, **how)
            await cut.wait()
            return result

        log.read_now = lambda *_, **__: None  # type: ignore[method-assign]
        log.read = read  # type: ignore[method-assign]
        request = client.post(Operation.FETCH, Fetch([FetchPart("t", 0, 0)]))
        assert await client.answer_if_any(request) is None
        log.truncate(border)
        cut.set()
        (result,) = (await client.answer(request)).header.results
        assert (result.next_offset, result.epoch) == (2, 1)
        (told,) = (await client.fetch(FetchPart("t", 0, 2, epoch=1))).header.results
        assert (told.status, told.next_offset) == (Status.TRUNCATED, 1)

    play(scenario)


def flip(environment: VirtualEnvironment, position: int) -> None:
    """Turn a bit of the log over, in the file that holds this position."""
    files = environment.files
    names = [name for name in files.list("/mq-data/log") if name.endswith(".seg")]
    name = [name for name in names if int(name[:20]) <= position][-1]
    file = files.open(f"/mq-data/log/{name}")
    at = position - int(name[:20])
    (byte,) = file.read(at, 1)
    file.write(at, [bytes([byte ^ 1])])
    file.close()


def test_damage_is_told_with_its_place_and_all_else_goes_on() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        places = []
        for _ in range(3):
            places.append(rig.broker.log.appended)
            await client.send(batch_of("t", 0, b"x" * 100))
        flip(rig.environment, places[1] + 40)
        answer = await client.fetch(FetchPart("t", 0, 0))
        assert batches(answer) == [(0, 1)]
        (result,) = (await client.fetch(FetchPart("t", 0, 1))).header.results
        assert (result.status, result.next_offset) == (Status.DAMAGED, 2)
        assert ".seg" in result.detail
        assert batches(await client.fetch(FetchPart("t", 0, 2))) == [(2, 1)]
        assert (await client.send(batch_of("t", 0, b"y")))[0].base_offset == 3

    play(scenario)


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_start_in_doubt_never_passes_damage_as_absence(damaged: int) -> None:
    """Neither what is missing at a queue's begin nor at its end looks like nothing."""

    async def scenario() -> None:
        environment = VirtualEnvironment()
        places = []
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            for topic in ("t", "other"):
                await client.ask(Operation.TOPIC_CREATE, TopicCreate(topic))
            for _ in range(3):
                places.append(rig.broker.log.appended)
                await client.send(batch_of("t", 0, b"x" * 100))
            await client.send(batch_of("other", 0, b"x"))
        flip(environment, places[damaged] + 40)
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            read: list[int] = []
            while len(read) < damaged:
                (found, *_) = batches(await client.fetch(FetchPart("t", 0, len(read))))
                read.append(found[0])
            assert read == list(range(damaged))
            found = (await client.fetch(FetchPart("t", 0, damaged))).header.results
            statuses = [(result.status, ".seg" in result.detail) for result in found]
            assert statuses == ([(Status.DAMAGED, True)] if damaged < 2 else [])
            hello = await rig.stranger().ask(Operation.HELLO, Hello(1, 1, "x"))
            assert "damaged" in hello.header.in_doubt, "what may follow nobody can know"
            for epoch in (0, 1, 2):
                found = (await client.fetch(FetchPart("t", 0, 3, epoch))).header.results
                assert found == [], "who had read all of it is not told that it was cut"
            bounds = (await client.ask(Operation.OFFSETS, Offsets([QueueRef("t", 0)]))).header
            assert bounds.parts[0].min_offset == 0
            described = (await client.ask(Operation.TOPIC_DESCRIBE, TopicDescribe("t"))).header
            assert "damaged" in described.in_doubt

    asyncio.run(scenario())


def test_a_broker_in_doubt_is_read_only_and_says_why() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            place = rig.broker.log.appended
            for _ in range(3):
                await client.send(batch_of("t", 0, b"x" * 100))
            place += 400
        flip(environment, place)
        for _ in range(2):
            async with running_broker(environment=environment) as rig:
                client = await rig.client()
                assert "damaged" in rig.broker.log.in_doubt
                damaged, doubt = rig.broker.banner()[-2:]
                assert "DAMAGED, but at the end of a queue" in damaged and "in doubt" in doubt
                (sent,) = await client.send(batch_of("t", 0, b"y"))
                assert sent.status == Status.IN_DOUBT
                assert "mq log inspect" in sent.detail
                create = await client.ask(Operation.TOPIC_CREATE, TopicCreate("new"))
                assert create.status == Status.IN_DOUBT
                commit = Commit("g", [CommitPart("t", 0, 0)])
                (part,) = (await client.ask(Operation.COMMIT, commit)).header.parts
                assert part.status == Status.IN_DOUBT
                answer = await client.fetch(FetchPart("t", 0, 0))
                assert batches(answer)[0] == (0, 1)
                assert rig.broker.info().in_doubt

    asyncio.run(scenario())


BIG = bytes(900_000)


def test_fetches_of_more_than_a_turn_wait_for_the_next_and_nobody_behind_them() -> None:
    """The connections take turns, so that who asks for little waits for little."""

    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, BIG))
        await client.send(batch_of("t", 1, b"small"))
        other = await rig.client()
        big = Fetch([FetchPart("t", 0, 0)])
        pending = [client.post(Operation.FETCH, big) for _ in range(25)]
        (session, _) = rig.broker._service.sessions  # type: ignore[union-attr]
        assert (await other.ask(Operation.HEARTBEAT, Heartbeat())).status == Status.OK
        small = await other.fetch(FetchPart("t", 1, 0))
        assert batches(small) == [(0, 1)]
        assert session.unanswered_bytes > 10 * len(BIG), "it did not overtake"
        for request_id in pending:
            assert batches(await client.answer(request_id)) == [(0, 1)]
        assert session.unanswered_bytes == 0

    play(scenario)


def test_who_lets_too_many_fetches_wait_is_told_to_wait() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, BIG))
        pending = [client.post(Operation.FETCH, Fetch([FetchPart("t", 0, 0)])) for _ in range(60)]
        answers = [(await client.answer(request_id)).status for request_id in pending]
        assert answers.count(Status.OK) >= 20
        assert set(answers) == {Status.OK, Status.RETRY}
        assert batches(await client.fetch(FetchPart("t", 0, 0))) == [(0, 1)]

    play(scenario)


def test_fetches_that_one_send_wakes_take_turns_too() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.ask(Operation.TOPIC_CREATE, TopicCreate("t"))
        waiting = [await rig.client() for _ in range(30)]
        header = Fetch([FetchPart("t", 0, 0)], wait_ms=10_000)
        pending = [each.post(Operation.FETCH, header) for each in waiting]
        await rig.settle()
        assert len(rig.broker.park) == 30
        await client.send(batch_of("t", 0, BIG))
        for each, request_id in zip(waiting, pending, strict=True):
            assert batches(await each.answer(request_id)) == [(0, 1)]
        assert len(rig.broker.park) == 0

    play(scenario)


def test_a_fetch_that_was_put_off_waits_for_messages_as_any_other() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, BIG))
        big = Fetch([FetchPart("t", 0, 0)])
        pending = [client.post(Operation.FETCH, big) for _ in range(12)]
        last = client.post(Operation.FETCH, Fetch([FetchPart("t", 1, 0)], wait_ms=10_000))
        for request_id in pending:
            await client.answer(request_id)
        assert await client.answer_if_any(last) is None
        await client.send(batch_of("t", 1, b"x"))
        assert batches(await client.answer(last)) == [(0, 1)]

    play(scenario)


def test_fetches_that_were_put_off_are_answered_at_the_end_and_forgotten_with_their_session() -> (
    None
):
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, BIG))
        big = Fetch([FetchPart("t", 0, 0)])
        fetches = rig.broker._service.fetches  # type: ignore[union-attr]
        fetches.turns.spent_bytes = TURN_BYTES
        pending = client.post(Operation.FETCH, big)
        gone = await rig.client()
        fetches.turns.spent_bytes = TURN_BYTES
        gone.post(Operation.FETCH, big)
        gone.close()
        assert len(batches(await client.answer(pending))) == 1
        fetches.turns.spent_bytes = TURN_BYTES
        pending = client.post(Operation.FETCH, big)
        while not fetches.turns._waiting:
            await asyncio.sleep(0)
        await fetches.stop()
        answer = await client.answer(pending)
        assert (answer.status, answer.header.results) == (Status.OK, [])

    play(scenario)


def test_a_report_of_damage_is_counted_and_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 3, b"a", b"b"))

        async def report(topic: str, queue: int, offset: int) -> Status:
            header = ReportDamage(topic, queue, offset, "CRC\n" + "x" * 1000)
            return (await rig.clients[-1].ask(Operation.REPORT_DAMAGE, header)).status

        for _ in range(100):
            assert await report("t", 3, 1) == Status.OK
        assert rig.broker.info().metrics["damage_reports"] == 100
        await rig.environment.clock.run_for(61.0)
        await rig.client()
        assert await report("t", 3, 0) == Status.OK
        assert await report("t", 3, 2) == Status.BAD_REQUEST
        assert await report("t", 4, 0) == Status.QUEUE_NOT_FOUND
        assert await report("u", 0, 0) == Status.TOPIC_NOT_FOUND
        assert rig.broker.info().metrics["damage_reports"] == 101

    play(scenario)
    told = [r.getMessage() for r in caplog.records if "damaged bytes" in r.getMessage()]
    assert [line.partition(" queue 3")[0][-11:] for line in told] == ["offset 1 of", "offset 0 of"]
    assert all("\n" not in line and len(line) < 400 for line in told)
