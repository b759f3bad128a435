"""Plugins whose answers are of the right type and hold what can't be meant, or can't be told.

A reply that no client can decode costs its connection, and one that can't be encoded costs
everybody in its drain; so what is wrong is found where it is handed over, and its plugin named.
"""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.guests.test_bad_plugins import bad, blamed

from cometmq.errors import PluginFailure
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Answer, Delay, Metric, Refuse, Replace
from cometmq.protocol import (
    BrokerInfo,
    GroupHeartbeat,
    Heartbeat,
    Hello,
    Operation,
    Status,
    Subscription,
)
from cometmq.testing.raw_client import Rig, batch_of, running_broker

NAN = float("nan")
LONE = "\ud800"
"""Half of a character: a text that has no bytes."""


@pytest.fixture(autouse=True)
def tracebacks_have_bytes() -> Iterator[None]:
    """Tests that run beside others report what was logged to another process."""
    make = logging.getLogRecordFactory()

    def made(*given: Any, **named: Any) -> logging.LogRecord:
        record = make(*given, **named)
        if record.exc_info:
            lines = "".join(traceback.format_exception(*record.exc_info))
            record.exc_text = lines.encode("utf-8", "backslashreplace").decode()
        return record

    logging.setLogRecordFactory(made)
    yield
    logging.setLogRecordFactory(make)


REFUSALS: list[Any] = [
    Refuse(7),  # type: ignore[arg-type]
    Refuse("x", code="OK"),
    Refuse("x", code=7),  # type: ignore[arg-type]
    Refuse("x", code=[]),  # type: ignore[arg-type]
    Refuse("x", retry_after_ms="a"),  # type: ignore[arg-type]
    Refuse("x", retry_after_ms=-1),
    Refuse("x", retry_after_ms=10**30),
]
DELAYS: list[Any] = [Delay("5"), Delay(None), Delay(NAN), Delay(-5), Delay(10**30)]  # type: ignore[arg-type]
REPLACED: list[Any] = [
    *[Replace("x"), Replace(None), Replace(b""), Replace(bytes(1000)), Replace(b"x" * (1 << 20))],
    *[Answer(-1, 0, 1, 1, 1), Answer(0, "x", 1, 1, 1), Answer(0, 10**30, 1, 1, 1)],  # type: ignore[arg-type]
]
METRICS: list[Any] = [
    Metric("a", "b", "gauge", "x"),  # type: ignore[arg-type]
    Metric(7, "b", "gauge", 1),  # type: ignore[arg-type]
    Metric("a", "b", "gauge", NAN),
    Metric("a", "b", "gauge", 10**400),
    Metric("a", "b", "neither", 1),  # type: ignore[arg-type]
    Metric("a", "b", "gauge", 1, {"x": 7}),  # type: ignore[dict-item]
    Metric("a", "b", "gauge", 1, None),  # type: ignore[arg-type]
    Metric(LONE, "b", "gauge", 1),
]
ON_THE_WAY = [
    *[("authorize", each) for each in REFUSALS],
    *[("admit", each) for each in [*REFUSALS, *DELAYS]],
    *[("before_append", each) for each in [*REFUSALS, *REPLACED]],
]


@pytest.mark.parametrize(("hook", "answer"), ON_THE_WAY, ids=lambda each: str(each)[:50])
def test_what_can_not_be_meant_costs_its_request_and_is_named(hook: str, answer: Any) -> None:
    said: list[Any] = []
    plugin = bad(hook, lambda: said.pop() if said else None)

    async def scenario() -> None:
        async with running_broker(extra_plugins={"bad": plugin}) as rig:
            client, other = await rig.client(), await rig.client()
            said.append(answer)
            number = client.post_send(batch_of("t", 0, b"x"))
            beside = other.post(Operation.HEARTBEAT, Heartbeat())  # in the same drain
            reply = await client.answer(number)
            told = reply.header if reply.status else reply.header.results[0]
            assert (reply.status or told.status) == Status.INTERNAL
            assert "plugin bad returned" in told.detail and blamed(told.detail, hook)
            assert (await other.answer(beside)).status == Status.OK
            assert rig.broker.log.next_offset(1, 0) == 0
            assert rig.broker.info().metrics[f'plugin_errors{{hook="{hook}",plugin="bad"}}'] == 1

    asyncio.run(scenario())


