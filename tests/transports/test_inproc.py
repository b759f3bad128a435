"""The in-process transport: the contract, and what only it can show."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cometmq.interfaces import Channel, Limits, Transport
from cometmq.real_environment import RealEnvironment
from cometmq.testing.transport_contract import TransportContract
from cometmq.testing.transport_ends import Caller, ReceiverThread
from cometmq_transports.connection_limits import SPARE_CONNECTIONS
from cometmq_transports.inproc import InprocPlugin, InprocTransport, connect
from cometmq_transports.inproc.listener import InprocListener


class TestInproc(TransportContract):
    def make_transport(self) -> Transport:
        return InprocTransport()

    def free_address(self, folder: Path) -> str:
        return f"inproc://{folder}"

    def connect(self, address: str, limits: Limits) -> Channel:
        return connect(address, limits)


def test_frames_travel_by_reference(tmp_path: Path) -> None:
    seen: list[object] = []
    with ReceiverThread() as receiver:
        address = f"inproc://{tmp_path}"
        receiver.listen(InprocTransport(), address)
        receiver.answer = lambda peer, frames: seen.extend(frames)
        with Caller(connect(address, Limits())) as caller:
            body = bytearray(b"body")
            caller.send(body)
            receiver.until(lambda: receiver.messages)
            receiver.call(lambda: None)
    assert seen[0] is body


def test_a_wake_up_serves_a_burst(tmp_path: Path) -> None:
    with ReceiverThread() as receiver:
        address = f"inproc://{tmp_path}"
        receiver.listen(InprocTransport(), address)
        with Caller(connect(address, Limits())) as caller:
            release = receiver.hold()
            for number in range(300):
                assert caller.channel.send([b"%d" % number])
            release()
            receiver.until(lambda: len(receiver.messages) == 300)
    assert receiver.drains == [256, 44]


def test_clients_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    with ReceiverThread() as receiver:
        address = f"inproc://{tmp_path}"
        listener = receiver.listen(InprocTransport(), address, Limits(connections=2))
        callers = [Caller(connect(address, Limits())) for _ in range(3 + SPARE_CONNECTIONS)]
        for caller in callers:
            caller.take()
        assert [caller.events for caller in callers[:-1]] == [["connected"]] * (len(callers) - 1)
        assert callers[-1].events == ["refused"]
        assert "too many" in callers[-1].sentences[0]
        callers[0].channel.close()
        receiver.until(lambda: len(receiver.gone) == 1)
        assert Caller(connect(address, Limits())).connected()
        assert isinstance(listener, InprocListener)
        assert listener.counters == {"too_many_connections": 1}
        for caller in callers:
            caller.channel.close()


def test_a_loop_that_ended_without_a_word_is_noticed(tmp_path: Path) -> None:
    address = f"inproc://{tmp_path}"

    class Deaf:
        def received(self, drain: object) -> None:
            raise AssertionError("nothing was sent while the loop ran")

        def lost(self, peer: object) -> None:
            raise AssertionError("nobody left while the loop ran")

    async def listen() -> None:
        environment = RealEnvironment()
        await InprocTransport().listen(address, Deaf(), Limits(), environment)
        environment.threads.close()
        caller.append(Caller(connect(address, Limits())).connected())

    caller: list[Caller] = []
    asyncio.run(listen())
    assert not caller[0].channel.send([b"anybody?"])
    caller[0].take()
    assert caller[0].events == ["connected", "disconnected"]
    caller[0].channel.close()
    with Caller(connect(address, Limits())) as late:
        late.take()
        assert late.events == ["refused"]
    with ReceiverThread() as receiver:
        receiver.listen(InprocTransport(), address)
        with Caller(connect(address, Limits())) as caller_again:
            assert caller_again.ask(b"a new broker") == [b"a new broker"]


def test_the_plugin_brings_the_transport() -> None:
    (transport,) = InprocPlugin().transports()
    assert transport.schemes == ("inproc",)
