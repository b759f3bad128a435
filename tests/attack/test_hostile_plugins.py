"""Plugins that answer hooks with nonsense: their name is told, and nothing slips through."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Refuse
from cometmq.protocol import Heartbeat, Hello, Operation, Status
from cometmq.testing.raw_client import batch_of, running_broker


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