def test_who_refuses_a_hello_wrongly_lets_nobody_in_and_is_named() -> None:
    async def scenario() -> None:
        plugin = bad("authenticate", lambda: REFUSALS[0])
        async with running_broker(extra_plugins={"bad": plugin}) as rig:
            reply = await rig.stranger().ask(Operation.HELLO, Hello(1, 1, "x"))
            assert reply.status == Status.INTERNAL
            assert blamed(reply.header.detail, "authenticate")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("hook", "answer"),
    [
        *[("metrics", [each]) for each in METRICS],
        *[("status", each) for each in ({LONE: "x"}, {"a": LONE}, {"a": 7})],
    ],
    ids=lambda each: ascii(each)[:60],
)
def test_a_number_that_is_none_is_left_out_and_named(
    hook: str, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running_broker(extra_plugins={"bad": bad(hook, lambda: answer)}) as rig:
            client = await rig.client()
            reply = await client.ask(Operation.BROKER_INFO, BrokerInfo())
            assert reply.status == Status.OK
            assert "a" not in reply.header.metrics and "a" not in reply.header.status
            json.dumps(reply.header.metrics, allow_nan=False)
            assert rig.broker.info().metrics[f'plugin_errors{{hook="{hook}",plugin="bad"}}'] >= 1

    asyncio.run(scenario())
    assert blamed(caplog.text, hook)


def test_a_feature_that_can_not_be_told_ends_the_start() -> None:
    async def start() -> None:
        async with running_broker(extra_plugins={"bad": bad("features", lambda: [LONE])}):
            raise AssertionError("it started, and nobody's hello would be answered")

    with pytest.raises(PluginFailure, match="plugin bad returned"):
        asyncio.run(start())


class Mute(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("nor this")


@pytest.mark.parametrize("hook", ["authorize", "readable_advanced", "metrics", "assign"])
@pytest.mark.parametrize(
    "error", [Mute(), ValueError(LONE), ValueError("x" * 10_000_000)], ids=type
)
def test_an_error_may_say_what_it_likes(
    hook: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    class Sharer:
        name = "bad"

        @hookimpl
        def rebalance_strategies(self) -> list[Any]:
            return [SimpleNamespace(name="bad", assign=fail)]

    async def scenario() -> None:
        plugin = Sharer if hook == "assign" else bad(hook, fail)
        async with running_broker(extra_plugins={"bad": plugin}) as rig:
            client = await rig.client()
            await client.answer(client.post_send(batch_of("t", 0, b"x")))
            beat = GroupHeartbeat("g", "m", [Subscription("t")])
            beat.strategy = "bad" if hook == "assign" else ""
            advice = await client.ask(Operation.GROUP_HEARTBEAT, beat)
            assert advice.status == (Status.INTERNAL if hook == "authorize" else Status.OK)
            if hook == "assign":
                (warning,) = advice.header.warnings
                assert "plugin `bad`" in warning and len(warning) < 5000
            reply = await client.ask(Operation.BROKER_INFO, BrokerInfo())
            assert reply.status == advice.status
            assert (await client.ask(Operation.HEARTBEAT, Heartbeat())).status == Status.OK

    asyncio.run(scenario())
    assert "plugin `bad`" in caplog.text and "--plugins -bad" in caplog.text


@pytest.mark.parametrize("hook", ["authorize", "admit", "before_append", "authenticate"])
@pytest.mark.parametrize("how", ["raises", "refuses"])
def test_words_that_have_no_bytes_are_told_all_the_same(hook: str, how: str) -> None:
    def behave() -> Refuse:
        if how == "raises":
            raise ValueError(LONE)
        return Refuse(f"no {LONE}")

    async def ask(rig: Rig) -> str:
        if hook == "authenticate":
            hello = await rig.stranger().ask(Operation.HELLO, Hello(1, 1, "x"))
            assert hello.status != Status.OK
            return str(hello.header.detail)
        client = await rig.client()
        reply = await client.answer(client.post_send(batch_of("t", 0, b"x")))
        told = reply.header if reply.status else reply.header.results[0]
        assert (reply.status or told.status) != Status.OK
        return str(told.detail)

    async def scenario() -> None:
        async with running_broker(extra_plugins={"bad": bad(hook, behave)}) as rig:
            assert "\\ud800" in await ask(rig)

    asyncio.run(scenario())
