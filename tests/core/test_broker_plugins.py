"""What plugins may decide on a request's way, and that a failing one is named and survived."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from cometmq.batch import Batch, amend, decode_records, encode_messages, parse
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Delay, Job, Metric, Pass, Refuse, Replace, SessionInfo
from cometmq.protocol import (
    BrokerInfo,
    Commit,
    CommitPart,
    FetchPart,
    Heartbeat,
    Operation,
    Status,
    TopicCreate,
)
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker

Scenario = Callable[[Rig, RawClient], Awaitable[None]]


def play(scenario: Scenario, **plugins: object) -> None:
    async def run() -> None:
        async with running_broker(extra_plugins=plugins) as rig:
            await scenario(rig, await rig.client("me"))

    asyncio.run(run())


class Recorder:
    """Allows everything but what is secret, and remembers what it was asked."""

    name = "recorder"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    @hookimpl
    def authorize(self, session: SessionInfo, operation: str, resource: str) -> Refuse | None:
        assert session.client_id == "me"
        self.asked.append((operation, resource))
        if resource.endswith("secret"):
            return Refuse(f"{resource} is not for you: ask its owner")
        return None


def test_every_operation_is_authorized_by_its_resources() -> None:
    recorder = Recorder()

    async def scenario(rig: Rig, client: RawClient) -> None:
        sent = await client.send(batch_of("t", 0, b"x"), batch_of("secret", 0, b"x"))
        assert [part.status for part in sent] == [Status.OK, Status.NOT_AUTHORIZED]
        assert sent[1].detail == "secret is not for you: ask its owner"
        assert rig.broker.topics.get("secret") is None
        answer = await client.fetch(FetchPart("t", 0, 0), group="secret")
        assert answer.status == Status.NOT_AUTHORIZED
        answer = await client.ask(Operation.COMMIT, Commit("g", [CommitPart("t", 0, 1)]))
        assert answer.status == Status.OK
        await client.ask(Operation.TOPIC_CREATE, TopicCreate("secret"))
        await client.ask(Operation.BROKER_INFO, BrokerInfo())
        assert recorder.asked == [
            ("SEND", "t"),
            ("TOPIC_CREATE", "t"),
            ("SEND", "secret"),
            ("FETCH", "group:secret"),
            ("COMMIT", "group:g"),
            ("TOPIC_CREATE", "secret"),
            ("BROKER_INFO", ""),
        ]

    play(scenario, recorder=recorder)


class Brake:
    """Delays what is large, refuses what is larger."""

    name = "brake"

    @hookimpl
    def admit(self, operation: str, size_bytes: int) -> Delay | Refuse | None:
        if operation != "SEND" or size_bytes < 1000:
            return None
        if size_bytes < 5000:
            return Delay(2000)
        return Refuse("too much at once: slow down", retry_after_ms=300)


def test_a_request_may_be_delayed_or_refused_before_anything_is_done() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"x"))
        delayed = client.post_send(batch_of("t", 0, b"x" * 2000))
        refused = await client.answer(client.post_send(batch_of("t", 0, b"x" * 9000)))
        assert refused.status == Status.RETRY
        assert refused.header.retry_after_ms == 300
        await rig.environment.clock.run_for(1.9)
        assert await client.answer_if_any(delayed) is None
        await rig.environment.clock.run_for(0.2)
        (result,) = (await client.answer(delayed)).header.results
        assert (result.status, result.base_offset) == (Status.OK, 1)

    play(scenario, brake=Brake)


def test_a_delayed_request_of_a_client_that_left_is_forgotten() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await client.send(batch_of("t", 0, b"x"))
        client.post_send(batch_of("t", 0, b"x" * 2000))
        await rig.settle()
        client.close()
        await rig.settle()
        await rig.environment.clock.run_for(3.0)
        assert rig.broker.log.next_offset(1, 0) == 1

    play(scenario, brake=Brake)


class Shout:
    """Makes every body upper case."""

    name = "shout"

    @hookimpl
    def before_append(self, batch: Batch) -> Pass | Replace | None:
        records = decode_records(batch)
        if all(record[1].isupper() for record in records):
            return Pass()
        return Replace(amend(batch, records=[(r[0], r[1].upper(), *r[2:]) for r in records]))


class Censor:
    """Comes after `shout` and so sees capitals only."""

    name = "censor"
    after = ("shout",)

    @hookimpl
    def before_append(self, batch: Batch) -> Refuse | None:
        if any(record[1] == b"RUDE" for record in decode_records(batch)):
            return Refuse("mind your words")
        return None


def test_plugins_change_and_refuse_batches_in_their_order() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        results = await client.send(
            batch_of("t", 0, b"quiet", b"LOUD"),
            batch_of("t", 0, b"rude"),
            batch_of("t", 0, b"LOUD"),
        )
        assert [r.status for r in results] == [Status.OK, Status.REFUSED, Status.OK]
        assert results[1].detail == "mind your words"
        answer = await client.fetch(FetchPart("t", 0, 0))
        body, at, stored = b"".join(answer.body), 0, []
        for size in answer.header.sizes:
            stored.append(parse(body[at : at + size]))
            at += size
        assert [[r[1] for r in decode_records(batch)] for batch in stored] == [
            [b"QUIET", b"LOUD"],
            [b"LOUD"],
        ]
        assert [batch.flags for batch in stored] == [2, 0], "an amended batch says so"

    play(scenario, shout=Shout, censor=Censor)


class Diverter:
    """Gives back what is no batch for the same queue."""

    name = "diverter"

    @hookimpl
    def before_append(self, batch: Batch) -> Replace:
        return Replace(encode_messages("elsewhere", 0, [(1, b"x", "", (), {})]))


def test_a_replacement_for_another_queue_is_refused() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        (result,) = await client.send(batch_of("t", 0, b"x"))
        assert result.status == Status.INTERNAL and "plugin diverter returned" in result.detail
        assert "make it with cometmq.batch.amend" in result.detail

    play(scenario, diverter=Diverter)


class Broken:
    """Raises wherever it is asked."""

    name = "broken"

    @hookimpl
    def before_append(self, batch: Batch) -> None:
        if batch.queue_claim == 1:
            raise ValueError("on purpose")

    @hookimpl
    def readable_advanced(self, queues: Sequence[tuple[int, int]]) -> None:
        raise ValueError("on purpose")


def test_a_plugin_that_fails_is_named_and_nobody_else_notices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        results = await client.send(batch_of("t", 1, b"x"), batch_of("t", 0, b"x"))
        assert [r.status for r in results] == [Status.INTERNAL, Status.OK]
        assert "broken" in results[0].detail
        assert "before_append" in results[0].detail
        answer = await client.fetch(FetchPart("t", 0, 0))
        assert answer.header.results[0].next_offset == 1
        (row,) = [row for row in rig.broker.info().plugins if row["name"] == "broken"]
        assert row["errors"] == "2"
        assert row["calls"] == "before_append 2, readable_advanced 1"

    play(scenario, broken=Broken)
    assert "readable_advanced" in caplog.text


class Companion:
    """Contributes a job and a number, and follows the broker's life."""

    name = "companion"

    def __init__(self) -> None:
        self.events: list[str] = []

    @hookimpl
    def jobs(self) -> Sequence[Job]:
        return [Job("companion-job", lambda: self.events.append("job"), interval_s=5.0)]

    @hookimpl
    def metrics(self) -> Sequence[Metric]:
        return [Metric("attended", "How often.", "counter", 3, {"whom": "all"})]

    @hookimpl
    async def started(self, broker: Any) -> None:
        self.events.append(f"started {bool(broker.addresses)}")

    @hookimpl
    async def stopping(self, broker: Any) -> None:
        self.events.append(f"stopping {bool(broker.addresses)}")


def test_contributions_and_life_cycle() -> None:
    companion = Companion()

    async def scenario(rig: Rig, client: RawClient) -> None:
        await rig.environment.clock.run_for(11.0)
        answer = await client.ask(Operation.BROKER_INFO, BrokerInfo())
        metrics = answer.header.metrics
        assert metrics['attended{whom="all"}'] == 3
        assert metrics['job_runs{job="companion-job"}'] == 2
        assert metrics["loop_lag_p999_ms"] >= 0
        assert (await client.ask(Operation.HEARTBEAT, Heartbeat())).status == Status.OK

    play(scenario, companion=companion)
    assert companion.events == ["started True", "job", "job", "stopping True"]
