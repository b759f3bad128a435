"""What plugins bring besides hooks: flush policies and strategies that raise, lie or block.

Their plugin is named and counted, and nobody waits for ever.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from cometmq import Admin, Message, Producer
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Level, Syncer
from cometmq.protocol import (
    Fetch,
    FetchPart,
    GroupAdvice,
    GroupHeartbeat,
    Operation,
    Status,
    Subscription,
)
from cometmq.testing.embedded import EmbeddedBroker
from cometmq.testing.raw_client import RawClient, batch_of, running_broker


class BadPolicy:
    """Fails in one of its methods, once it is told to."""

    default_level: Level = "disk"
    interval_ms = 100

    def __init__(self, method: str) -> None:
        self.failing = ""
        self._method = method

    def start(self, syncer: Syncer) -> None:
        self._syncer = syncer

    def appended(self, awaited: bool, alone: bool) -> None:
        self._do("appended", awaited)

    def demand(self) -> None:
        self._do("demand", True)

    async def stop(self) -> None:
        await self._syncer.sync()

    def _do(self, method: str, wanted: bool) -> None:
        if self.failing == method:
            raise ValueError("on purpose")
        if wanted and self.failing != "appended":
            self._syncer.sync_blocking()


class Flusher:
    name = "flusher"

    def __init__(self, policy: BadPolicy) -> None:
        self._policy = policy

    @hookimpl
    def flush_policy(self) -> BadPolicy:
        return self._policy


@pytest.mark.parametrize("method", ["appended", "demand"])
def test_a_flush_policy_that_raises_is_named_and_all_is_synced_without_it(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = BadPolicy(method)

    async def scenario() -> None:
        async with running_broker(extra_plugins={"flusher": Flusher(policy)}) as rig:
            client = await rig.client()
            await client.send(batch_of("t", 0, b"before"))
            policy.failing = method
            # Read by nobody yet: at level `memory` no sync is due until somebody waits for it.
            parts = [FetchPart("t", 0, 1)]
            fetch = client.post(Operation.FETCH, Fetch(parts, wait_ms=60_000))
            for number in range(3):
                level = "memory" if method == "demand" else "disk"
                (result,) = await client.send(batch_of("t", 0, b"%d" % number), level=level)
                assert result.status == Status.OK
            assert (await client.answer(fetch)).header.results[0].next_offset > 1
            metrics = rig.broker.info().metrics
            assert metrics['plugin_errors{hook="flush_policy",plugin="flusher"}'] >= 1
            policy.failing = ""

    asyncio.run(scenario())
    assert "synced without its flush policy: plugin `flusher`" in caplog.text
    assert "ValueError: on purpose" in caplog.text and "--plugins -flusher" in caplog.text
    assert caplog.text.count("synced without") == 1, "it is told once, and counted"


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_flush_policy_that_fails_at_its_end_leaves_a_log_that_is_closed(
    error: type[BaseException], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Ends(BadPolicy):
        async def stop(self) -> None:
            raise error("on purpose")

    for _ in range(2):  # the folder is free again
        plugins = {"flusher": Flusher(Ends(""))}
        with EmbeddedBroker(data=str(tmp_path), extra_plugins=plugins) as broker:
            assert broker.broker.report.cuts == []
            with Producer(broker.address) as producer:
                producer.send(Message("t", b"x"), level="memory")
    with EmbeddedBroker(data=str(tmp_path)) as broker, Admin(broker.address) as admin:
        assert sum(part.max_offset for part in admin.offsets("t").values()) == 2
    assert caplog.text.count("synced without its flush policy: plugin `flusher`") == 2
    assert f"{error.__name__}: on purpose" in caplog.text


class BadStrategy:
    """Answers what the test says."""

    name = "bad"

    def __init__(self, answer: Callable[[Any, Any], Any]) -> None:
        self._answer = answer

    def assign(self, members: Any, queues: Any) -> Any:
        return self._answer(members, queues)


class Sharer:
    name = "sharer"

    def __init__(self, answer: Callable[[Any, Any], Any]) -> None:
        self._strategy = BadStrategy(answer)

    @hookimpl
    def rebalance_strategies(self) -> list[Any]:
        return [self._strategy]


def fails(members: Any, queues: Any) -> None:
    raise ValueError("on purpose")


WRONG: dict[str, Callable[[Any, Any], Any]] = {
    "raises": fails,
    "None": lambda members, queues: None,
    "a list": lambda members, queues: [1, 2],
    "strangers": lambda members, queues: {("other", 0): members[0].name},
    "no member": lambda members, queues: dict.fromkeys(queues),
    "no names": lambda members, queues: {queue: [members[0].name] for queue in queues},
    "plain tuples": lambda members, queues: {("t", each.queue): members[0].name for each in queues},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_strategy_that_fails_is_named_to_the_members_too(
    wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        plugins = {"sharer": Sharer(WRONG[wrong])}
        async with running_broker(extra_plugins=plugins) as rig:
            client = await rig.client()
            await client.send(batch_of("t", 0, b"x"))
            beat = GroupHeartbeat("g", "m", [Subscription("t")], strategy="bad")
            advice = (await client.ask(Operation.GROUP_HEARTBEAT, beat)).header
            assert isinstance(advice, GroupAdvice) and advice.queues == []
            (warning,) = advice.warnings
            assert "strategy bad fails" in warning and "plugin `sharer`" in warning
            await client.ask(Operation.GROUP_HEARTBEAT, structs.replace(beat, version=2))
            metrics = rig.broker.info().metrics
            assert metrics['plugin_errors{hook="rebalance_strategies",plugin="sharer"}'] >= 2

    asyncio.run(scenario())
    assert "--plugins -sharer" in caplog.text
    assert sum(bool(record.exc_info) for record in caplog.records) == 1


def test_what_blocks_deep_in_a_library_is_named_by_where_the_plugin_was_entered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = threading.Event()

    class Hears(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "the event loop is blocked" in record.getMessage():
                told.set()

    def blocks(members: Any, queues: Any) -> dict[Any, str]:
        assert told.wait(30)
        return {queue: members[0].name for queue in queues}

    handler = Hears()
    logging.getLogger("cometmq").addHandler(handler)
    try:
        with EmbeddedBroker(extra_plugins={"sharer": Sharer(blocks)}) as broker:
            broker.await_(lambda: join(broker.address))
    finally:
        logging.getLogger("cometmq").removeHandler(handler)
    assert f"the event loop is blocked: assign ({__file__}, line" in caplog.text
    assert ", in wait (" in caplog.text


async def join(address: str) -> None:
    client = RawClient(address)
    await client.hello()
    await client.send(batch_of("t", 0, b"x"))
    beat = GroupHeartbeat("g", "m", [Subscription("t")], strategy="bad")
    assert (await client.ask(Operation.GROUP_HEARTBEAT, beat)).status == Status.OK
    client.close()
