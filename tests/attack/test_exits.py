"""Plugins that want the whole process to end: nothing of theirs ends the loop of a broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cometmq import Admin, Consumer, Message, Producer
from cometmq.errors import PluginFailure
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Job
from cometmq.protocol import Heartbeat, Operation, Status
from cometmq.testing.embedded import EmbeddedBroker
from cometmq.testing.raw_client import batch_of, running_broker
from cometmq.testing.waiting import until

EXITS = [SystemExit, KeyboardInterrupt]


class Leaves:
    """Raises in one place, once it is told to."""

    name = "leaves"

    def __init__(self, place: str, error: type[BaseException]) -> None:
        self.armed = False
        self._place, self._error = place, error

    def leave(self, place: str) -> None:
        if self.armed and place == self._place:
            raise self._error("on purpose")

    @hookimpl
    def rebalance_strategies(self) -> list[Any]:
        return [self]

    @hookimpl
    def jobs(self) -> list[Job]:
        return [Job("leaves", lambda: self.leave("job"), interval_s=0.5)]

    def assign(self, members: Any, queues: Any) -> Any:
        self.leave("assign")
        return {queue: members[0].name for queue in queues}

    @hookimpl
    def authorize(self) -> None:
        self.leave("authorize")

    @hookimpl
    def before_append(self) -> None:
        self.leave("before_append")

    @hookimpl
    def readable_advanced(self) -> None:
        self.leave("readable_advanced")

    @hookimpl
    def metrics(self) -> None:
        self.leave("metrics")


@pytest.mark.parametrize("error", EXITS)
def test_a_strategy_that_exits_is_a_strategy_that_fails(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Leaves("assign", error)
    plugin.armed = True
    with EmbeddedBroker(extra_plugins={"leaves": plugin}) as broker:
        with Producer(broker.address) as producer:
            producer.send(Message("t", b"before"))
        seen: list[bytes] = []
        with Consumer(broker.address, group="g", strategy="leaves") as consumer:
            consumer.subscribe("t", handler=lambda message: seen.append(message.body))
            consumer.start()
            assert until(lambda: "strategy leaves fails" in caplog.text)
            plugin.armed = False
            with Admin(broker.address) as admin:
                admin.alter_topic("t", queues=8)
            assert until(lambda: seen == [b"before"])
    assert error.__name__ in caplog.text and "--plugins -leaves" in caplog.text


@pytest.mark.parametrize("error", EXITS)
@pytest.mark.parametrize("hook", ["authorize", "before_append", "readable_advanced", "metrics"])
def test_a_hook_that_exits_is_a_hook_that_fails(
    hook: str, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Leaves(hook, error)

    async def scenario() -> None:
        async with running_broker(extra_plugins={"leaves": plugin}) as rig:
            client = await rig.client()
            await client.send(batch_of("t", 0, b"x"))
            plugin.armed = True
            answer = await client.answer(client.post_send(batch_of("t", 0, b"y")))
            told = answer.header if answer.status else answer.header.results[0]
            fails = hook in ("authorize", "before_append")
            assert (answer.status or told.status) == (Status.INTERNAL if fails else Status.OK)
            metrics = rig.broker.info().metrics
            plugin.armed = False
            key = f'plugin_errors{{hook="{hook}",plugin="leaves"}}'
            assert rig.broker.info().metrics[key] >= 1 or metrics[key] >= 1
            assert (await client.ask(Operation.HEARTBEAT, Heartbeat())).status == Status.OK

    asyncio.run(scenario())
    assert f"`{hook}`" in caplog.text and error.__name__ in caplog.text


@pytest.mark.parametrize("error", EXITS)
def test_a_job_that_exits_is_a_job_that_fails(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Leaves("job", error)

    async def scenario() -> None:
        async with running_broker(extra_plugins={"leaves": plugin}) as rig:
            plugin.armed = True
            await rig.environment.clock.run_for(1.2)
            assert rig.broker.info().metrics['job_errors{job="leaves"}'] >= 1

    asyncio.run(scenario())
    assert "job leaves failed" in caplog.text


def test_what_ends_the_loop_of_an_embedded_broker_is_told_by_its_stop() -> None:
    broker = EmbeddedBroker().start()

    def end() -> None:
        raise SystemExit("on purpose")

    assert broker._loop is not None and broker._thread is not None
    broker._loop.call_soon_threadsafe(end)
    broker._thread.join(20)
    with pytest.raises(RuntimeError, match=r"loop .* ended by SystemExit: on purpose") as told:
        broker.call(lambda: None)
    assert isinstance(told.value.__cause__, SystemExit)
    with pytest.raises(RuntimeError, match="ended by SystemExit"):
        broker.stop()
    broker.start()
    broker.stop()


def test_an_exit_at_the_start_is_a_start_that_fails() -> None:
    class Leaver:
        name = "leaver"

        @hookimpl
        def started(self) -> None:
            raise SystemExit("on purpose")

    with pytest.raises(PluginFailure, match=r"`started`.*SystemExit"):
        EmbeddedBroker(extra_plugins={"leaver": Leaver}).start()
