"""What every transport must do. Subclass, say how to make yours, and let pytest collect it.

class TestMine(TransportContract):
    def make_transport(self) -> Transport: return MyTransport()
    def free_address(self, folder: Path) -> str: return "mine://127.0.0.1:0"
    def connect(self, address: str, limits: Limits) -> Channel: return connect(address, limits)
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cometmq.environment import Buffer
from cometmq.errors import ConfigError
from cometmq.interfaces import Channel, Limits, Listener, Peer, Transport
from cometmq.real_environment import RealEnvironment
from cometmq.testing.transport_ends import PATIENCE_S, Caller, ReceiverThread


class TransportContract:
    """The suite. Three methods are the subclass's to give."""

    bad_addresses: Sequence[str] = ("", "nonsense", "tcp://", "inproc://", "ipc://", "http://a:1")
    """None of them can be listened on or connected to."""

    def make_transport(self) -> Transport:
        """A fresh transport."""
        raise NotImplementedError

    def free_address(self, folder: Path) -> str:
        """An address to listen on that nobody else uses."""
        raise NotImplementedError

    def connect(self, address: str, limits: Limits) -> Channel:
        """The function that is published under `cometmq.transports`."""
        raise NotImplementedError

    # --- fixtures -------------------------------------------------------------------------------

    @pytest.fixture
    def receiver(self) -> Iterator[ReceiverThread]:
        with ReceiverThread() as receiver:
            yield receiver

    @pytest.fixture
    def listener(self, receiver: ReceiverThread, tmp_path: Path) -> Listener:
        return receiver.listen(self.make_transport(), self.free_address(tmp_path))

    @pytest.fixture
    def caller(self, listener: Listener) -> Iterator[Caller]:
        with self.call(listener) as caller:
            yield caller

    def call(self, listener: Listener) -> Caller:
        """A connected client."""
        return Caller(self.connect(listener.address, Limits())).connected()

    # --- messages -------------------------------------------------------------------------------

    def test_a_message_goes_there_and_back(self, caller: Caller) -> None:
        assert caller.ask(b"hello", b"", b"body") == [b"hello", b"", b"body"]
        assert caller.events == ["connected"]

    @pytest.mark.parametrize("count", [1, 2, 15, 16])
    def test_frames_arrive_one_by_one(self, caller: Caller, count: int) -> None:
        frames = [bytes([number]) * number for number in range(count)]
        assert caller.ask(*frames) == frames

    @pytest.mark.parametrize("size", [0, 1, 8191, 8192, 8193, 100_000, 1 << 20])
    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_frames_of_every_size_and_kind(
        self, caller: Caller, size: int, kind: type[Buffer]
    ) -> None:
        content = os.urandom(size)
        assert caller.ask(b"head", kind(content)) == [b"head", content]

    def test_many_messages_keep_their_order(self, caller: Caller, receiver: ReceiverThread) -> None:
        sent = [[b"%d" % number] for number in range(5_000)]
        for frames in sent:
            caller.send(*frames)
        caller.until(lambda: len(caller.messages) == len(sent))
        assert caller.messages == sent
        assert [frames for _, frames in receiver.messages] == sent

    def test_what_is_there_comes_in_one_call(
        self, caller: Caller, receiver: ReceiverThread
    ) -> None:
        for burst in range(1, 21):  # how many arrive while the loop stands still varies
            release = receiver.hold()
            for number in range(50):
                caller.send(b"%d" % number)
            caller.channel.wait(_PAUSE_S)
            release()
            caller.collect(50 * burst)
            if max(receiver.drains) >= 25:
                return
        raise AssertionError(f"never 25 messages in one call: {receiver.drains}")

    def test_receive_gives_no_more_than_asked_for(
        self, caller: Caller, receiver: ReceiverThread
    ) -> None:
        for number in range(10):
            assert caller.channel.send([b"%d" % number])
        receiver.until(lambda: len(receiver.messages) == 10)
        taken: list[bytes] = []
        for _ in range(200):
            caller.channel.wait(0.05)
            messages = caller.channel.receive(3)
            assert len(messages) <= 3
            taken.extend(bytes(frames[0]) for frames in messages)
            if len(taken) == 10:
                break
        assert taken == [b"%d" % number for number in range(10)]

    def test_every_client_is_a_peer_of_its_own(
        self, caller: Caller, listener: Listener, receiver: ReceiverThread
    ) -> None:
        with self.call(listener) as other:
            for client in (caller, other, caller, other):
                client.ask(b"who")
        first, second, *again = [peer for peer, _ in receiver.messages]
        assert first is not second
        assert again == [first, second]
        assert {first: 1, second: 2}[second] == 2
        assert first.name and second.name

    def test_two_hundred_clients(self, listener: Listener, receiver: ReceiverThread) -> None:
        channels = [self.connect(listener.address, Limits()) for _ in range(200)]
        callers = [Caller(channel) for channel in channels]
        try:
            for caller in callers:
                caller.connected()
            for number, caller in enumerate(callers):
                caller.send(b"%d" % number)
            for number, caller in enumerate(callers):
                assert caller.collect(1) == [[b"%d" % number]]
        finally:
            for channel in channels:
                channel.close()
        receiver.until(lambda: len(receiver.gone) == 200)
        assert len(set(map(id, receiver.gone))) == 200

    # --- waiting --------------------------------------------------------------------------------

    def test_another_descriptor_ends_the_wait(self, caller: Caller) -> None:
        wake_fd = os.eventfd(0)
        try:
            timer = threading.Timer(0.05, os.eventfd_write, (wake_fd, 1))
            timer.start()
            caller.channel.wait(PATIENCE_S, wake_fd)
            assert os.eventfd_read(wake_fd) == 1
            timer.join()
        finally:
            os.close(wake_fd)

    def test_waiting_ends_by_itself(self, caller: Caller) -> None:
        caller.channel.wait(0.01)
        assert caller.channel.receive() == []

    def test_one_loop_may_have_both_ends(self, tmp_path: Path) -> None:
        class Echo:
            def received(self, drain: Sequence[tuple[Peer, Sequence[Buffer]]]) -> None:
                for peer, frames in drain:
                    peer.send(frames)

            def lost(self, peer: Peer) -> None:
                pass

        async def main() -> list[bytes]:
            environment = RealEnvironment()
            address = self.free_address(tmp_path)
            bound = await self.make_transport().listen(address, Echo(), Limits(), environment)
            channel = self.connect(bound.address, Limits())
            caller = Caller(channel)
            loop = asyncio.get_running_loop()
            came = asyncio.Event()

            def take() -> None:
                caller.take()
                came.set()

            loop.add_reader(channel.fileno(), take)

            async def until(count: int) -> None:
                while len(caller.messages) < count:
                    await asyncio.wait_for(came.wait(), PATIENCE_S)
                    came.clear()

            caller.take()
            while "connected" not in caller.events:
                await asyncio.wait_for(came.wait(), PATIENCE_S)
                came.clear()
            for number in range(300):
                assert channel.send([b"%d" % number])
                caller.take()
                await until(number - 10)
            await until(300)
            loop.remove_reader(channel.fileno())
            channel.close()
            await bound.close()
            environment.threads.close()
            return [frames[0] for frames in caller.messages]

        assert asyncio.run(main()) == [b"%d" % number for number in range(300)]

    # --- memory ---------------------------------------------------------------------------------

    def test_a_client_that_reads_late_gets_everything(
        self, caller: Caller, receiver: ReceiverThread
    ) -> None:
        count = 20_000
        accepted: list[bool] = []

        def flood(peer: Peer, frames: Sequence[Buffer]) -> None:
            accepted.extend(peer.send([b"%1000d" % number]) for number in range(count))

        receiver.answer = flood
        caller.send(b"go")
        receiver.until(lambda: receiver.messages)
        receiver.call(lambda: None)
        caller.until(lambda: len(caller.messages) == count)
        assert all(accepted)
        assert [int(frames[0]) for frames in caller.messages] == list(range(count))

    def test_a_client_that_never_reads_is_dropped_and_no_other(
        self, receiver: ReceiverThread, tmp_path: Path
    ) -> None:
        limits = Limits(credit_bytes=1 << 20)
        transport = self.make_transport()
        listener = receiver.listen(transport, self.free_address(tmp_path), limits)
        with self.call(listener) as deaf, self.call(listener) as other:
            deaf.send(b"deaf")
            other.ask(b"first")
            receiver.until(lambda: len(receiver.messages) == 2)
            peer = next(peer for peer, frames in receiver.messages if frames == [b"deaf"])
            chunk = bytes(64 << 10)
            sent = 0
            while receiver.call(lambda: peer.send([chunk])):
                sent += len(chunk)
                assert sent < 64 << 20
            receiver.until(lambda: receiver.gone)
            assert receiver.gone == [peer]
            assert not receiver.call(lambda: peer.send([b"more"]))
            assert other.ask(b"second") == [b"second"]
            deaf.until(lambda: deaf.events[-1] == "disconnected")

    def test_a_broker_that_stands_still_makes_its_clients_wait(
        self, receiver: ReceiverThread, tmp_path: Path
    ) -> None:
        limits = Limits(credit_bytes=1 << 20)
        transport = self.make_transport()
        listener = receiver.listen(transport, self.free_address(tmp_path), limits)
        receiver.answer = lambda peer, frames: None
        with self.call(listener) as caller:
            release = receiver.hold()
            sent = 0
            refused_in_a_row = 0
            while refused_in_a_row < 5:
                if caller.channel.send([b"%65536d" % sent]):
                    sent += 1
                    refused_in_a_row = 0
                    assert sent < 1_000
                else:
                    refused_in_a_row += 1
                    caller.channel.wait(0.02)
            release()
            caller.send(b"%65536d" % sent)
            caller.until(lambda: len(receiver.messages) == sent + 1)
            assert [int(frames[0]) for _, frames in receiver.messages] == list(range(sent + 1))

    @pytest.mark.parametrize("frames", [[b"head", bytes(70_000)], [b"x"] * 17])
    def test_what_exceeds_the_limits_ends_the_connection(
        self, receiver: ReceiverThread, tmp_path: Path, frames: list[bytes]
    ) -> None:
        limits = Limits(frame_bytes=65_536, frames=16)
        transport = self.make_transport()
        listener = receiver.listen(transport, self.free_address(tmp_path), limits)
        with self.call(listener) as bad, self.call(listener) as good:
            bad.ask(b"fine")
            bad.channel.send(frames)
            bad.until(lambda: bad.events[-1] == "disconnected")
            receiver.until(lambda: receiver.gone)
            assert receiver.gone == [receiver.messages[0][0]]
            assert good.ask(bytes(65_536)) == [bytes(65_536)]
            assert [len(got) for _, got in receiver.messages] == [1, 1]

    # --- coming and going -----------------------------------------------------------------------

    def test_a_client_that_leaves_is_lost_once(
        self, caller: Caller, listener: Listener, receiver: ReceiverThread
    ) -> None:
        with self.call(listener) as leaving:
            leaving.ask(b"leaving")
        caller.ask(b"staying")
        receiver.until(lambda: receiver.gone)
        peer = receiver.messages[0][0]
        assert receiver.gone == [peer]
        assert not receiver.call(lambda: peer.send([b"too late"]))
        assert caller.ask(b"still here") == [b"still here"]
        assert receiver.gone == [peer]

    def test_a_peer_can_be_dropped(self, caller: Caller, receiver: ReceiverThread) -> None:
        def refuse(peer: Peer, frames: Sequence[Buffer]) -> None:
            assert peer.send([b"no"])
            peer.close()
            assert not peer.send([b"more"])

        receiver.answer = refuse
        assert caller.ask(b"hello") == [b"no"]
        caller.until(lambda: caller.events == ["connected", "disconnected"])
        assert not caller.channel.send([b"anybody?"])
        receiver.until(lambda: receiver.gone)
        assert receiver.gone == [receiver.messages[0][0]]
        assert len(receiver.messages) == 1

    def test_closing_flushes(
        self, caller: Caller, listener: Listener, receiver: ReceiverThread
    ) -> None:
        def flood(peer: Peer, frames: Sequence[Buffer]) -> None:
            for number in range(200):
                assert peer.send([b"%65536d" % number])

        receiver.answer = flood
        caller.send(b"go")
        receiver.until(lambda: receiver.messages)
        closing = threading.Thread(target=lambda: receiver.run(listener.close()))
        closing.start()
        caller.until(lambda: "disconnected" in caller.events)
        closing.join()
        caller.take()
        assert [int(frames[0]) for frames in caller.messages] == list(range(200))

    def test_the_end_of_the_listener_is_told(
        self, caller: Caller, listener: Listener, receiver: ReceiverThread
    ) -> None:
        caller.ask(b"hello")
        receiver.run(listener.close())
        caller.until(lambda: caller.events == ["connected", "disconnected"])
        peer = receiver.messages[0][0]
        assert not receiver.call(lambda: peer.send([b"anybody?"]))
        receiver.run(listener.close())

    def test_an_address_can_be_used_again(
        self, caller: Caller, listener: Listener, receiver: ReceiverThread
    ) -> None:
        caller.ask(b"hello")
        receiver.run(listener.close())
        caller.until(lambda: "disconnected" in caller.events)
        again = receiver.listen(self.make_transport(), listener.address)
        assert again.address == listener.address
        with self.call(again) as other:
            assert other.ask(b"again") == [b"again"]
        assert not caller.channel.send([b"the old one stays dead"])

    def test_nobody_there(self, listener: Listener, receiver: ReceiverThread) -> None:
        receiver.run(listener.close())
        with Caller(self.connect(listener.address, Limits())) as caller:
            assert not caller.channel.send([b"anybody?"])
            caller.until(lambda: caller.events, patience_s=3.0)
            assert caller.events == ["refused"]
            assert listener.address in caller.sentences[0]
            assert not caller.channel.send([b"anybody?"])

    def test_a_closed_channel_is_quiet(self, listener: Listener) -> None:
        caller = self.call(listener)
        for _ in range(2):
            caller.channel.close()
        assert not caller.channel.send([b"x"])
        assert caller.channel.receive() == []
        assert caller.channel.events() == []
        assert caller.channel.fileno() == -1
        caller.channel.wait(PATIENCE_S)

    def test_an_address_in_use(self, listener: Listener, receiver: ReceiverThread) -> None:
        with pytest.raises(ConfigError, match="in use.* choose") as refused:
            receiver.listen(self.make_transport(), listener.address)
        assert listener.address in str(refused.value)
        with self.call(listener) as caller:
            assert caller.ask(b"unharmed") == [b"unharmed"]

    def test_no_address(self, receiver: ReceiverThread) -> None:
        for address in self.bad_addresses:
            with pytest.raises(ConfigError, match="write"):
                receiver.listen(self.make_transport(), address)
            with pytest.raises(ConfigError, match="write"):
                self.connect(address, Limits())


_PAUSE_S = 0.05
