"""Claims: who may read and commit a queue for a group, whatever anybody believes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cometmq.errors import NoSpace
from cometmq.protocol import (
    RECONNECT_MS,
    Claim,
    ClaimPart,
    ClaimResultPart,
    Commit,
    CommitPart,
    Committed,
    Fetch,
    FetchPart,
    FetchReply,
    Goodbye,
    Heartbeat,
    OffsetsPart,
    Operation,
    PartStatus,
    QueueRef,
    Release,
    ReleasePart,
    Status,
    Token,
    TopicAlter,
    TopicCreate,
    TopicDelete,
)
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.raw_client import RawClient, Rig, batch_of, running_broker

Scenario = Callable[[Rig, RawClient], Awaitable[None]]
TIMEOUT_MS = 10_000


def play(scenario: Scenario, settings: dict[str, object] | None = None) -> None:
    async def run() -> None:
        async with running_broker(settings) as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))
            await client.send(batch_of("t", 0, b"a", b"b", b"c"))
            await scenario(rig, client)

    asyncio.run(run())


async def claim(
    client: RawClient, member: str, *parts: ClaimPart, group: str = "g", **fields: Any
) -> list[ClaimResultPart]:
    fields.setdefault("session_timeout_ms", TIMEOUT_MS)
    header = Claim(group, member, list(parts) or [ClaimPart("t", 0)], **fields)
    answer = await client.ask(Operation.CLAIM, header)
    assert answer.status == Status.OK, answer
    results: list[ClaimResultPart] = answer.header.parts
    return results


async def claimed(client: RawClient, member: str, queue: int = 0, **fields: Any) -> Token:
    (part,) = await claim(client, member, ClaimPart("t", queue), **fields)
    assert part.status == Status.OK, part
    assert part.token is not None
    return part.token


async def commit(
    client: RawClient, offset: int, token: Token | None, group: str = "g"
) -> PartStatus:
    header = Commit(group, [CommitPart("t", 0, offset, token=token)])
    (status,) = (await client.ask(Operation.COMMIT, header)).header.parts
    assert isinstance(status, PartStatus)
    return status


async def release(client: RawClient, token: Token, **fields: Any) -> PartStatus:
    header = Release("g", "m", [ReleasePart("t", 0, token, **fields)])
    (status,) = (await client.ask(Operation.RELEASE, header)).header.parts
    assert isinstance(status, PartStatus)
    return status


async def committed(client: RawClient, queue: int = 0) -> OffsetsPart:
    header = Committed("g", [QueueRef("t", queue)])
    (part,) = (await client.ask(Operation.COMMITTED, header)).header.parts
    assert isinstance(part, OffsetsPart)
    return part


def test_the_owner_commits_and_fetches_and_nobody_else() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        token = await claimed(client, "one")
        assert (await commit(client, 2, token)).status == Status.OK
        other = await commit(client, 3, None)
        assert other.status == Status.FENCED
        assert "is claimed by member 'one'" in other.detail
        old = await commit(client, 3, Token(token.epoch, token.position - 1))
        assert old.status == Status.FENCED
        assert "not valid any more, member 'one' holds the queue now" in old.detail
        assert (await committed(client)).offset == 2
        # Another group has nothing to do with it.
        assert (await commit(client, 1, None, group="other")).status == Status.OK
        assert (await commit(client, 1, token, group="other")).status == Status.FENCED
        good = FetchPart("t", 0, 2, token=token)
        bad = FetchPart("t", 0, 2, token=Token(token.epoch, token.position + 1))
        found: FetchReply = (await client.fetch(good, bad, group="g")).header
        assert [(part.part, part.status) for part in found.results] == [
            (0, Status.OK),
            (1, Status.FENCED),
        ]

    play(scenario)


def test_a_queue_that_is_held_is_refused_until_it_is_let_go() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        second = await rig.client()
        token = await claimed(client, "one")
        (no,) = await claim(second, "two")
        assert no.status == Status.CLAIMED
        assert no.token is None
        assert no.retry_after_ms > 0
        assert "is held by member 'one' of group 'g'" in no.detail
        assert (await release(client, token, offset=3, epoch=1)).status == Status.OK
        (yes,) = await claim(second, "two")
        assert (yes.status, yes.offset, yes.epoch, yes.kept) == (Status.OK, 3, 1, False)
        assert (await commit(client, 1, token)).status == Status.FENCED
        assert (await release(client, token, offset=1)).status == Status.FENCED
        assert (await committed(client)).offset == 3

    play(scenario)


def test_release_and_last_commit_are_one_batch() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        token = await claimed(client, "one")
        kinds: list[tuple[str, int]] = []
        original = rig.broker.log.append_control

        def recorded(kind: str, records: Any) -> Any:
            kinds.append((kind, len(records)))
            return original(kind, records)

        rig.broker.log.append_control = recorded
        await release(client, token, offset=2)
        assert kinds == [("claim", 1)]
        assert (await committed(client)).offset == 2

    play(scenario)


@pytest.mark.parametrize("token", [Token(), Token(1, 7), Token(99, 1)])
def test_only_the_token_releases(token: Token) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        good = await claimed(client, "m")
        assert (await release(client, token)).status == Status.FENCED
        assert (await commit(client, 1, good)).status == Status.OK

    play(scenario)


def test_a_release_with_a_place_that_is_not_there_lets_go_all_the_same() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        token = await claimed(client, "m")
        status = await release(client, token, offset=9)
        assert status.status == Status.TRUNCATED
        assert "released without it" in status.detail
        await claimed(client, "two")
        assert (await committed(client)).offset == 0

    play(scenario)


def test_a_silent_member_loses_its_claim_and_can_do_no_harm_when_it_wakes() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        sleeper = await rig.client()
        token = await claimed(sleeper, "sleeper")
        for _ in range(4):
            await rig.environment.clock.run_for(2.4)
            assert (await claim(client, "two"))[0].status == Status.CLAIMED
        await rig.environment.clock.run_for(1.0)
        assert rig.broker.claims.get(("g", 1, 0)) is None, "voided in the log, by itself"
        fresh = await claimed(client, "two")
        assert (await commit(sleeper, 1, token)).status == Status.FENCED
        found = (await sleeper.fetch(FetchPart("t", 0, 0, token=token), group="g")).header
        assert found.results[0].status == Status.FENCED
        assert (await commit(client, 2, fresh)).status == Status.OK

    play(scenario)


def test_a_good_bye_voids_its_claims_at_once() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        leaver = await rig.client()
        token = await claimed(leaver, "leaver")
        await leaver.ask(Operation.GOODBYE, Goodbye())
        await claimed(client, "two")
        assert (await commit(client, 1, token)).status == Status.FENCED

    play(scenario)


def test_claims_wait_a_moment_for_a_client_whose_connection_broke() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        clock = rig.environment.clock
        broken = await rig.client("same", client_epoch=1)
        token = await claimed(broken, "one")
        broken.close()
        await clock.run_for(RECONNECT_MS / 1000 - 0.5)
        (no,) = await claim(client, "two")
        assert (no.status, no.retry_after_ms) == (Status.CLAIMED, 500)
        back = await rig.client("same", client_epoch=2)
        (again,) = await claim(back, "one", ClaimPart("t", 0, token=token))
        assert (again.status, again.kept) == (Status.OK, True)
        await clock.run_for(RECONNECT_MS / 1000)
        assert (await claim(client, "two"))[0].status == Status.CLAIMED
        back.close()
        await clock.run_for(RECONNECT_MS / 1000 + 0.3)
        await claimed(client, "two")
        assert again.token is not None
        assert (await commit(client, 1, again.token)).status == Status.FENCED

    play(scenario)


def test_a_member_may_be_more_patient_than_the_broker_is_with_sessions() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        clock = rig.environment.clock
        sleeper = await rig.client("sleeper", client_epoch=1)
        token = await claimed(sleeper, "one", session_timeout_ms=20_000)
        for _ in range(3):
            await clock.run_for(5.0)
            assert (await claim(client, "two"))[0].status == Status.CLAIMED
        assert rig.broker.info().sessions == 1, "the session itself is over"
        back = await rig.client("sleeper", client_epoch=2)
        (again,) = await claim(back, "one", ClaimPart("t", 0, token=token))
        assert (again.status, again.kept) == (Status.OK, True)

    play(scenario, {"broker.session_timeout_ms": 8000})


def test_a_client_that_connects_anew_keeps_its_claims_for_a_session_time() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        first = await rig.client("same", client_epoch=1)
        token = await claimed(first, "one")
        second = await rig.client("same", client_epoch=2)
        (no,) = await claim(client, "two")
        assert no.status == Status.CLAIMED
        assert 0 < no.retry_after_ms <= TIMEOUT_MS
        (again,) = await claim(second, "one", ClaimPart("t", 0, token=token))
        assert (again.status, again.kept) == (Status.OK, True)
        assert again.token != token
        assert (await commit(second, 1, token)).status == Status.FENCED
        await rig.environment.clock.run_for(TIMEOUT_MS / 1000 - 1)
        assert (await commit(second, 1, again.token)).status == Status.OK

    play(scenario)


def test_after_a_start_claims_stay_their_members_for_a_session_time() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))
            await client.send(batch_of("t", 0, b"a", b"b"))
            back = await claimed(client, "back", 0)
            await claimed(client, "gone", 1)
            await commit(client, 1, back)
            rig.clients.clear()  # they are still there when the broker goes
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            for queue in (0, 1):
                (no,) = await claim(client, "new", ClaimPart("t", queue))
                assert no.status == Status.CLAIMED
                assert TIMEOUT_MS - 2000 < no.retry_after_ms <= TIMEOUT_MS
            (yes,) = await claim(client, "back", ClaimPart("t", 0, token=back))
            assert (yes.status, yes.offset, yes.kept) == (Status.OK, 1, True)
            assert yes.token is not None and yes.token.epoch == 2
            await environment.clock.run_for(TIMEOUT_MS / 1000 - 1)
            assert (await claim(client, "new", ClaimPart("t", 1)))[0].status == Status.CLAIMED
            await environment.clock.run_for(1.5)
            await claimed(client, "new", 1)
            assert (await claim(client, "new", ClaimPart("t", 0)))[0].status == Status.CLAIMED

    asyncio.run(scenario())


@pytest.mark.parametrize("restart", [False, True])
def test_a_claim_whose_answer_was_lost_is_presented_with_the_token_before(restart: bool) -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        async with running_broker(environment=environment) as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))
            await client.send(batch_of("t", 0, b"a", b"b"))
            token = await claimed(client, "m")
            (lost,) = await claim(client, "m", ClaimPart("t", 0, token=token))
            assert lost.kept and lost.token != token
            if restart:
                rig.clients.clear()
            else:
                await present_again(client, token)
        if restart:
            async with running_broker(environment=environment) as rig:
                await present_again(await rig.client(), token)

    asyncio.run(scenario())


async def present_again(client: RawClient, token: Token) -> None:
    """Nobody had the queue in between: the member goes on, and nobody else by its token."""
    (no,) = await claim(client, "other", ClaimPart("t", 0, token=token))
    assert no.status == Status.CLAIMED
    assert (await commit(client, 1, token)).status == Status.FENCED
    (again,) = await claim(client, "m", ClaimPart("t", 0, token=token))
    assert (again.status, again.kept) == (Status.OK, True)
    assert (await commit(client, 1, again.token)).status == Status.OK
    # Had it let go in between, it would begin anew.
    assert again.token is not None
    assert (await release(client, again.token)).status == Status.OK
    await claimed(client, "m")
    (anew,) = await claim(client, "m", ClaimPart("t", 0, token=again.token))
    assert (anew.status, anew.kept) == (Status.OK, False)


def test_claims_survive_a_flood_of_segments() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        settings: dict[str, object] = {"log.segment_batches": 20}
        async with running_broker(settings, environment=environment) as rig:
            client = await rig.client()
            await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 2))
            token = await claimed(client, "one")
            for _ in range(100):
                await client.send(batch_of("t", 1, b"x"))
            await rig.broker.log.trim(rig.broker.log.appended)
            assert rig.broker.log.start > token.position
            rig.clients.clear()
        async with running_broker(settings, environment=environment) as rig:
            client = await rig.client()
            assert rig.broker.claims.mode("g") == "claims"
            assert (await commit(client, 0, token)).status == Status.OK
            assert (await claim(client, "two"))[0].status == Status.CLAIMED

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("start", "offsets"), [("", (0, 0)), ("earliest", (0, 0)), ("latest", (3, 0))]
)
def test_where_a_group_begins_is_decided_once_for_all_queues(
    start: str, offsets: tuple[int, int]
) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await claimed(client, "one", 0, start=start)
        await client.send(batch_of("t", 1, b"x"))
        # Another start comes too late: the group has subscribed.
        (first,) = await claim(client, "one", start="latest")
        (second,) = await claim(client, "one", ClaimPart("t", 1), start="latest")
        assert (first.offset, second.offset) == offsets
        await client.ask(Operation.TOPIC_ALTER, TopicAlter("t", 3))
        await client.send(batch_of("t", 2, b"x"))
        (added,) = await claim(client, "one", ClaimPart("t", 2), start="latest")
        assert added.offset == 0, "a queue added later starts at its beginning"

    play(scenario)


def test_a_group_can_begin_at_a_time() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await rig.environment.clock.run_for(5.0)
        (sent,) = await client.send(batch_of("t", 0, b"later"))
        (part,) = await claim(client, "one", start=str(sent.store_time))
        assert part.offset == 3
        (bad,) = await claim(client, "one", group="h", start="yesterday")
        assert bad.status == Status.BAD_REQUEST
        assert "earliest, latest, or ms since 1970" in bad.detail

    play(scenario)


def test_a_group_that_committed_goes_on_there_whatever_the_start() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await commit(client, 1, None)
        (part,) = await claim(client, "one", start="latest")
        assert part.offset == 1

    play(scenario)


@pytest.mark.parametrize(
    ("part", "status"),
    [
        (ClaimPart("none", 0), Status.TOPIC_NOT_FOUND),
        (ClaimPart("t", 2), Status.QUEUE_NOT_FOUND),
        (ClaimPart("t", 0, incarnation=9), Status.TOPIC_GONE),
    ],
)
def test_each_queue_is_claimed_for_itself(part: ClaimPart, status: Status) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        refused, taken = await claim(client, "one", part, ClaimPart("t", 1))
        assert (refused.status, taken.status) == (status, Status.OK)
        assert taken.token is not None
        (alone,) = await claim(client, "one", part)
        assert alone.status == status

    play(scenario)


@pytest.mark.parametrize(
    ("group", "member", "parts", "status"),
    [
        ("a b", "m", [ClaimPart("t", 0)], Status.BAD_NAME),
        ("g", "", [ClaimPart("t", 0)], Status.BAD_NAME),
        ("g", "m" * 256, [ClaimPart("t", 0)], Status.BAD_NAME),
        ("g", "a\nb", [ClaimPart("t", 0)], Status.BAD_NAME),
        ("g", "m", [], Status.BAD_REQUEST),
    ],
)
def test_a_claim_that_makes_no_sense(
    group: str, member: str, parts: list[ClaimPart], status: Status
) -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        answer = await client.ask(Operation.CLAIM, Claim(group, member, parts))
        assert answer.status == status

    play(scenario)


def test_a_claim_waits_for_the_default_level() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        await rig.settle()
        rig.environment.files.hold_syncs()
        request = client.post(Operation.CLAIM, Claim("g", "m", [ClaimPart("t", 0)]))
        assert await client.answer_if_any(request) is None
        # It counts as soon as it is appended.
        assert (await claim(client, "two", ClaimPart("t", 0)))[0].status == Status.CLAIMED
        rig.environment.files.release_syncs()
        assert (await client.answer(request)).header.parts[0].status == Status.OK

    play(scenario, {"plugin.flush-sync.sync_in_loop_below_us": 0})


def test_a_deleted_topic_takes_its_claims_along() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        token = await claimed(client, "one")
        await client.ask(Operation.TOPIC_DELETE, TopicDelete("t"))
        await client.ask(Operation.TOPIC_CREATE, TopicCreate("t", 1))
        assert len(rig.broker.claims) == 0
        (part,) = await claim(client, "two")
        assert (part.status, part.offset) == (Status.OK, 0)
        assert (await commit(client, 0, token)).status == Status.FENCED

    play(scenario)


def test_a_parked_fetch_hears_that_its_token_is_void() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        reader = await rig.client()
        token = await claimed(reader, "one")
        header = Fetch([FetchPart("t", 0, 3, token=token)], group="g", wait_ms=5000)
        waiting = reader.post(Operation.FETCH, header)
        assert await reader.answer_if_any(waiting) is None
        await claimed(client, "one")
        found = (await reader.answer(waiting)).header
        assert [part.status for part in found.results] == [Status.FENCED]

    play(scenario)


def test_a_claim_whose_write_fails_is_none() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        rig.environment.files.fail("write", errno.EIO, name=".seg", times=1)
        header = Claim("g", "one", [ClaimPart("t", 0)])
        assert (await client.ask(Operation.CLAIM, header)).status == Status.RETRY
        assert len(rig.broker.claims) == 0
        await claimed(client, "two")

    play(scenario)


def test_a_release_whose_write_fails_leaves_the_claim() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        token = await claimed(client, "m")
        await rig.settle()
        rig.environment.files.fail("write", errno.EIO, name=".seg", times=1)
        header = Release("g", "m", [ReleasePart("t", 0, token, offset=2)])
        assert (await client.ask(Operation.RELEASE, header)).status == Status.RETRY
        assert (await commit(client, 1, token)).status == Status.OK
        assert (await claim(client, "two"))[0].status == Status.CLAIMED
        # Its member may come back to it for a session time, as after a start.
        (again,) = await claim(client, "m", ClaimPart("t", 0, token=token))
        assert (again.status, again.kept, again.offset) == (Status.OK, True, 1)

    play(scenario)


def test_a_log_that_takes_nothing_does_not_keep_claims_alive() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        leaver = await rig.client()
        await claimed(leaver, "leaver")
        original = rig.broker.log.append_control

        def refuse(kind: str, records: Any) -> Any:
            raise NoSpace("no room for a test")

        rig.broker.log.append_control = refuse
        leaver.close()
        await rig.environment.clock.run_for(RECONNECT_MS / 1000 + 0.3)
        assert rig.broker.claims.get(("g", 1, 0)) is not None, "the log could not be told"
        rig.broker.log.append_control = original
        (yes,) = await claim(client, "two")
        assert yes.status == Status.OK

    play(scenario)


def test_ended_claims_reach_the_log_when_it_takes_something_again() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        leaver = await rig.client()
        await claimed(leaver, "leaver")
        original, tries = rig.broker.log.append_control, []

        def refuse(kind: str, records: Any) -> Any:
            tries.append(kind)
            raise NoSpace("no room for a test")

        rig.broker.log.append_control = refuse
        leaver.close()
        await rig.environment.clock.run_for(9.0)
        assert tries.count("claim") == 2, "now and then, not five times a second"
        rig.broker.log.append_control = original
        await rig.environment.clock.run_for(5.0)
        assert rig.broker.claims.get(("g", 1, 0)) is None

    play(scenario)


def test_who_is_heard_again_before_the_log_could_be_told_keeps_its_claims() -> None:
    async def scenario(rig: Rig, client: RawClient) -> None:
        claimed_by = rig.broker.claims.get
        leaver, pausing = await rig.client(), await rig.client()
        await claimed(leaver, "leaver", 1)
        await claimed(pausing, "pausing", session_timeout_ms=1000)
        original = rig.broker.log.append_control

        def refuse(kind: str, records: Any) -> Any:
            raise NoSpace("no room for a test")

        rig.broker.log.append_control = refuse
        await leaver.ask(Operation.GOODBYE, Goodbye())
        await rig.environment.clock.run_for(2.0)
        rig.broker.log.append_control = original
        for _ in range(10):
            await pausing.ask(Operation.HEARTBEAT, Heartbeat())
            await rig.environment.clock.run_for(0.5)
        assert claimed_by(("g", 1, 1)) is None, "the log was told"
        assert claimed_by(("g", 1, 0)) is not None
        await rig.environment.clock.run_for(1.5)
        assert claimed_by(("g", 1, 0)) is None, "and once it is silent it is"

    play(scenario)
