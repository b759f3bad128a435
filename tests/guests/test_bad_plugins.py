"""Plugins that raise, answer nonsense, block, or call back into the broker: in every hook.

What a hook may do to the broker is its contract: at the start it ends the start; on a request's
way it costs that request; asked for numbers or told of something, it is left out. Always it is
named, with the next step, and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from cometmq import hookspecs
from cometmq.errors import PluginFailure
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import DiskPressure
from cometmq.plugins.verify import spec_arguments
from cometmq.protocol import BrokerInfo, Fetch, FetchPart, Heartbeat, Hello, Operation, Send, Status
from cometmq.testing.embedded import EmbeddedBroker
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker
from cometmq.testing.zmtp import ZmtpPeer

ENDS_THE_START = {
    *hookspecs.SLOTS,
    *("state_views", "transports", "jobs", "operations", "rebalance_strategies", "filters"),
    *("features", "started"),
}
COSTS_ITS_REQUEST = {"authenticate", "authorize", "admit", "before_append", "fetch_wait"}
LEFT_OUT = {"metrics", "status", "readable_advanced", "disk_pressure"}
TOLD_AT_THE_END = {"stopping"}
NO_ANSWER = {"started", "stopping", "disk_pressure", "readable_advanced"}
"""Whatever these return is nobody's business."""

Behaviour = Callable[[], object]


def bad(hook: str, behave: Behaviour) -> type:
    """A plugin with one hook that does nothing but `behave`."""
    scope: dict[str, Any] = {"behave": behave}
    arguments = "".join(f", {name}" for name in spec_arguments()[hook])
    exec(f"def {hook}(self{arguments}): return behave()", scope)
    return type("Bad", (), {"name": "bad", hook: hookimpl(scope[hook])})


def raises() -> None:
    raise ValueError("on purpose")


async def use_all(rig: Rig) -> list[str]:
    """Make the broker call every hook it has for a client; what went wrong, as clients hear it."""
    client, wrong = rig.stranger(), []

    async def ask(operation: int, header: Any) -> None:
        answer = await client.ask(operation, header)
        parts = getattr(answer.header, "results", [])
        for status, told in [(answer.status, answer.header), *((p.status, p) for p in parts)]:
            if status == Status.INTERNAL:
                wrong.append(told.detail)

    await ask(Operation.HELLO, Hello(1, 1, "me"))
    sent = await client.answer(client.post_send(batch_of("t", 0, b"x")))
    for part in getattr(sent.header, "results", [sent.header]):
        if getattr(part, "status", sent.status) == Status.INTERNAL:
            wrong.append(part.detail)
    await ask(Operation.FETCH, Fetch([FetchPart("t", 0, 0)]))
    await ask(Operation.FETCH, Fetch([FetchPart("t", 0, 1)]))
    await ask(Operation.BROKER_INFO, BrokerInfo())
    rig.broker.composition.collect_sound("disk_pressure", pressure=DiskPressure("space", 0.8, 1, 1))
    return wrong


def play(hook: str, behave: Behaviour) -> tuple[list[str], dict[str, float]]:
    """A broker's life with such a plugin: the errors that clients heard, and its metrics."""

    async def run() -> tuple[list[str], dict[str, float]]:
        # Without long polling nobody is asked before the bad one whether a fetch is to be kept.
        plugins = ["-longpoll"] if hook == "fetch_wait" else []
        async with running_broker(plugins=plugins, extra_plugins={"bad": bad(hook, behave)}) as rig:
            wrong = await use_all(rig)
            return wrong, rig.broker.info().metrics

    return asyncio.run(run())


def blamed(text: str, hook: str) -> bool:
    """Whether it says who, where and what to do."""
    return "bad" in text and f"`{hook}`" in text and "--plugins -bad" in text


def test_every_hook_has_its_contract_here() -> None:
    known = ENDS_THE_START | COSTS_ITS_REQUEST | LEFT_OUT | TOLD_AT_THE_END
    assert known == set(spec_arguments())


