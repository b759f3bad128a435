"""`dedup` in a broker: one copy and one answer for a repeat, a name for everything out of order."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence

import pytest

from cometmq.batch import RecordTuple, encode_messages
from cometmq.errors import PluginError
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Refuse, StateView
from cometmq.protocol import Operation, SendReply, Status, TopicCreate, TopicDelete
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker
from cometmq_plugins.dedup.view import Producers

Scenario = Callable[[Rig, RawClient], Awaitable[None]]
IN_THREAD: dict[str, object] = {"plugin.flush-sync.sync_in_loop_below_us": 0}
"""A sync in the loop's own thread can't be held back."""


def play(scenario: Scenario, settings: dict[str, object] | None = None, **plugins: object) -> None:
    async def run() -> None:
        everything = {**IN_THREAD, **(settings or {})}
        async with running_broker(everything, plugins=["dedup"], extra_plugins=plugins) as rig:
            await scenario(rig, await rig.client())

    asyncio.run(run())


def numbered(
    sequence: int,
    *,
    epoch: int = 0,
    count: int = 1,
    producer: int = 7,
    queue: int = 0,
    topic: str = "t",
) -> bytearray:
    records: list[RecordTuple] = [(1_750_000_000_000, b"x", "", (), {})] * count
    return encode_messages(topic, queue, records, producer=(producer, epoch, sequence))


def end_of(rig: Rig, queue: int = 0, topic: str = "t") -> int:
    found = rig.broker.topics.get(topic)
    assert found is not None
    return rig.broker.log.next_offset(found.incarnation, queue)


def metric(rig: Rig, name: str) -> list[float]:
    return [it for full, it in rig.broker.info().metrics.items() if full.startswith(name)]


def test_a_repeat_is_stored_once_and_gets_the_same_answer() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        (first,) = await client.send(numbered(0, count=3))
        rig.environment.clock.advance(5)
        await client.send(batch_of("t", 0, b"somebody else"))
        (again,) = await client.send(numbered(0, count=3))
        assert first.status == Status.OK
        assert again == first
        assert end_of(rig) == 4
        assert metric(rig, "dedup_repeats") == [1]
        other = await rig.client()
        assert await other.send(numbered(0, count=3)) == [first], "from a new connection too"

    play(scenario)


def test_two_copies_in_one_drain_are_one() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(numbered(0))
        requests = [client.post_send(numbered(1)), client.post_send(numbered(1), numbered(2))]
        one, two = [(await client.answer(it)).header.results for it in requests]
        assert two[0] == one[0]
        assert [it.base_offset for it in two] == [1, 2]
        assert end_of(rig) == 3

    play(scenario)


def test_a_repeat_joins_the_wait_of_the_first_at_its_own_level() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(numbered(0))
        files = rig.environment.files
        files.hold_syncs()
        first = client.post_send(numbered(1), level="disk")
        await rig.settle()
        again = client.post_send(numbered(1), level="disk")
        weaker = client.post_send(numbered(1), level="memory")
        told = (await client.answer(weaker)).header
        assert isinstance(told, SendReply)
        assert (told.level, told.results[0].base_offset) == ("memory", 1)
        assert await client.answer_if_any(again) is None
        files.release_syncs()
        one, two = (await client.answer(first)).header, (await client.answer(again)).header
        assert one == two
        assert (one.level, one.results) == ("disk", told.results)
        assert end_of(rig) == 2

    play(scenario)


def test_five_may_be_repeated_and_more_are_refused_without_a_second_copy() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        first = await client.send(*(numbered(it) for it in range(7)))
        again = await client.send(*(numbered(it) for it in range(7)))
        assert again[2:] == first[2:]
        assert [it.status for it in again[:2]] == [Status.REFUSED] * 2
        assert "sequence 0 is none of the last 5 batches" in again[0].detail
        assert end_of(rig) == 7

    play(scenario)


def test_gaps_old_epochs_and_strangers_are_refused_by_name() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(numbered(0, count=2))
        results = await client.send(
            numbered(3),
            numbered(1, epoch=1),
            numbered(0, epoch=1),
            numbered(2),
            numbered(1, epoch=1),
            numbered(4, producer=8),
            numbered(0, epoch=1, count=2),
        )
        assert [Status(it.status).name for it in results] == [
            "OUT_OF_SEQUENCE",
            "OUT_OF_SEQUENCE",
            "OK",
            "FENCED",
            "OK",
            "UNKNOWN_PRODUCER",
            "REFUSED",
        ]
        assert results[0].detail == (
            "a batch for queue 0 of topic t is not taken: sequence 3 in epoch 0, not 2; "
            "raise the producer's epoch and start at 0"
        )
        assert end_of(rig) == 4
        assert sum(metric(rig, "dedup_refused")) == 5

    play(scenario)


def test_a_failure_in_the_middle_stops_what_follows_it() -> None:
    class Picky:
        name = "picky"
        refuses = True

        @hookimpl
        def before_append(self, batch: object) -> Refuse | None:
            second = getattr(batch, "producer", (0, 0, 0))[2] == 1
            return Refuse("not now", retry_after_ms=5) if second and self.refuses else None

    picky = Picky()

    async def scenario(rig: Rig, client: RawClient) -> None:
        results = await client.send(*(numbered(it) for it in range(5)))
        assert [Status(it.status).name for it in results] == ["OK", "RETRY"] + [
            "OUT_OF_SEQUENCE"
        ] * 3
        picky.refuses = False
        results = await client.send(*(numbered(it) for it in range(1, 5)))
        assert [it.base_offset for it in results] == [1, 2, 3, 4]

    play(scenario, picky=picky)


def test_two_producers_and_two_queues_have_rows_of_their_own() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        results = await client.send(
            numbered(0), numbered(0, producer=8), numbered(0, queue=1), numbered(1, producer=8)
        )
        assert [it.status for it in results] == [Status.OK] * 4
        assert (end_of(rig), end_of(rig, 1)) == (3, 1)
        assert metric(rig, "dedup_places") == [3]

    play(scenario)


def test_a_batch_without_a_number_is_not_looked_at() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        for _ in range(2):
            await client.send(batch_of("t", 0, b"same"))
        assert end_of(rig) == 2
        assert metric(rig, "dedup_places") == [0]

    play(scenario)


def test_a_write_that_failed_leaves_no_trace_of_the_first_copy() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        (safe,) = await client.send(numbered(0))
        rig.environment.files.fail("write", errno.EIO, name=".seg", times=1)
        requests = [client.post_send(numbered(1)), client.post_send(numbered(1), numbered(0))]
        one, two = [(await client.answer(it)).header.results for it in requests]
        assert [it.status for it in (*one, *two)] == [Status.RETRY, Status.RETRY, Status.OK]
        assert two[1] == safe, "what is in the log is not taken back"
        (again,) = await client.send(numbered(1))
        assert (again.status, again.base_offset, end_of(rig)) == (Status.OK, 1, 2)

    play(scenario)


def test_a_topics_new_life_starts_fresh() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(numbered(0), numbered(1))
        await client.ask(Operation.TOPIC_DELETE, TopicDelete("t"))
        await client.ask(Operation.TOPIC_CREATE, TopicCreate("t"))
        results = await client.send(numbered(0), numbered(1))
        assert [(it.status, it.base_offset) for it in results] == [(Status.OK, 0), (Status.OK, 1)]

    play(scenario)


def test_an_idle_producer_is_forgotten() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(numbered(0), numbered(0, producer=8))
        rig.environment.clock.advance(60.5)
        client = await rig.client()  # the first one's session is over
        await client.send(numbered(0, producer=9))
        results = await client.send(numbered(1), numbered(0, epoch=1))
        assert [Status(it.status).name for it in results] == ["UNKNOWN_PRODUCER", "OK"]

    play(scenario, {"plugin.dedup.idle_s": 60})


def test_the_number_of_producers_is_bounded() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        results = await client.send(*(numbered(0, producer=it) for it in range(4)))
        assert [Status(it.status).name for it in results] == ["OK"] * 3 + ["LIMIT_REACHED"]
        assert "plugin.dedup.places_max" in results[3].detail
        (known,) = await client.send(numbered(1, producer=1))
        assert known.status == Status.OK
        rig.environment.clock.advance(61)
        client = await rig.client()
        await client.send(numbered(2, producer=1))
        (later,) = await client.send(numbered(0, producer=5))
        assert later.status == Status.OK, "the idle ones make room"

    play(scenario, {"plugin.dedup.places_max": 3, "plugin.dedup.idle_s": 60})


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_start_remembers_what_the_log_holds(clean: bool) -> None:
    async def run() -> None:
        environment = VirtualEnvironment()
        batches = [numbered(it, count=2) for it in range(0, 8, 2)]
        async with running_broker(environment=environment, plugins=["dedup"]) as rig:
            client = await rig.client()
            first = await client.send(*batches)
            if not clean:
                environment.files = environment.files.crash()
        async with running_broker(environment=environment, plugins=["dedup"]) as rig:
            client = await rig.client()
            assert await client.send(*batches) == first
            (more,) = await client.send(numbered(8))
            assert (more.status, more.base_offset) == (Status.OK, 8)

    asyncio.run(run())


def test_hello_tells_clients_that_they_may_rely_on_it() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        assert "sequences" in (await rig.stranger().hello()).features

    play(scenario)


class Copycat:
    """Brings a view of a name that is taken."""

    name = "copycat"

    @hookimpl
    def state_views(self) -> Sequence[StateView]:
        return [Producers(1)]


def test_two_views_of_one_name_are_an_error_that_names_both_plugins() -> None:
    with pytest.raises(PluginError, match="dedup and copycat both bring the state view dedup"):
        play(lambda rig, client: asyncio.sleep(0), copycat=Copycat)


@pytest.mark.parametrize(
    ("step", "repeats"), [("lost on the way", 1), ("written", 1), ("synced", 2)]
)
def test_a_send_whose_answer_a_power_cut_took_is_stored_once(step: str, repeats: int) -> None:
    """What a kill alone leaves is under test in tests/end_to_end, with real ones."""

    async def run() -> None:
        environment = VirtualEnvironment()
        async with running_broker(IN_THREAD, environment=environment, plugins=["dedup"]) as rig:
            client = await rig.client()
            await client.send(numbered(0))
            files = environment.files
            if step == "written":
                files.hold_syncs()
            if step != "lost on the way":
                client.post_send(numbered(1))
                await rig.settle()
            # What it does from here on is on a disk that nobody reads any more.
            environment.files = files.crash()
            files.release_syncs()
        async with running_broker(IN_THREAD, environment=environment, plugins=["dedup"]) as rig:
            client = await rig.client()
            first = await client.send(numbered(0), numbered(1), numbered(2))
            assert [(it.status, it.base_offset) for it in first] == [(0, 0), (0, 1), (0, 2)]
            assert metric(rig, "dedup_repeats") == [repeats]
            assert await client.send(numbered(0), numbered(1), numbered(2)) == first
            assert end_of(rig) == 3

    asyncio.run(run())
