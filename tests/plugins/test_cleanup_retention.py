"""Topics with a retention of their own: what expires, what is kept, and what a consumer hears."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import Random

import pytest
from click.testing import CliRunner

from cometmq import Admin, Expired, Message, Producer, PullConsumer, Refused, Retention, aio
from cometmq.cli import cli
from cometmq.client.fetcher import ExpiredPolicy
from cometmq.protocol import Commit, CommitPart, Operation, Status, TopicAlter, TopicCreate
from cometmq.testing.embedded import EmbeddedBroker
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker
from cometmq_plugins.cleanup import reports
from cometmq_plugins.cleanup.plugin import CleanupPlugin

HOUR_MS = 3_600_000
BODY = b"x" * 1000
SETTINGS: dict[str, object] = {
    "log.segment_bytes": 1 << 20,
    "plugin.cleanup.timezone": "UTC",
    "plugin.cleanup.retention_interval_s": 1e9,
    "broker.session_timeout_ms": 86_400_000,
}


class Bench:
    """A broker with topic `t` of two queues, incarnation 1."""

    def __init__(self, rig: Rig, client: RawClient) -> None:
        self.rig = rig
        self.client = client
        self.log = rig.broker.log
        (self.plugin,) = (
            it.plugin
            for it in rig.broker.composition.plugins
            if isinstance(it.plugin, CleanupPlugin)
        )

    async def send(self, queue: int, count: int = 1, topic: str = "t") -> None:
        for _ in range(count):
            (part,) = await self.client.send(batch_of(topic, queue, BODY))
            assert part.status == Status.OK

    async def alter(self, **rules: int | str) -> Status:
        header = TopicAlter("t", retention=Retention(**rules))  # type: ignore[arg-type]
        return (await self.client.ask(Operation.TOPIC_ALTER, header)).status

    async def commit(self, group: str, queue: int, offset: int) -> None:
        await self.client.ask(Operation.COMMIT, Commit(group, [CommitPart("t", queue, offset)]))

    def step(self, hours: float) -> None:
        """Time goes by for the clock, not for timers."""
        clock = self.rig.environment.clock
        clock._monotonic_s += hours * 3600
        clock._wall_ms += hours * HOUR_MS

    async def cleaned(self) -> list[str]:
        """Let old segments go; why each one went."""
        assert self.plugin._work is not None
        run = asyncio.ensure_future(self.plugin._work.cleaner.run(due=True))
        while not run.done():
            await self.rig.environment.clock.run_for(0.2)
        return [gone.reason for gone in run.result()]

    async def retained(self) -> list[int]:
        """Look after retention; the min offset of each queue."""
        await self.plugin._retain()
        return self.min_offsets()

    def min_offsets(self) -> list[int]:
        return [self.log.min_offset(1, queue) for queue in range(2)]


def play(
    scenario: Callable[[Bench], Awaitable[None]], environment: VirtualEnvironment | None = None
) -> None:
    async def run() -> None:
        async with running_broker(SETTINGS, environment=environment) as rig:
            client = await rig.client("me")
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", queues=2))
            await scenario(Bench(rig, client))

    asyncio.run(run())


# --- what expires -----------------------------------------------------------------------------


def test_by_time() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send(0, 3)
        bench.step(1)
        await bench.send(1, 2)
        await bench.send(0, 1)
        assert await bench.alter(time_ms=2 * HOUR_MS) == Status.OK
        assert await bench.retained() == [0, 0]
        bench.step(1)
        assert await bench.retained() == [0, 0], "not older than two hours, just as old"
        bench.step(0.1)
        assert await bench.retained() == [3, 0]
        bench.step(1)
        assert await bench.retained() == [4, 2]
        assert bench.plugin._work is not None
        told = reports.status_lines(bench.plugin._work.status())
        assert told["retention"].startswith("6 messages expired since the start")

    play(scenario)


def test_by_size_over_all_queues_together() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(5):
            await bench.send(0)
            await bench.send(1)
        await bench.send(0, 20, topic="other")
        size = bench.log.index.bytes_from(1, 0, 4)
        await bench.alter(size_bytes=3 * size)
        assert await bench.retained() == [4, 3]
        await bench.alter(size_bytes=size - 1)
        assert await bench.retained() == [5, 5]
        assert bench.log.min_offset(2, 0) == 0

    play(scenario)


def test_until_a_group_has_consumed_it_with_a_cap() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send(0, 5)
        await bench.send(1, 5)
        await bench.alter(group="billing", cap_ms=48 * HOUR_MS)
        assert await bench.retained() == [0, 0], "it has consumed nothing"
        await bench.commit("billing", 0, 4)
        await bench.commit("other", 1, 5)
        assert await bench.retained() == [4, 0]
        bench.step(49)
        assert await bench.retained() == [5, 5], "the cap"

    play(scenario)


def test_what_a_group_has_consumed_may_stay_a_while() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send(0, 5)
        await bench.alter(group="billing", time_ms=2 * HOUR_MS, cap_bytes=1 << 30)
        await bench.commit("billing", 0, 3)
        assert await bench.retained() == [0, 0], "it is not two hours old"
        bench.step(3)
        assert await bench.retained() == [3, 0], "older, but the rest was not consumed"
        await bench.alter(group="billing", time_ms=2 * HOUR_MS, cap_bytes=1)
        assert await bench.retained() == [5, 0], "the cap in bytes"

    play(scenario)


def test_min_offsets_never_fall_and_outlive_a_kill_and_a_rule_taken_back() -> None:
    environment = VirtualEnvironment()

    async def first(bench: Bench) -> None:
        await bench.send(0, 5)
        await bench.alter(time_ms=HOUR_MS)
        bench.step(2)
        assert await bench.retained() == [5, 0]
        await bench.alter()
        bench.log.raise_min_offsets({(1, 0): 2})
        assert await bench.retained() == [5, 0]
        bench.log.roll()
        await bench.send(0, 1)

    async def second(bench: Bench) -> None:
        assert bench.min_offsets() == [5, 0]
        info = bench.rig.broker.topics.get("t")
        assert info is not None and info.retention == Retention()
        assert (await bench.client.send(batch_of("t", 0, b"x")))[0].base_offset == 6

    play(first, environment)
    play(second, environment)


@pytest.mark.parametrize(
    ("rules", "status"),
    [
        ({"group": "billing"}, Status.BAD_REQUEST),
        ({"cap_ms": 1}, Status.BAD_REQUEST),
        ({"group": "no spaces", "cap_ms": 1}, Status.BAD_NAME),
        ({"time_ms": -1}, Status.BAD_REQUEST),
    ],
)
def test_rules_that_make_no_sense_are_refused(rules: dict[str, int | str], status: Status) -> None:
    async def scenario(bench: Bench) -> None:
        assert await bench.alter(**rules) == status

    play(scenario)


@pytest.mark.parametrize("seed", range(8))
def test_random_rules_before_a_plain_list(seed: int) -> None:
    random = Random(seed)

    async def scenario(bench: Bench) -> None:
        stored: list[tuple[int, int, int, int]] = []  # queue, offset, time, bytes
        lowest = [0, 0]
        clock = bench.rig.environment.clock
        for _ in range(12):
            for _ in range(random.randint(0, 6)):
                queue = random.randint(0, 1)
                before = bench.log.appended
                await bench.send(queue)
                offset = bench.log.next_offset(1, queue) - 1
                size = bench.log.index.bytes_from(1, queue, offset)
                assert before < bench.log.appended
                stored.append((queue, offset, clock.wall_ms(), size))
            if random.random() < 0.3:
                bench.log.roll()
            bench.step(random.choice((0, 1, 5)))
            time_ms = random.choice((0, 2, 7)) * HOUR_MS
            size_bytes = random.choice((0, 0, 3000, 9000))
            await bench.alter(time_ms=time_ms, size_bytes=size_bytes)
            left = size_bytes
            kept: list[tuple[int, int]] = []
            for queue, offset, time, size in reversed(stored):
                left -= size
                young = not time_ms or clock.wall_ms() - time <= time_ms
                if young and (not size_bytes or left >= 0):
                    kept.append((queue, offset))
            for queue in range(2):
                mine = [offset for number, offset in kept if number == queue]
                expected = min(mine, default=bench.log.next_offset(1, queue))
                lowest[queue] = max(lowest[queue], expected)
            assert await bench.retained() == lowest

    play(scenario)


# --- what is kept -----------------------------------------------------------------------------


def test_a_longer_retention_holds_old_segments_but_not_on_a_full_disk() -> None:
    environment = VirtualEnvironment()
    environment.files.capacity_bytes = 256 << 20
    environment.files.make_folder("/other")

    async def scenario(bench: Bench) -> None:
        await bench.send(0, 3)
        bench.log.roll()
        await bench.send(0, 1, topic="other")
        bench.log.roll()
        await bench.alter(time_ms=200 * HOUR_MS)
        bench.step(100)
        assert await bench.cleaned() == [], "100 h old, but wanted"
        await bench.alter(group="billing", cap_ms=200 * HOUR_MS)
        assert await bench.cleaned() == [], "not consumed"
        file = environment.files.open("/other/file", create=True)
        file.truncate(int(environment.files.space("/")[1] * 0.9))
        file.close()
        assert await bench.cleaned() == ["forced", "forced"]

    play(scenario, environment)


@pytest.mark.parametrize("rules", [{"size_bytes": 1 << 30}, {"time_ms": 80 * HOUR_MS}])
def test_what_no_retention_wants_goes_with_its_segment(rules: dict[str, int]) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send(0, 3)
        bench.log.roll()
        await bench.alter(**rules)
        bench.step(100)
        await bench.retained()
        assert await bench.cleaned() == ["age"]
        assert bench.min_offsets() == [3, 0]

    play(scenario)


def test_what_a_group_has_consumed_holds_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.send(0, 3)
        await bench.alter(group="billing", cap_ms=1000 * HOUR_MS, size_bytes=1 << 30)
        bench.log.roll()
        bench.step(100)
        assert await bench.cleaned() == []
        await bench.commit("billing", 0, 3)
        assert await bench.retained() == [0, 0], "it is not too much"
        assert await bench.cleaned() == ["age"]

    play(scenario)


# --- what a consumer hears --------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """A broker with ten messages in queue 0 of topic `t`, of which the first five are expired."""
    with EmbeddedBroker() as broker, Producer(broker.address) as producer:
        with Admin(broker.address) as admin:
            admin.create_topic("t", queues=1)
        producer.send_many([Message("t", str(number).encode()) for number in range(10)])
        broker.call(lambda: broker.broker.log.raise_min_offsets({(1, 0): 5}))
        yield broker


@pytest.mark.parametrize(("policy", "next_offset"), [("earliest", 5), ("latest", 10)])
def test_a_consumer_goes_on_where_it_said(
    broker: EmbeddedBroker, policy: ExpiredPolicy, next_offset: int
) -> None:
    with (
        PullConsumer(broker.address, topic="t", start=2, on_expired=policy) as consumer,
        Producer(broker.address) as producer,
    ):
        with pytest.raises(Expired, match="deleted by retention") as expired:
            consumer.poll(timeout=10)
        assert expired.value.next_offset == next_offset
        producer.send(Message("t", b"10"))
        got = [message.offset for message in consumer.poll(timeout=10)]
        while got[-1] != 10:
            got += [message.offset for message in consumer.poll(timeout=10)]
        assert got == list(range(next_offset, 11))


def test_a_consumer_that_said_stop_stands_still_until_a_seek(broker: EmbeddedBroker) -> None:
    with PullConsumer(broker.address, topic="t", start=2, on_expired="stop") as consumer:
        for _ in range(3):
            with pytest.raises(Expired) as expired:
                consumer.poll(timeout=0.2)
            assert expired.value.next_offset == 5
        consumer.seek(7)
        assert [message.offset for message in consumer.poll(timeout=10)] == [7, 8, 9]


def test_the_awaitable_consumer_has_the_same_choice(broker: EmbeddedBroker) -> None:
    async def read() -> Sequence[int]:
        async with aio.PullConsumer(
            broker.address, topic="t", start=2, on_expired="latest"
        ) as consumer:
            with pytest.raises(Expired):
                await consumer.poll(timeout=10)
            return [message.offset for message in await consumer.poll(timeout=0.1)]

    assert asyncio.run(read()) == []


def test_another_choice_is_refused(broker: EmbeddedBroker) -> None:
    with pytest.raises(Refused, match="on_expired='none': choose"):
        PullConsumer(broker.address, topic="t", on_expired="none")  # type: ignore[arg-type]


# --- the commands -----------------------------------------------------------------------------


def test_the_commands_set_and_show_it(broker: EmbeddedBroker) -> None:
    runner, connect = CliRunner(), ["--connect", broker.address]

    def mq(*words: str) -> str:
        done = runner.invoke(cli, ["topic", *words, *connect])
        return done.output if done.exception is None else str(done.exception)

    assert "retention: none of its own" in mq("describe", "t")
    shown = mq("alter", "t", "--retention-time", "7d", "--retention-bytes", "1.5GiB")
    assert "retention: 7d, 1536MiB" in shown
    shown = mq("alter", "t", "--retention-group", "billing", "--retention-cap", "48h")
    assert "retention: 7d, 1536MiB, until billing has consumed it, at most 2d" in shown
    assert "retention: 1536MiB" in mq(
        "alter", "t", "--retention-time", "none", "--retention-group", "none"
    )
    described = mq("describe", "t")
    assert "holds " in described and " bytes, since 20" in described
    with Admin(broker.address) as admin:
        assert admin.describe_topic("t").info.retention == Retention(size_bytes=3 << 29)
        usage = admin.describe_topic("t", usage=True)
        assert usage.size_bytes and usage.oldest_ms
        assert admin.describe_topic("t").size_bytes is None
        broker.call(lambda: broker.broker.log.raise_min_offsets({(1, 0): 10}))
        usage = admin.describe_topic("t", usage=True)
        assert (usage.size_bytes, usage.oldest_ms) == (0, None)
    assert "holds 0 bytes, no messages" in mq("describe", "t")


@pytest.mark.parametrize("time", ["7", "7 weeks", "-1d", "0d", "d", "0.1ms"])
def test_a_time_that_is_none_is_refused_with_the_units(broker: EmbeddedBroker, time: str) -> None:
    done = CliRunner().invoke(cli, ["topic", "alter", "t", "--retention-time", time])
    assert done.exit_code == 2 and "one of ms, s, min, h, d" in done.output