@pytest.mark.parametrize("hook", sorted(spec_arguments()))
def test_one_that_raises_is_named_and_does_no_more_than_its_contract_says(
    hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    if hook in ENDS_THE_START:
        with pytest.raises(PluginFailure) as failure:
            play(hook, raises)
        assert blamed(str(failure.value), hook)
        assert "ValueError: on purpose" in str(failure.value)
    elif hook in TOLD_AT_THE_END:
        with pytest.raises(ExceptionGroup) as group:
            play(hook, raises)
        (inner,) = group.value.exceptions
        assert isinstance(inner, ExceptionGroup)
        assert blamed(str(inner.exceptions[0]), hook)
    else:
        wrong, metrics = play(hook, raises)
        assert bool(wrong) == (hook in COSTS_ITS_REQUEST)
        assert all(blamed(detail, hook) for detail in wrong)
        assert blamed(caplog.text, hook)
        assert metrics[f'plugin_errors{{hook="{hook}",plugin="bad"}}'] >= 1


NONSENSE = [7, "no", [7], ["x", None], {"a": 1}, True, object, 0.5]


@pytest.mark.parametrize("hook", sorted(set(spec_arguments()) - NO_ANSWER))
def test_one_that_answers_nonsense_is_named_and_believed_in_nothing(
    hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    allowed = {"fetch_wait": bool, "authenticate": str}.get(hook)
    for answer in [it for it in NONSENSE if type(it) is not allowed]:
        caplog.clear()
        if hook in ENDS_THE_START:
            with pytest.raises(PluginFailure) as failure:
                play(hook, lambda: answer)  # noqa: B023 - called at once
            assert blamed(str(failure.value), hook), answer
        else:
            wrong, metrics = play(hook, lambda: answer)  # noqa: B023 - called at once
            assert bool(wrong) == (hook in COSTS_ITS_REQUEST), answer
            assert blamed("".join(wrong) or caplog.text, hook)
            assert metrics[f'plugin_errors{{hook="{hook}",plugin="bad"}}'] >= 1, answer


@pytest.mark.parametrize("hook", sorted(NO_ANSWER))
def test_what_nobody_asked_for_is_not_looked_at(hook: str) -> None:
    for answer in NONSENSE:
        assert play(hook, lambda: answer)[0] == []  # noqa: B023 - called at once


async def call_back(rig: Rig, client: RawClient) -> None:
    """Everything goes on as before."""
    (result,) = await client.send(batch_of("t", 0, b"x"))
    assert result.status == Status.OK
    answer = await client.fetch(FetchPart("t", 0, 0))
    assert answer.header.results[0].next_offset == 1
    assert (await client.ask(Operation.BROKER_INFO, BrokerInfo())).status == Status.OK


def into(broker: Any, how: str) -> None:
    """Do what a plugin has no business to do inside a hook."""
    {
        "info": broker.info,
        "write": broker.log.write,
        "roll": broker.log.roll,
        "fire": broker.park.fire_all,
    }[how]()


@pytest.mark.parametrize("how", ["info", "write", "roll", "fire"])
@pytest.mark.parametrize(
    "hook",
    ["authorize", "admit", "before_append", "readable_advanced", "fetch_wait", "metrics", "status"],
)
def test_one_that_calls_back_into_the_broker_breaks_nothing(hook: str, how: str) -> None:
    brokers: list[Any] = []
    calls: list[str] = []

    def behave() -> None:
        calls.append(hook)
        for broker in brokers:
            into(broker, how)

    plugin = bad(hook, behave)
    plugins = ["-longpoll"] if hook == "fetch_wait" else []

    async def run() -> None:
        async with running_broker(plugins=plugins, extra_plugins={"bad": plugin}) as rig:
            brokers.append(rig.broker)
            client = await rig.client()
            await call_back(rig, client)
            await client.fetch(FetchPart("t", 0, 1))
            brokers.clear()

    asyncio.run(run())
    assert calls


BLOCKED_S = 1.4
"""Longer than the session timeout and than the watchdog's patience."""
SETTINGS = {"broker.session_timeout_ms": 1000}
BLOCKING = ["authorize", "before_append", "readable_advanced", "metrics", "authenticate"]


@pytest.mark.parametrize("hook", BLOCKING)
def test_one_that_blocks_is_named_while_it_does_and_sessions_outlive_it(
    hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    block(hook, BLOCKED_S, caplog)


@pytest.mark.long
@pytest.mark.parametrize("hook", BLOCKING)
def test_ten_seconds_of_it(hook: str, caplog: pytest.LogCaptureFixture) -> None:
    block(hook, 10.0, caplog)


def block(hook: str, seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    armed: list[float] = []
    told = f"the event loop is blocked: hook {hook} of plugin bad"

    def behave() -> object:
        if armed:
            time.sleep(armed.pop())
            until_s = time.monotonic() + 30.0  # on a full machine the watchdog looks late
            while told not in caplog.text and time.monotonic() < until_s:
                time.sleep(0.05)
        return "somebody" if hook == "authenticate" else None

    with (
        caplog.at_level(logging.WARNING),
        EmbeddedBroker(
            listen="tcp://127.0.0.1:0",
            settings=SETTINGS,
            extra_plugins={"bad": bad(hook, behave)},
        ) as broker,
        ZmtpPeer(broker.address, 30.0).shake_hands().say_hello() as witness,
    ):
        armed.append(seconds)
        with ZmtpPeer(broker.address, 30.0).shake_hands().say_hello() as other:
            assert other.ask(Operation.BROKER_INFO, BrokerInfo())[0] == Status.OK
            batch = batch_of("t", 0, b"x")
            assert other.ask(Operation.SEND, Send([len(batch)], [0]), batch)[0] == Status.OK
            assert other.ask(Operation.HEARTBEAT, Heartbeat())[0] == Status.OK
        assert armed == [], "nothing called the hook"
        time.sleep(0.4)  # a sweep
        assert witness.ask(Operation.HEARTBEAT, Heartbeat())[0] == Status.OK
    assert told in caplog.text
