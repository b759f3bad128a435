"""The client's own ZMTP end: the contract against both listeners, and what only it can show."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from cometmq import Message, Producer
from cometmq.environment import Buffer
from cometmq.interfaces import Channel, Limits, Transport
from cometmq.native import Received
from cometmq.testing import EmbeddedBroker, zmtp
from cometmq.testing.transport_contract import TransportContract
from cometmq.testing.transport_ends import PATIENCE_S, Caller, ReceiverThread
from cometmq.testing.zmtp_server import ZmtpServer
from cometmq_transports.zeromq import ZeromqOptions, ZeromqTransport
from cometmq_transports.zmtp import ZmtpOptions, ZmtpTransport, channel, connect
from cometmq_transports.zmtp.decoder import Decoder


class TestTcp(TransportContract):
    bad_addresses = (*TransportContract.bad_addresses, "tcp://127.0.0.1", "tcp://127.0.0.1:seven")

    def make_transport(self) -> Transport:
        return ZmtpTransport(ZmtpOptions())

    def free_address(self, folder: Path) -> str:
        return "tcp://127.0.0.1:0"

    def connect(self, address: str, limits: Limits) -> Channel:
        return connect(address, limits)


class TestIpc(TestTcp):
    @pytest.fixture
    def tmp_path(self, folder: Path) -> Path:
        return folder

    def free_address(self, folder: Path) -> str:
        return f"ipc://{folder}/broker.sock"


class TestTcpToZeromq(TestTcp):
    def make_transport(self) -> Transport:
        return ZeromqTransport(ZeromqOptions())


class TestIpcToZeromq(TestIpc):
    def make_transport(self) -> Transport:
        return ZeromqTransport(ZeromqOptions())


@pytest.fixture
def server() -> Iterator[ZmtpServer]:
    with ZmtpServer(connect) as server:
        yield server


def readable(channel: Channel) -> bool:
    """Whether a loop that watches its descriptor would be told within a second."""
    return bool(select.select([channel.fileno()], [], [], 1.0)[0])


# --- coming -----------------------------------------------------------------------------------


def test_a_handshake_in_single_bytes(server: ZmtpServer) -> None:
    for number, byte in enumerate(zmtp.GREETING + zmtp.ready(b"ROUTER")):
        assert server.caller.events == [], number
        server.say(bytes([byte]))
        server.caller.take()
    server.caller.connected()
    assert server.caller.sentences == [f"connected to {server.address}"]


def test_what_comes_with_the_handshake_comes_after_its_news(server: ZmtpServer) -> None:
    server.say(zmtp.GREETING + zmtp.ready(b"ROUTER") + zmtp.message([b"a"]) + zmtp.message([b"b"]))
    link = server.caller.channel
    while not (events := link.events()):
        assert link.receive() == []
        link.wait(PATIENCE_S)
    assert events == [("connected", f"connected to {server.address}")]
    link.wait(0.0)
    assert link.receive() == [[b"a"], [b"b"]]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        zmtp.GREETING + zmtp.ready(b"DEALER"),
        zmtp.GREETING + zmtp.frame(b"a message before the handshake"),
        zmtp.GREETING.replace(b"NULL", b"PLAIN"),
    ],
)
def test_what_is_no_broker_fails_the_handshake(server: ZmtpServer, answer: bytes) -> None:
    server.say(answer)
    server.caller.until(lambda: server.caller.events)
    assert server.caller.events == ["handshake_failed"]
    assert server.caller.sentences == [
        f"{server.address} speaks something else; is it no broker, or full?"
    ]


def test_who_hangs_up_at_once_fails_the_handshake(server: ZmtpServer) -> None:
    server.socket.close()
    assert readable(server.caller.channel)
    server.caller.until(lambda: server.caller.events)
    assert server.caller.events == ["handshake_failed"]


def test_silence_fails_the_handshake(server: ZmtpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "HANDSHAKE_S", 0.05)
    link = server.caller.channel
    assert link.events() == []
    link.wait(PATIENCE_S)  # for the system: the greeting may leave
    link.wait(PATIENCE_S)  # for the end of the handshake's time
    while not (events := link.events()):
        link.wait(PATIENCE_S)
    assert events == [
        ("handshake_failed", f"{server.address} is silent; is it no broker, or full?")
    ]


def test_time_to_connect_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "CONNECT_S", 0.05)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        where = listening.getsockname()
        with socket.create_connection(where):  # the one that the queue has room for
            address = f"tcp://127.0.0.1:{where[1]}"
            with Caller(connect(address, Limits())) as caller:
                caller.until(lambda: caller.events)
                assert caller.events == ["refused"]
                assert caller.sentences == [f"nobody answers on {address}"]


def test_a_name_that_nobody_knows_is_refused_with_a_reason() -> None:
    with Caller(connect("tcp://no-such-host.invalid:7800", Limits())) as caller:
        caller.until(lambda: caller.events == ["unknown_host"])
        assert "no-such-host.invalid" in caller.sentences[0]


@pytest.mark.parametrize("made", [True, False])
def test_a_socket_file_that_nobody_has(folder: Path, made: bool) -> None:
    path = folder / "broker.sock"
    if made:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    with Caller(connect(f"ipc://{path}", Limits())) as caller:
        caller.until(lambda: caller.events)
        assert (caller.events, caller.sentences) == (
            ["refused"],
            [f"nobody listens on ipc://{path}"],
        )


def test_a_close_is_seen_though_a_child_has_the_descriptor(server: ZmtpServer) -> None:
    server.shake_hands()
    number = server.caller.channel._socket.fileno()  # type: ignore[attr-defined]
    inherited = os.dup(number)
    try:
        server.caller.channel.close()
        while server.socket.recv(4096):
            pass
    finally:
        os.close(inherited)


# --- messages ---------------------------------------------------------------------------------


def test_large_frames_are_not_copied_and_small_ones_pin_nothing(server: ZmtpServer) -> None:
    server.shake_hands()
    server.say(zmtp.message([b"head", bytes(1 << 20)]), zmtp.message([b"small"]))
    taken: list[Sequence[Buffer]] = []
    while len(taken) < 2:
        server.caller.channel.wait(PATIENCE_S)
        taken += server.caller.channel.receive()
    (head, body), (small,) = taken
    assert (type(head), type(body), type(small)) == (bytes, bytearray, bytes)
    assert body == bytes(1 << 20)


def test_pings_are_answered(server: ZmtpServer) -> None:
    server.shake_hands()
    server.say(zmtp.frame(b"\x04PING\0\0hello", command=True), zmtp.message([b"x"]))
    assert server.caller.collect(1) == [[b"x"]]
    server.hear(zmtp.frame(b"\x04PONGhello", command=True))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (zmtp.message([b"x"] * 17), "too_many_frames"),
        (b"\x02" + (4097).to_bytes(8, "big"), "frame_too_large"),
        (b"\x08\x00", "bad_frame"),
    ],
)
def test_who_breaks_the_protocol_is_left(content: bytes, fault: str) -> None:
    with ZmtpServer(connect, Limits(credit_bytes=4096)) as server:
        server.shake_hands()
        server.say(zmtp.message([bytes(4096)]) + content)
        server.caller.until(lambda: server.caller.events[-1] == "disconnected")
        assert server.caller.messages == [[bytes(4096)]]
        assert fault in server.caller.sentences[-1]
        assert not server.caller.channel.send([b"x"])
        with server.socket:
            try:
                while server.socket.recv(4096):
                    pass
            except ConnectionResetError:
                pass  # it had not read all of it


@pytest.mark.parametrize("end", [lambda it: it.shutdown(socket.SHUT_WR), socket.socket.close])
def test_what_came_before_the_end_comes_before_its_news(
    server: ZmtpServer, end: Callable[[socket.socket], object]
) -> None:
    """The end may be a reset: the server closes without having read all that was said to it."""
    server.shake_hands()
    server.say(b"".join(zmtp.message([b"%d" % number]) for number in range(100)))
    end(server.socket)
    link = server.caller.channel
    taken: list[bytes] = []
    while not (events := link.events()):
        link.wait(PATIENCE_S)
        taken += [bytes(frames[0]) for frames in link.receive(7)]
    assert [event for event, _ in events] == ["disconnected"]
    assert taken == [b"%d" % number for number in range(100)]


def test_a_send_into_a_broken_connection_loses_nothing_that_came(server: ZmtpServer) -> None:
    server.shake_hands()
    link = server.caller.channel
    server.say(zmtp.message([b"last words"]))
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    server.socket.close()
    while link.send([b"x"]):
        pass  # the reset is on its way
    server.caller.until(lambda: server.caller.events[-1] == "disconnected")
    assert server.caller.messages == [[b"last words"]]


# --- room and readiness -----------------------------------------------------------------------


def test_room_after_a_refusal_is_told(server: ZmtpServer) -> None:
    server.shake_hands()
    link = server.caller.channel
    sent = 0
    while True:  # the system's own buffers grow for a while
        if link.send([bytes(1 << 20)]):
            sent += 1
            assert sent < 64
        elif not readable(link):
            break
    wanted = sent * len(zmtp.message([bytes(1 << 20)]))
    read = told = 0
    server.socket.settimeout(0.02)
    while read < wanted:
        try:
            read += len(server.socket.recv(1 << 22))
        except TimeoutError:  # all that had left is here: the rest goes when the client is told
            told += readable(link)
            link.receive()
    assert told
    while not link.send([b"one more"]):
        link.wait(PATIENCE_S)
    assert not select.select([link.fileno()], [], [], 0.05)[0]


def test_the_descriptor_tells_of_messages_and_of_the_end(server: ZmtpServer) -> None:
    server.shake_hands()
    link = server.caller.channel
    assert not select.select([link.fileno()], [], [], 0.05)[0]
    server.say(zmtp.message([b"x"]))
    assert readable(link)
    assert link.receive() == [[b"x"]]
    server.socket.close()
    assert readable(link)
    server.caller.until(lambda: server.caller.events[-1] == "disconnected")
    assert not select.select([link.fileno()], [], [], 0.05)[0]


def test_an_answer_is_never_missed_after_a_send(server: ZmtpServer) -> None:
    """The call of `receive` that passes without asking is made up for."""
    server.shake_hands()
    link = server.caller.channel
    for _ in range(50):
        assert link.send([b"x"])
        server.say(zmtp.message([b"answer"]))
        assert readable(link)
        for _ in range(2):
            messages = link.receive()
            if messages:
                break
        assert messages == [[b"answer"]]


@pytest.mark.parametrize("ending", [lambda link: link.close(), lambda link: None])
def test_descriptors_are_given_back(ending: Callable[[Channel], object]) -> None:
    with ReceiverThread() as receiver:
        listener = receiver.listen(ZmtpTransport(ZmtpOptions()), "tcp://127.0.0.1:0")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            with Caller(connect(listener.address, Limits())).connected() as caller:
                caller.ask(b"hello")
                ending(caller.channel)
        receiver.until(lambda: len(receiver.gone) == 20)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_lone_send_asks_for_nothing_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the client's own thread, which looks now and then."""
    sends = 300
    asked: list[int] = []
    receive_into, receive = channel.ZmtpChannel._receive_into, Decoder.receive

    def counted(link: channel.ZmtpChannel, buffers: list[memoryview]) -> int:
        asked.append(receive_into(link, buffers))
        return asked[-1]

    def counted_too(decoder: Decoder, descriptor: int, most: int) -> Received | None:
        found = receive(decoder, descriptor, most)
        asked.append(0 if found is None else found[-1])
        return found

    with (
        EmbeddedBroker(listen="tcp://127.0.0.1:0") as broker,
        Producer(broker.address) as producer,
    ):
        producer.send(Message("orders", b"the first makes the topic"))
        monkeypatch.setattr(channel.ZmtpChannel, "_receive_into", counted)
        monkeypatch.setattr(Decoder, "receive", counted_too)
        for number in range(sends):
            producer.send(Message("orders", b"%d" % number))
    assert sum(size > 0 for size in asked) >= sends
    assert sum(size == 0 for size in asked) <= sends // 4
