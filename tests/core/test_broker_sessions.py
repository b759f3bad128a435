"""Sessions: hello first, the newest connection wins, silence ends one, garbage costs an answer."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from cometmq import protocol
from cometmq.broker.dispatch import GARBAGE_MAX
from cometmq.broker.sessions import Sessions
from cometmq.environment import Buffer
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Limits, Refuse
from cometmq.protocol import (
    BrokerInfo,
    Fetch,
    FetchPart,
    Goodbye,
    GroupHeartbeat,
    Heartbeat,
    Hello,
    Operation,
    Status,
    Subscription,
    TopicList,
)
from cometmq.testing.clock import VirtualClock
from cometmq.testing.raw_client import Answer, RawClient, batch_of, running_broker


async def say_hello(client: RawClient, client_id: str, epoch: int = 0, **fields: Any) -> Answer:
    hello = Hello(
        fields.pop("protocol_min", protocol.PROTOCOL_MIN),
        fields.pop("protocol_max", protocol.PROTOCOL_MAX),
        client_id,
        epoch,
        **fields,
    )
    return await client.ask(Operation.HELLO, hello)


def test_hello_tells_what_a_client_has_to_know() -> None:
    async def scenario() -> None:
        async with running_broker({"broker.name": "b1", "broker.session_timeout_ms": 9000}) as rig:
            welcome = await rig.stranger().hello()
            assert welcome.broker_name == "b1"
            assert welcome.log_id == rig.broker.log.log_id.hex()
            assert welcome.epoch == rig.broker.log.epoch == 1
            assert (welcome.session_timeout_ms, welcome.heartbeat_ms) == (9000, 3000)
            assert welcome.limits == Limits()
            assert welcome.default_level == "disk"
            second = await rig.stranger().hello()
            assert second.session != welcome.session

    asyncio.run(scenario())


def test_nothing_is_done_before_hello() -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            client = rig.stranger()
            batch = batch_of("t", 0, b"x")
            answer = await client.answer(client.post_send(batch))
            assert answer.status == Status.HELLO_REQUIRED
            assert "say hello first" in answer.header.detail
            assert len(rig.broker.topics) == 0

    asyncio.run(scenario())


def test_garbage_costs_one_answer_and_is_nothing_to_others() -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            bad, good = rig.stranger(), await rig.client()
            for frames in ([b"x"], [b""], [b"\xff" * 40], [b"x"] * 16):
                bad.post_raw(frames)
            await rig.settle()
            assert (await good.ask(Operation.HEARTBEAT, Heartbeat())).status == Status.OK
            bad._receive()
            assert [answer.status for answer in bad.unasked] == [Status.BAD_REQUEST] * 4
            assert rig.broker.info().metrics["garbage"] == 4

    asyncio.run(scenario())


def test_who_sends_only_garbage_is_told_why_it_is_cut_off() -> None:
    """Whether it said hello before or not; what it said behind the last one costs no answer."""

    async def scenario() -> None:
        async with running_broker() as rig:
            for bad in (rig.stranger(), await rig.client()):
                for _ in range(GARBAGE_MAX + 5):
                    bad.post_raw([b"x"])
                await rig.settle()
                bad._receive()
                assert [answer.status for answer in bad.unasked] == [
                    Status.BAD_REQUEST
                ] * GARBAGE_MAX
                assert "so this connection is closed" in bad.unasked[-1].header.detail
            assert rig.broker.info().sessions == 0

    asyncio.run(scenario())


def test_hellos_and_goodbyes_in_between_forgive_no_garbage() -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            bad = rig.stranger()
            for number in range(1, GARBAGE_MAX):
                bad.post_raw([b"x"])
                if number % 3:
                    await bad.hello("bad" if number % 2 else "worse")
                else:
                    await bad.ask(Operation.GOODBYE, Goodbye())
            bad.post_raw([b"x"])
            await rig.settle()
            bad._receive()
            assert len(bad.unasked) == GARBAGE_MAX
            assert "so this connection is closed" in bad.unasked[-1].header.detail

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("operation", "header", "status"),
    [
        (Operation.HEARTBEAT, b"\xc1", Status.BAD_REQUEST),
        (Operation.SEND, b"\x90", Status.BAD_REQUEST),
        (Operation.SEND, b"\x91" * 5000, Status.BAD_REQUEST),
        (999, b"\x90", Status.UNKNOWN_OPERATION),
    ],
)
def test_a_header_that_is_none_is_answered_to_its_request(
    operation: int, header: bytes, status: Status
) -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            client._operations[77] = operation
            client.post_raw([protocol.PREFIX.pack(77, operation, len(header)) + header])
            assert (await client.answer(77)).status == status

    asyncio.run(scenario())


def test_a_protocol_that_the_broker_does_not_speak_is_named() -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            answer = await say_hello(rig.stranger(), "c", protocol_min=7, protocol_max=9)
            assert answer.status == Status.VERSION_MISMATCH
            assert "speaks protocol 1 to 1, the client 7 to 9" in answer.header.detail

    asyncio.run(scenario())


@pytest.mark.parametrize("client_id", ["", "x" * 256, "new\nline", "\x00"])
def test_a_client_id_is_bounded_and_printable(client_id: str) -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            answer = await say_hello(rig.stranger(), client_id)
            assert answer.status == Status.BAD_NAME
            assert answer.header.detail.isprintable()

    asyncio.run(scenario())


def test_the_newest_connection_of_a_client_wins() -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            old, new, late = rig.stranger(), rig.stranger(), rig.stranger()
            assert (await say_hello(old, "c", 1)).status == Status.OK
            assert (await say_hello(new, "c", 2)).status == Status.OK
            assert len(rig.broker._service.sessions) == 1  # type: ignore[union-attr]
            await rig.settle()
            assert [event for event, _ in old.channel.events()][-1] == "disconnected"
            answer = await say_hello(late, "c", 1)
            assert answer.status == Status.FENCED
            assert "has a newer connection (epoch 2, this one has 1)" in answer.header.detail
            assert (await new.ask(Operation.HEARTBEAT, Heartbeat())).status == Status.OK

    asyncio.run(scenario())


def test_hello_again_on_one_connection_is_a_new_session() -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            client = rig.stranger()
            first = await client.hello("c")
            second = await client.hello("c")
            assert second.session > first.session
            assert (await client.ask(Operation.HEARTBEAT, Heartbeat())).status == Status.OK

    asyncio.run(scenario())


def test_silence_ends_a_session_and_a_heartbeat_keeps_it() -> None:
    async def scenario() -> None:
        async with running_broker({"broker.session_timeout_ms": 8000}) as rig:
            silent, alive = await rig.client(), await rig.client()
            for _ in range(4):
                await rig.environment.clock.run_for(3.0)
                await alive.ask(Operation.HEARTBEAT, Heartbeat())
            assert len(rig.broker._service.sessions) == 1  # type: ignore[union-attr]
            await rig.settle()
            assert [event for event, _ in silent.channel.events()][-1] == "disconnected"

    asyncio.run(scenario())


def test_a_stall_of_the_brokers_own_loop_is_nobodys_silence() -> None:
    async def scenario() -> None:
        async with running_broker({"broker.session_timeout_ms": 8000}) as rig:
            client = await rig.client()
            clock = rig.environment.clock
            await clock.run_for(1.0)
            clock._set(clock.monotonic_s() + 60.0)  # timers are late, as after a stall
            await clock.run_for(3.0)
            assert (await client.ask(Operation.HEARTBEAT, Heartbeat())).status == Status.OK
            await clock.run_for(12.0)
            assert len(rig.broker._service.sessions) == 0  # type: ignore[union-attr]

    asyncio.run(scenario())


def test_goodbye_and_a_lost_connection_end_the_session_at_once() -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            polite, rude = await rig.client(), await rig.client()
            assert (await polite.ask(Operation.GOODBYE, Goodbye())).status == Status.OK
            rude.close()
            await rig.settle()
            assert len(rig.broker._service.sessions) == 0  # type: ignore[union-attr]
            answer = await polite.ask(Operation.HEARTBEAT, Heartbeat())
            assert answer.status == Status.HELLO_REQUIRED

    asyncio.run(scenario())


def test_what_still_waits_when_its_session_ends_is_not_counted_any_more() -> None:
    """Else clients that come and go would use up what all requests together may take."""

    async def scenario() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            await client.send(batch_of("t", 0, b"x"))
            beat = GroupHeartbeat("g", "m", [Subscription("t")], session_timeout_ms=10_000)
            answer = await client.ask(Operation.GROUP_HEARTBEAT, beat)
            beat = msgspec.structs.replace(beat, known=answer.header.generation, wait_ms=3000)
            waiting = [
                client.post(Operation.GROUP_HEARTBEAT, beat),
                client.post(Operation.FETCH, Fetch([FetchPart("t", 0, 1)], wait_ms=3000)),
            ]
            assert [await client.answer_if_any(number) for number in waiting] == [None, None]
            assert len(rig.broker.park) == 2
            assert rig.broker.info().metrics["unanswered_bytes"] > 0
            client.close()
            await rig.settle()
            assert len(rig.broker.park) == 0
            assert rig.broker.info().metrics["unanswered_bytes"] == 0

    asyncio.run(scenario())


def test_more_clients_than_allowed_are_refused_by_name() -> None:
    async def scenario() -> None:
        async with running_broker({"limits.connections": 2}) as rig:
            for _ in range(2):
                await rig.client()
            answer = await say_hello(rig.stranger(), "third")
            assert answer.status == Status.LIMIT_REACHED
            assert "raise limits.connections" in answer.header.detail

    asyncio.run(scenario())


def test_unanswered_requests_are_bounded_by_credit() -> None:
    async def scenario() -> None:
        settings = {
            "limits.batch_bytes": 1 << 16,
            "limits.frame_bytes": 1 << 17,
            "limits.credit_bytes": 1 << 17,
            "plugin.flush-sync.sync_in_loop_below_us": 0,
        }
        async with running_broker(settings) as rig:
            client = await rig.client()
            await client.send(batch_of("t", 0, b"x"))
            rig.environment.files.hold_syncs()
            requests = []
            for _ in range(4):
                requests.append(client.post_send(batch_of("t", 0, b"x" * 50_000)))
                await rig.settle()
            refused = await client.answer(requests[2])
            assert refused.status == Status.RETRY
            assert "wait for answers before sending more" in refused.header.detail
            rig.environment.files.release_syncs()
            assert (await client.answer(requests[0])).status == Status.OK
            assert (await client.answer(client.post_send(batch_of("t", 0, b"x")))).status == 0

    asyncio.run(scenario())


class Doorman:
    """Knows one password."""

    name = "doorman"

    @hookimpl
    def authenticate(self, credentials: dict[str, str]) -> str | Refuse | None:
        if "password" not in credentials:
            return None
        if credentials["password"] == "open sesame":
            return "ali"
        return Refuse("the password is wrong: ask for a new one")


def test_a_plugin_decides_who_comes_in() -> None:
    async def scenario() -> None:
        async with running_broker(extra_plugins={"doorman": Doorman}) as rig:
            unknown = await say_hello(rig.stranger(), "a")
            wrong = await say_hello(rig.stranger(), "b", credentials={"password": "?"})
            right = await say_hello(rig.stranger(), "c", credentials={"password": "open sesame"})
            assert unknown.status == wrong.status == Status.NOT_AUTHENTICATED
            assert "no plugin knows the credentials" in unknown.header.detail
            assert wrong.header.detail == "the password is wrong: ask for a new one"
            assert right.status == Status.OK
            (session,) = rig.broker._service.sessions  # type: ignore[union-attr]
            assert session.principal == "ali"

    asyncio.run(scenario())


class Changing:
    """Everybody is somebody else."""

    name = "changing"

    def __init__(self) -> None:
        self.count = 0

    @hookimpl
    def authenticate(self) -> str:
        self.count += 1
        return f"user-{self.count}"


def test_nobody_takes_over_the_client_id_of_another_principal() -> None:
    async def scenario() -> None:
        async with running_broker(extra_plugins={"changing": Changing}) as rig:
            await rig.client("c")
            answer = await say_hello(rig.stranger(), "c", 5)
            assert answer.status == Status.NOT_AUTHORIZED

    asyncio.run(scenario())


def test_a_broker_that_stops_says_so() -> None:
    async def scenario() -> None:
        async with running_broker() as rig:
            client = await rig.client()
            rig.broker._refuse_requests()
            answer = await client.ask(Operation.TOPIC_LIST, TopicList())
            assert answer.status == Status.STOPPING
            assert answer.header.retry_after_ms > 0
            assert (await say_hello(rig.stranger(), "c")).status == Status.STOPPING
            assert (await client.ask(Operation.BROKER_INFO, BrokerInfo())).status == Status.OK

    asyncio.run(scenario())


class Guest:
    """A peer that nobody holds but its session."""

    name = "guest"

    def send(self, frames: Sequence[Buffer]) -> bool:
        return True

    def close(self) -> None:
        pass


@pytest.mark.parametrize("silent", [False, True], ids=["lost", "silent"])
def test_an_ended_session_lets_its_peer_go_at_once(silent: bool) -> None:
    """Not when the garbage collector comes: a connection may hold megabytes."""

    clock = VirtualClock()
    sessions = Sessions(clock, Limits(), 1000)
    guest = Guest()
    sessions.hello(guest, Hello(protocol.PROTOCOL_MIN, protocol.PROTOCOL_MAX, "c"))
    gc.disable()
    try:
        if silent:
            clock.advance(2.0)
            assert sessions.sweep() == 1
        else:
            sessions.lost(guest)
        known = weakref.ref(guest)
        del guest
        assert known() is None
    finally:
        gc.enable()
