"""The tag filter: bytes on the wire follow the matches, and a filter that matches nothing still
makes progress."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from cometmq.batch import RecordTuple, decode_records, encode_messages, parse
from cometmq.broker.filtering import Chosen, filtered
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import ParkedFetch
from cometmq.protocol import (
    Fetch,
    FetchPart,
    FetchReply,
    FetchResultPart,
    Operation,
    Status,
    TopicCreate,
)
from cometmq.testing.raw_client import Answer, RawClient, Rig, running_broker
from cometmq_plugins.tagfilter import TagFilter

Scenario = Callable[[Rig, RawClient], Awaitable[None]]


def play(scenario: Scenario, plugins: Sequence[str] = ()) -> None:
    async def run() -> None:
        async with running_broker(plugins=plugins) as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))
            await scenario(rig, client)

    asyncio.run(run())


def tagged(*tags: str, body: bytes = b"x", queue: int = 0) -> bytearray:
    records: list[RecordTuple] = [(1_750_000_000_000, body, tag, (), {}) for tag in tags]
    return encode_messages("t", queue, records)


def found(answer: Answer) -> list[tuple[int, str]]:
    """(offset, tag) of everything that came."""
    assert isinstance(answer.header, FetchReply), answer
    messages = []
    for view in _split(answer):
        batch = parse(view)
        for delta, record in zip(batch.offset_deltas, decode_records(batch), strict=True):
            messages.append((batch.base_offset + delta, record[2]))
    return messages


def _split(answer: Answer) -> list[memoryview]:
    data = memoryview(b"".join(answer.body))
    views, at = [], 0
    for size in answer.header.sizes:
        views.append(data[at : at + size])
        at += size
    return views


async def fetch(client: RawClient, tags: str, offset: int = 0, **fields: int) -> Answer:
    return await client.fetch(FetchPart("t", 0, offset), filter=tags, **fields)


def part_of(answer: Answer) -> FetchResultPart:
    (part,) = answer.header.results
    assert isinstance(part, FetchResultPart)
    return part


@pytest.mark.parametrize(
    ("tags", "offsets"),
    [
        ("a", [0, 9]),
        (" a || b ", [0, 1, 9]),
        ("*", list(range(10))),
        ("a || *", list(range(10))),
        ("c", list(range(10))),
    ],
)
def test_a_batch_is_cut_when_little_of_it_matches(tags: str, offsets: list[int]) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(tagged("a", "b", *["c"] * 7, "a"))
        answer = await fetch(client, tags)
        assert [offset for offset, _ in found(answer)] == offsets
        (view,) = _split(answer)
        assert parse(view).is_cut == (len(offsets) < 10)
        assert part_of(answer).next_offset == 10

    play(scenario)


def test_batches_without_a_match_are_left_out() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        for tag in ("a", "b", "b", "a", "b"):
            await client.send(tagged(tag, tag))
        answer = await fetch(client, "a")
        assert found(answer) == [(0, "a"), (1, "a"), (6, "a"), (7, "a")]
        assert part_of(answer).next_offset == 10, "the last batch too is done with"

    play(scenario)


def test_nothing_that_matches_is_progress_all_the_same() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(tagged("b", "b", "b"))
        part = part_of(await fetch(client, "a"))
        assert (part.status, part.next_offset, part.epoch, part.batches) == (0, 3, 1, 0)
        again = await fetch(client, "a", offset=3)
        assert again.header.results == []

    play(scenario)


def test_a_waiting_fetch_wakes_for_matches_only() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        producer = await rig.client()
        header = Fetch([FetchPart("t", 0, 0), FetchPart("t", 1, 0)], wait_ms=5000, filter="a")
        waiting = client.post(Operation.FETCH, header)
        for _ in range(3):
            await producer.send(tagged("b", "b"))
            assert await client.answer_if_any(waiting) is None
        await producer.send(tagged("b", "a", "b"))
        answer = await client.answer(waiting)
        assert found(answer) == [(7, "a")]
        assert part_of(answer).next_offset == 9

    play(scenario)


def test_a_wait_in_vain_ends_with_how_far_it_came() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        producer = await rig.client()
        header = Fetch([FetchPart("t", 1, 0), FetchPart("t", 0, 0)], wait_ms=5000, filter="a")
        waiting = client.post(Operation.FETCH, header)
        await producer.send(tagged("b", "b"))
        await rig.environment.clock.run_for(5.1)
        part = part_of(await client.answer(waiting))
        assert (part.part, part.status, part.next_offset, part.batches) == (1, Status.OK, 2, 0)

    play(scenario)


def test_who_passed_what_it_does_not_want_hears_of_it_soon_but_not_for_each_message() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        producer = await rig.client()
        header = Fetch([FetchPart("t", 0, 0)], wait_ms=15_000, filter="a")
        waiting = client.post(Operation.FETCH, header)
        for _ in range(9):
            await producer.send(tagged("b", "b"))
            await rig.environment.clock.run_for(0.1)
            assert await client.answer_if_any(waiting) is None
        await rig.environment.clock.run_for(0.2)
        part = part_of(await client.answer(waiting))
        assert (part.status, part.next_offset, part.batches) == (Status.OK, 18, 0)
        assert len(rig.broker.park) == 0
        await producer.send(tagged("a"))
        assert found(await fetch(client, "a", 18)) == [(18, "a")], "the connection goes on"

    play(scenario)


def test_what_lay_there_unwanted_is_told_soon_too_and_who_left_is_told_nothing() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(tagged("b", "b"))
        leaver = await rig.client()
        header = Fetch([FetchPart("t", 0, 0)], wait_ms=15_000, filter="a")
        leaver.post(Operation.FETCH, header)
        waiting = client.post(Operation.FETCH, header)
        await rig.settle()
        assert len(rig.broker.park) == 2
        leaver.close()
        await rig.environment.clock.run_for(1.1)
        assert part_of(await client.answer(waiting)).next_offset == 2
        assert len(rig.broker.park) == 0

    play(scenario)


class Careless:
    """Fails when it is asked to keep a fetch, or keeps it by itself and asks too late."""

    name = "careless"

    def __init__(self) -> None:
        self.fails = True
        self.kept: list[ParkedFetch] = []

    @hookimpl
    def fetch_wait(self, fetch: ParkedFetch) -> bool | None:
        if self.fails:
            raise ValueError("on purpose")
        self.kept.append(fetch)
        return True


def test_who_was_told_or_refused_is_answered_once_whoever_keeps_the_fetch() -> None:
    async def run() -> None:
        careless = Careless()
        extra = {"careless": careless}
        async with running_broker(plugins=["-longpoll"], extra_plugins=extra) as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 1))
            await client.send(tagged("b", "b"))
            header = Fetch([FetchPart("t", 0, 0)], wait_ms=15_000, filter="a")
            refused = client.post(Operation.FETCH, header)
            await rig.environment.clock.run_for(1.5)
            assert (await client.answer(refused)).status == Status.INTERNAL
            assert await client.answer_if_any(refused) is None
            careless.fails = False
            waiting = client.post(Operation.FETCH, header)
            await rig.environment.clock.run_for(1.5)
            assert part_of(await client.answer(waiting)).next_offset == 2
            (fetch,) = careless.kept
            assert fetch.retry()
            fetch.answer_empty()
            await rig.settle()
            assert await client.answer_if_any(waiting) is None

    asyncio.run(run())


def test_looking_in_vain_has_an_end() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        body = b"x" * 500_000
        for _ in range(20):
            await client.send(tagged("b", body=body))
        await client.send(tagged("a"))
        offset, rounds = 0, 0
        while not (messages := found(answer := await fetch(client, "a", offset, wait_ms=5000))):
            assert part_of(answer).next_offset > offset
            offset = part_of(answer).next_offset
            rounds += 1
        assert messages == [(20, "a")]
        assert 1 <= rounds <= 3

    play(scenario)


def test_what_the_disk_has_to_give_is_filtered_too() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        for tag in ("b", "b", "a"):
            await client.send(tagged(tag, "b"))
        await rig.settle()
        rig.broker.log.read_now = lambda *_, **__: None  # type: ignore[method-assign]
        answer = await fetch(client, "a", max_bytes=1)
        assert found(answer) == [(4, "a"), (5, "b")]
        part = part_of(await fetch(client, "c"))
        assert (part.next_offset, part.batches) == (6, 0)

    play(scenario)


@pytest.mark.parametrize("slowly", [False, True])
def test_what_fits_once_it_is_cut_comes_whatever_came_before(slowly: bool) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        for queue in (0, 1):
            await client.send(tagged("a", *["b"] * 9, body=bytes(1000), queue=queue))
        if slowly:
            rig.broker.log.read_now = lambda *_, **__: None  # type: ignore[method-assign]
        parts = [FetchPart("t", queue, 0) for queue in (0, 1)]
        answer = await client.fetch(*parts, filter="a", max_bytes=5000)
        assert found(answer) == [(0, "a"), (0, "a")]

    play(scenario)


def test_one_in_a_hundred_moves_few_bytes() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        stored = 0
        for _ in range(10):
            batch = tagged("hit", *["miss"] * 99, body=b"x" * 1024)
            stored += len(batch)
            await client.send(batch)
        answer = await fetch(client, "hit", max_bytes=1 << 20)
        sent = sum(answer.header.sizes)
        assert len(found(answer)) * 100 * 1024 <= stored
        assert found(answer)
        assert sent <= 0.03 * stored

    play(scenario)


def test_bad_expressions_are_refused() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        for tags in ("a ||", "|| a", "a || || b"):
            answer = await fetch(client, tags)
            assert answer.status == Status.BAD_REQUEST
            assert "a tag is missing" in answer.header.detail
        answer = await fetch(client, "a" * 5000)
        assert answer.status == Status.TOO_LARGE

    play(scenario)


def test_without_the_plugin_a_filter_is_refused() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        answer = await fetch(client, "a")
        assert answer.status == Status.REFUSED
        assert "no plugin of this broker knows the filter" in answer.header.detail

    play(scenario, plugins=["-tagfilter"])


def test_damage_is_never_filtered_away() -> None:
    whole = tagged("a", "b", "b")
    selector = TagFilter().parse("a")
    assert selector is not None
    chosen = Chosen(selector, "tagfilter", lambda plugin, error: pytest.fail(f"{error!r}"))
    seed = 7
    assert len(filtered(chosen, [memoryview(whole)], seed, 1 << 20)[0]) < len(whole)
    table_at = parse(whole).table_at
    whole[table_at + 4 * 3] ^= 0xFF  # the hash of the only match
    (sent,) = filtered(chosen, [memoryview(whole)], seed, 1 << 20)
    assert sent == whole, "whole, so that the consumer finds it and can report it"


def test_a_selector_names_places() -> None:
    batch = parse(tagged("a", "b", "", "a"))
    one, every = TagFilter().parse("a"), TagFilter().parse("*")
    assert one is not None and every is not None
    assert one.select(batch) == [0, 3]
    assert every.select(batch) is None
