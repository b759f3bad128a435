"""How a broker starts and ends, and what it says of itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

import pytest

from cometmq.broker import Broker
from cometmq.broker.addresses import is_local, transports_by_scheme
from cometmq.config import load_config
from cometmq.errors import CometError, ConfigError, LogLocked, PluginError
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Transport
from cometmq.plugins import compose
from cometmq.protocol import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    BrokerInfo,
    BrokerInfoReply,
    Hello,
    Operation,
    Status,
)
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.files import FaultyFiles
from cometmq.testing.raw_client import Answer, RawClient, batch_of, running_broker


async def start_and_stop(settings: dict[str, object], **more: Any) -> None:
    async with running_broker(settings, **more):
        pass


def test_info_and_banner_say_who_where_what_and_how_safe() -> None:
    async def scenario() -> None:
        async with running_broker({"broker.name": "b7"}) as rig:
            client = await rig.client()
            await client.send(batch_of("t", 0, b"x"))
            await rig.environment.clock.run_for(3.0)
            info = (await client.ask(Operation.BROKER_INFO, BrokerInfo())).header
            assert isinstance(info, BrokerInfoReply)
            assert (info.name, info.topics, info.sessions, info.epoch) == ("b7", 1, 1, 1)
            assert info.uptime_s == pytest.approx(3.0)
            assert info.positions == rig.broker.log.positions()
            assert info.segments == 1
            assert info.storage["bytes_total"] > 0
            assert [row["name"] for row in info.plugins] == [
                "standard",
                "zmtp",
                "inproc",
                "commitlog",
                "flush-sync",
                "longpoll",
                "cleanup",
                "sticky",
                "averagely",
                "tagfilter",
                "dedup",
            ]
            assert info.in_doubt == ""
            assert info.data == "/mq-data"
            lines = rig.broker.banner()
            assert "name b7" in lines[0]
            assert rig.broker.addresses[0] in lines[1]
            assert lines[2] == "data in /mq-data"
            assert lines[3] == (
                "plugins zmtp, inproc, commitlog, flush-sync, longpoll, cleanup, sticky, "
                "averagely, tagfilter, dedup"
            )
            assert "power cut takes nothing that was acknowledged" in lines[4]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("tcp://127.0.0.1:7800", True),
        ("tcp://127.8.9.1:0", True),
        ("tcp://[::1]:7800", True),
        ("tcp://localhost:7800", True),
        ("ipc:///run/mq.sock", True),
        ("inproc://name", True),
        ("tcp://0.0.0.0:7800", False),
        ("tcp://[::]:7800", False),
        ("tcp://*:7800", False),
        ("tcp://10.0.0.1:7800", False),
        ("tcp://mq.example.org:7800", False),
        ("tcp://localhost.example.org:7800", False),
        ("tcp://127.0.0.1:port", False),
    ],
)
def test_what_only_this_host_can_reach(address: str, local: bool) -> None:
    assert is_local(address) is local


@pytest.mark.parametrize("stored", [False, True], ids=["new folder", "a log is there"])
def test_a_start_that_fails_for_its_address_has_written_nothing(stored: bool) -> None:
    """No epoch, no segment, no node id: as if nobody had tried."""
    taken = f"inproc://taken-{stored}"
    there = ["tcp://127.0.0.1:0", taken]

    async def scenario() -> None:
        environment = VirtualEnvironment()
        files = environment.files
        if stored:
            async with running_broker(environment=environment) as rig:
                await (await rig.client()).send(batch_of("t", 0, b"x"))
        before = {path: files.read_file(path) for path in written(files)}
        async with running_broker({"broker.listen": [taken], "broker.data": "/other"}):
            for _ in range(3):
                with pytest.raises(ConfigError, match=f"{taken} is in use"):
                    await start_and_stop({"broker.listen": there}, environment=environment)
                assert {path: files.read_file(path) for path in written(files)} == before
        async with running_broker(environment=environment) as rig:
            assert rig.broker.log.epoch == 1 + stored

    asyncio.run(scenario())


def written(files: FaultyFiles) -> list[str]:
    """The files of the log and its node id."""
    found = [f"/mq-data/log/{name}" for name in files.list("/mq-data/log")]
    return found + (["/mq-data/node"] if files.exists("/mq-data/node") else [])


class SlowTransport:
    """Takes its time to bind, and hears nobody."""

    schemes: Sequence[str] = ("slow",)
    address = "slow://address"

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()

    async def listen(self, *_: object) -> SlowTransport:
        await self.may_go_on.wait()
        return self

    async def close(self) -> None: ...


def test_who_comes_before_all_is_ready_is_told_to_try_again() -> None:
    async def scenario() -> None:
        slow = SlowTransport()

        class Brings:
            name = "brings"

            @hookimpl
            def transports(self) -> Sequence[Transport]:
                return (slow,)

        addresses = ["inproc://early", slow.address]
        overrides: dict[str, object] = {"broker.listen": addresses, "plugins": "brings"}
        overrides |= {"broker.insecure": True, "broker.data": "/mq-data"}
        config = load_config(None, {}, overrides)
        broker = Broker(
            config, VirtualEnvironment(), compose(config, extra_plugins={"brings": Brings})
        )
        starting = asyncio.create_task(broker.start())
        while not broker.addresses:
            assert not starting.done()
            await asyncio.sleep(0)
        client = RawClient(addresses[0])
        answer = await say_hello(client)
        assert (answer.status, starting.done()) == (Status.STOPPING, False)
        assert "starting" in answer.header.detail and answer.header.retry_after_ms > 0
        assert broker.log.epoch == 0, "it was written before all addresses are bound"
        slow.may_go_on.set()
        await starting
        assert (await say_hello(client)).status == Status.OK and broker.log.epoch == 1
        client.close()
        await broker.stop()

    asyncio.run(scenario())


async def say_hello(client: RawClient) -> Answer:
    hello = Hello(protocol_min=PROTOCOL_MIN, protocol_max=PROTOCOL_MAX, client_id="early")
    return await client.ask(Operation.HELLO, hello)


def test_an_open_address_needs_a_doorman_or_a_word() -> None:
    with pytest.raises(ConfigError, match="no enabled plugin authenticates clients") as caught:
        asyncio.run(start_and_stop({"broker.listen": ["tcp://0.0.0.0:0"]}))
    assert "listen on 127.0.0.1, enable such a plugin, or say --insecure" in str(caught.value)
    asyncio.run(start_and_stop({"broker.listen": ["tcp://0.0.0.0:0"], "broker.insecure": True}))


class Doorman:
    name = "doorman"

    @hookimpl
    def authenticate(self) -> str:
        return "anybody"


def test_a_plugin_that_authenticates_opens_the_address() -> None:
    settings: dict[str, object] = {"broker.listen": ["tcp://0.0.0.0:0"]}
    asyncio.run(start_and_stop(settings, extra_plugins={"doorman": Doorman}))


def test_an_address_that_nobody_serves() -> None:
    with pytest.raises(ConfigError, match="no enabled plugin serves gopher://") as caught:
        asyncio.run(start_and_stop({"broker.listen": ["gopher://hole"]}))
    assert "inproc://, ipc://, tcp://" in str(caught.value)


class Rival:
    name = "rival"

    @hookimpl
    def transports(self) -> Sequence[Transport]:
        class Inproc:
            schemes: Sequence[str] = ("inproc",)

            async def listen(self, *arguments: Any) -> Any:
                raise AssertionError("never asked")

        return [Inproc()]


def test_two_transports_of_one_scheme_are_an_error_naming_both() -> None:
    with pytest.raises(PluginError, match="plugins inproc and rival both bring .* inproc: take"):
        asyncio.run(start_and_stop({}, plugins=["inproc"], extra_plugins={"rival": Rival}))


def test_a_transport_that_the_user_names_replaces_the_standard_one_of_its_scheme() -> None:
    composed = compose(load_config(None, {}, {"plugins": "zeromq"}))
    transports = transports_by_scheme(composed)
    owner = {scheme: type(it).__module__.split(".")[1] for scheme, it in transports.items()}
    assert owner == {"tcp": "zeromq", "ipc": "zeromq", "inproc": "inproc"}


def test_a_default_level_that_nobody_brings() -> None:
    with pytest.raises(ConfigError, match="`broker.level` is quorum, which needs a replication"):
        asyncio.run(start_and_stop({"broker.level": "quorum"}))


def test_two_brokers_do_not_share_a_folder() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        async with running_broker(environment=environment):
            with pytest.raises(LogLocked, match="/mq-data"):
                await start_and_stop({}, environment=environment)

    asyncio.run(scenario())


class Failing:
    name = "failing"

    @hookimpl
    def started(self) -> None:
        raise ValueError("not today")


def test_a_start_that_fails_leaves_nothing_running() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        settings: dict[str, object] = {"broker.listen": ["inproc://same"]}
        with pytest.raises(PluginError, match="failing.*not today"):
            await start_and_stop(
                settings, environment=environment, extra_plugins={"failing": Failing}
            )
        await start_and_stop(settings, environment=environment)

    asyncio.run(scenario())


class FailingStop:
    name = "failing-stop"

    @hookimpl
    def stopping(self) -> None:
        raise ValueError("can't let go")


def test_a_stop_does_all_of_it_and_tells_what_failed() -> None:
    async def scenario() -> None:
        environment = VirtualEnvironment()
        with pytest.raises(ExceptionGroup) as caught:
            await start_and_stop(
                {}, environment=environment, extra_plugins={"failing-stop": FailingStop}
            )
        assert caught.group_contains(PluginError, match="can't let go")
        await start_and_stop({}, environment=environment)

    asyncio.run(scenario())


def test_a_stop_answers_what_was_accepted() -> None:
    async def scenario() -> None:
        settings = {"plugin.flush-sync.sync_in_loop_below_us": 0}
        async with running_broker(settings) as rig:
            client = await rig.client()
            await client.send(batch_of("t", 0, b"x"))
            rig.environment.files.hold_syncs()
            sent = client.post_send(batch_of("t", 0, b"y"))
            await rig.settle()
            stop = asyncio.get_running_loop().create_task(rig.broker.stop())
            await rig.settle()
            assert not stop.done()
            rig.environment.files.release_syncs()
            await stop
            assert (await client.answer(sent)).status == Status.OK

    asyncio.run(scenario())


class Sleeper:
    """Blocks the loop, as no hook may."""

    name = "sleeper"

    @hookimpl
    def admit(self, operation: str) -> None:
        if operation == "SEND":
            time.sleep(0.8)


def test_a_hook_that_blocks_too_long_stops_the_broker_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        settings = {"broker.loop_stall_limit_ms": 300}
        async with running_broker(settings, extra_plugins={"sleeper": Sleeper}) as rig:
            client = await rig.client()
            await asyncio.sleep(0.15)
            client.post_send(batch_of("t", 0, b"x"))
            with pytest.raises(CometError, match="hook admit of plugin sleeper"):
                await asyncio.wait_for(rig.broker.failed(), 5)
            late = await client.answer(client.post_send(batch_of("t", 0, b"y")))
            assert late.status == Status.STOPPING

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(scenario())
    assert "loop_stall_limit_ms (300)" in caplog.text
