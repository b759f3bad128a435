"""Claims that are presented by an older token: kept only if nobody had the queue in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.core.test_claims import TIMEOUT_MS, claim, claimed, commit, release

from cometmq.protocol import (
    ClaimPart,
    GroupDelete,
    GroupReset,
    Operation,
    Status,
    Token,
    TopicCreate,
    TopicDelete,
)
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker


async def present(client: RawClient, token: Token, member: str = "m") -> bool:
    """Claim by this token: whether it is kept."""
    (part,) = await claim(client, member, ClaimPart("t", 0, token=token))
    assert part.status == Status.OK, part
    return part.kept


async def reset(client: RawClient, token: Token) -> None:
    header = GroupReset("g", "t", to="latest", force=True)
    assert (await client.ask(Operation.GROUP_RESET, header)).status == Status.OK


async def delete_group(client: RawClient, token: Token) -> None:
    header = GroupDelete("g", force=True)
    assert (await client.ask(Operation.GROUP_DELETE, header)).status == Status.OK


async def new_topic(client: RawClient, token: Token) -> None:
    assert (await client.ask(Operation.TOPIC_DELETE, TopicDelete("t"))).status == Status.OK
    await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))


async def let_go(client: RawClient, token: Token) -> None:
    assert (await release(client, token)).status == Status.OK


async def somebody_else(client: RawClient, token: Token) -> None:
    await let_go(client, token)
    other = await claimed(client, "other")
    await let_go(client, other)


async def nothing(client: RawClient, token: Token) -> None: ...


BETWEEN: dict[str, tuple[Callable[[RawClient, Token], Awaitable[None]], bool]] = {
    "nothing": (nothing, True),
    "a reset": (reset, False),
    "the group deleted": (delete_group, False),
    "the topic made anew": (new_topic, False),
    "let go": (let_go, False),
    "somebody else": (somebody_else, False),
}


@pytest.mark.parametrize("claimed_again", [False, True])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("between", BETWEEN)
def test_a_tenure_ends_with_whatever_breaks_it(
    between: str, restart: bool, claimed_again: bool
) -> None:
    happens, kept = BETWEEN[between]

    async def scenario() -> None:
        environment = VirtualEnvironment()
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))
            await client.send(batch_of("t", 0, b"a", b"b"))
            first = await claimed(client, "m")
            (again,) = await claim(client, "m", ClaimPart("t", 0, token=first))
            assert again.kept and again.token is not None
            await happens(client, again.token)
            if claimed_again:  # without a token, as one that was made anew
                await claimed(client, "m")
            rig.clients.clear()
            if not restart:
                await look(rig, client, first, again.token)
        if restart:
            async with running_broker(environment=environment) as rig:
                await look(rig, await rig.client(), first, again.token)

    async def look(rig: Rig, client: RawClient, *tokens: Token) -> None:
        for token in tokens:
            if kept and not claimed_again:
                assert await present(client, token)
            else:
                assert not await present(client, token)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "token",
    [Token(0, 0), Token(0, 1 << 62), Token(1 << 62, 0), Token(1, (1 << 63) - 1), Token(1, 0)],
    ids=str,
)
def test_tokens_that_nobody_gave_keep_nothing(token: Token) -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))
            await claimed(client, "m")
            assert not await present(client, token)

    asyncio.run(scenario())


def test_a_tenure_that_lapsed_is_over_though_nobody_took_the_queue() -> None:
    """The group's advice may have given it to another member that never claimed it."""

    async def scenario() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))
            token = await claimed(client, "m")
            client.close()
            await rig.environment.clock.run_for(2 * TIMEOUT_MS / 1000)
            client = await rig.client()
            assert not await present(client, token)

    asyncio.run(scenario())


def test_a_long_chain_of_restarts_keeps_the_first_token_good() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        first: Token | None = None
        newest: Token | None = None
        for _ in range(5):
            async with running_broker(environment=environment) as rig:
                client = await rig.client()
                if first is None:
                    await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))
                    first = newest = await claimed(client, "m")
                for _ in range(5):
                    rig.broker.log.roll()
                    await client.send(batch_of("t", 1, bytes(40_000)))
                (part,) = await claim(client, "m", ClaimPart("t", 0, token=first))
                assert part.kept and part.token is not None
                (part,) = await claim(client, "m", ClaimPart("t", 0, token=newest))
                assert part.kept and part.token is not None
                newest = part.token
                assert (await commit(client, 0, newest)).status == Status.OK
                rig.clients.clear()

    asyncio.run(scenario())
