"""Plugins that answer hooks with nonsense: their name is told, and nothing slips through."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from cometmq.batch import Batch
from cometmq.group_interfaces import Filter
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Delay, PluginOperation, Refuse
from cometmq.protocol import FetchPart, Heartbeat, Hello, Operation, Status
from cometmq.testing.raw_client import RawClient, batch_of, running_broker


class Nonsense:
    """Implements one hook, by what the test says."""

    name = "nonsense"


def with_hook(hook: str, arguments: str, answer: object) -> type[Nonsense]:
    scope: dict[str, Any] = {"answer": answer}
    exec(f"def {hook}(self, {arguments}): return answer", scope)
    return type("Nonsense", (Nonsense,), {hook: hookimpl(scope[hook])})


@pytest.mark.parametrize("answer", [True, False, "no", Refuse, 0], ids=repr)
@pytest.mark.parametrize(
    ("hook", "arguments"),
    [
        ("authorize", "session, operation, resource"),
        ("admit", "session, operation, size_bytes"),
        ("before_append", "session, batch"),
    ],
)
def test_an_answer_of_another_type_lets_nothing_pass(
    hook: str, arguments: str, answer: object
) -> None:
    plugin = with_hook(hook, arguments, answer)

    async def scenario() -> None:
        async with running_broker(extra_plugins={"nonsense": plugin}) as rig:
            client = await rig.client()
            reply = await client.answer(client.post_send(batch_of("t", 0, b"x")))
            told = reply.header if reply.status else reply.header.results[0]
            status = reply.status or told.status
            assert status == Status.INTERNAL
            assert f"plugin nonsense returned {answer!r}"[:30] in told.detail
            assert f"`{hook}`" in told.detail and "--plugins -nonsense" in told.detail
            assert rig.broker.log.next_offset(1, 0) == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("answer", [True, 7, Refuse], ids=repr)
def test_a_principal_that_is_none_lets_nobody_in(answer: object) -> None:
    plugin = with_hook("authenticate", "client_id, credentials, peer_name", answer)

    async def scenario() -> None:
        async with running_broker(extra_plugins={"nonsense": plugin}) as rig:
            client = rig.stranger()
            reply = await client.ask(Operation.HELLO, Hello(1, 1, "x"))
            assert reply.status == Status.INTERNAL
            assert "a principal (str)" in reply.header.detail
            assert (await client.ask(Operation.HEARTBEAT, Heartbeat())).status == (
                Status.HELLO_REQUIRED
            )

    asyncio.run(scenario())


class Brake:
    """Delays every send."""

    name = "brake"

    @hookimpl
    def admit(self, operation: str) -> Delay | None:
        return Delay(2000) if operation == "SEND" else None


def test_what_a_plugin_delays_is_bounded_for_all_connections_together() -> None:
    async def scenario() -> None:
        size_bytes = 100_000
        sizes = {"batch": size_bytes, "frame": 2 * size_bytes, "credit": 500_000, "held": 950_000}
        limits = {f"limits.{name}_bytes": size for name, size in sizes.items()}
        async with running_broker(limits, extra_plugins={"brake": Brake}) as rig:
            batch = batch_of("t", 0, bytes(90_000))
            for _ in range(2):
                posted: list[tuple[RawClient, int]] = []
                for _ in range(4):
                    client = await rig.client()
                    posted += [(client, client.post_send(batch)) for _ in range(4)]
                    if len(posted) == 4:
                        client.close()  # what is delayed of it is still held
                await rig.environment.clock.run_for(0.1)
                early = [await one.answer_if_any(number) for one, number in posted[4:]]
                refused = [answer for answer in early if answer is not None]
                assert [answer.status for answer in refused] == [Status.RETRY] * 6
                assert all("limits.held_bytes" in answer.header.detail for answer in refused)
                await rig.environment.clock.run_for(2)
                for (client, number), answer in zip(posted[4:], early, strict=True):
                    if answer is None:
                        (result,) = (await client.answer(number)).header.results
                        assert result.status == Status.OK

    asyncio.run(scenario())


class Contributor:
    """Brings a filter and an operation that do what the test says."""

    name = "contributor"

    def __init__(self, parsed: object, answer: object) -> None:
        self._parsed, self._answer = parsed, answer

    @hookimpl
    def filters(self) -> list[Filter]:
        return [self]

    def parse(self, expression: str) -> Any:
        return _given(self._parsed)

    @hookimpl
    def operations(self) -> list[PluginOperation]:
        return [
            PluginOperation(1500, "AT_ONCE", Heartbeat, lambda session, header: self._reply()),
            PluginOperation(1501, "LATER", Heartbeat, lambda session, header: self._later()),
        ]

    def _reply(self) -> object:
        return _given(self._answer)

    async def _later(self) -> object:
        return self._reply()


class Selecting:
    """A selector that gives this answer."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def select(self, batch: Batch) -> Any:
        return _given(self._answer)


def _given(answer: object) -> object:
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.mark.parametrize("answer", [ValueError("oh"), True, [7], [1, 1], "ab", [None]], ids=repr)
def test_what_a_filter_says_wrongly_is_answered_with_its_plugins_name(answer: object) -> None:
    async def scenario() -> None:
        for parsed in (answer, Selecting(answer)):
            plugins = {"contributor": Contributor(parsed, None)}
            async with running_broker(plugins=["-tagfilter"], extra_plugins=plugins) as rig:
                client = await rig.client()
                await client.send(batch_of("t", 0, *[b"x"] * 6))
                reply = await client.fetch(FetchPart("t", 0, 0), filter="any")
                assert reply.status == Status.INTERNAL
                told = reply.header.detail
                assert "contributor" in told and "`filters`" in told
                assert "--plugins -contributor" in told
                key = 'plugin_errors{hook="filters",plugin="contributor"}'
                assert rig.broker.info().metrics[key] == 1
                assert (await client.fetch(FetchPart("t", 0, 0))).status == Status.OK

    asyncio.run(scenario())


class Unsendable(msgspec.Struct, array_like=True):
    what: object = object()


@pytest.mark.parametrize("operation", [1500, 1501])
@pytest.mark.parametrize(
    "answer", [ValueError("oh"), None, 7, Unsendable()], ids=lambda one: type(one).__name__
)
def test_what_an_operation_answers_wrongly_is_answered_with_its_plugins_name(
    answer: object, operation: int
) -> None:
    async def scenario() -> None:
        plugins = {"contributor": Contributor(None, answer)}
        async with running_broker(extra_plugins=plugins) as rig:
            client = await rig.client()
            reply = await client.answer(client.post(operation, Heartbeat()))
            assert reply.status == Status.INTERNAL
            assert "contributor" in reply.header.detail and "`operations`" in reply.header.detail
            assert (await client.ask(Operation.HEARTBEAT, Heartbeat())).status == Status.OK

    asyncio.run(scenario())
