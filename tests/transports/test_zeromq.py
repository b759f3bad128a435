"""The transports that ZeroMQ's clients connect to: the contract over TCP and over IPC, and what
only they can show. Each broker's end is tried: that of ZeroMQ, and our own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.errors import ConfigError
from cometmq.interfaces import Channel, Limits, Transport
from cometmq.testing.process import BrokerProcess, run_mq
from cometmq.testing.transport_contract import TransportContract
from cometmq.testing.transport_ends import Caller, ReceiverThread
from cometmq_transports.zeromq import ZeromqOptions, ZeromqPlugin, ZeromqTransport, connect
from cometmq_transports.zmtp import ZmtpOptions, ZmtpPlugin, ZmtpTransport


def zeromq() -> Transport:
    return ZeromqTransport(ZeromqOptions())


def zmtp() -> Transport:
    return ZmtpTransport(ZmtpOptions())


@pytest.fixture(params=[zeromq, zmtp])
def transport(request: pytest.FixtureRequest) -> Transport:
    made: Transport = request.param()
    return made


class TestTcp(TransportContract):
    bad_addresses = (
        *TransportContract.bad_addresses,
        "tcp://127.0.0.1",
        "tcp://:7800",
        "tcp://127.0.0.1:seven",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:-1",
        "tcp://127.0.0.1:7800/path",
        "tcp://::1:7800",
        "tcp://[::1:7800",
    )

    def make_transport(self) -> Transport:
        return zeromq()

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


class TestSpinning(TestTcp):
    """The same while the loop looks for the next request before it sleeps."""

    def make_transport(self) -> Transport:
        return ZeromqTransport(ZeromqOptions(spin_us=200))


class TestZmtpTcp(TestTcp):
    def make_transport(self) -> Transport:
        return zmtp()


class TestZmtpIpc(TestIpc):
    def make_transport(self) -> Transport:
        return zmtp()


class TestZmtpSpinning(TestTcp):
    def make_transport(self) -> Transport:
        return ZmtpTransport(ZmtpOptions(spin_us=200))


def test_port_zero_becomes_a_real_one(transport: Transport) -> None:
    with ReceiverThread() as receiver:
        listener = receiver.listen(transport, "tcp://localhost:0")
        host, _, port = listener.address.removeprefix("tcp://").rpartition(":")
        assert host == "localhost"
        assert int(port) > 0
        with Caller(connect(listener.address, Limits())).connected() as caller:
            assert caller.ask(b"hello") == [b"hello"]
            assert receiver.messages[0][0].name.startswith("127.0.0.1:")


def test_a_name_that_nobody_knows_is_refused_with_a_reason() -> None:
    with Caller(connect("tcp://no-such-host.invalid:7800", Limits())) as caller:
        assert not caller.channel.send([b"hello"])
        caller.until(lambda: caller.events == ["unknown_host"])
        assert "no-such-host.invalid" in caller.sentences[0]
        assert caller.channel.receive() == []
        caller.channel.wait(0.01)
    assert caller.channel.fileno() == -1


def test_what_is_no_broker_fails_the_handshake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with Caller(connect(address, Limits())) as caller:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            caller.until(lambda: caller.events)
            assert caller.events == ["handshake_failed"]
            assert address in caller.sentences[0]


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("tcp://192.0.2.1:7800", "no interface"),
        ("tcp://no-such-host.invalid:7800", "check the address"),
        ("ipc:///no/such/folder/broker.sock", "folder does not exist"),
        ("ipc:///" + "long/" * 30, "107 bytes"),
    ],
)
def test_why_an_address_can_not_be_listened_on(
    transport: Transport, address: str, why: str
) -> None:
    with ReceiverThread() as receiver:
        with pytest.raises(ConfigError, match=why) as refused:
            receiver.listen(transport, address)
        assert address in str(refused.value)


def test_a_file_is_not_replaced_by_a_socket(transport: Transport, folder: Path) -> None:
    path = folder / "precious"
    path.write_text("data")
    with ReceiverThread() as receiver:
        with pytest.raises(ConfigError, match="a file lies there; choose another path"):
            receiver.listen(transport, f"ipc://{path}")
    assert path.read_text() == "data"


def test_a_socket_file_that_was_left_behind_is_taken_over(
    transport: Transport, folder: Path
) -> None:
    path = folder / "broker.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with ReceiverThread() as receiver:
        listener = receiver.listen(transport, f"ipc://{path}")
        with Caller(connect(listener.address, Limits())).connected() as caller:
            assert caller.ask(b"hello") == [b"hello"]
            assert receiver.messages[0][0].name.endswith(f"(process {os.getpid()})")


def test_a_socket_file_goes_with_its_listener(folder: Path) -> None:
    path = folder / "broker.sock"
    with ReceiverThread() as receiver:
        receiver.listen(zmtp(), f"ipc://{path}")
        assert path.exists()
    assert not path.exists()


def test_a_socket_file_of_somebody_else_is_left_alone(folder: Path) -> None:
    """Whoever took the place while we listened keeps it."""
    path = folder / "broker.sock"
    with ReceiverThread() as receiver:
        receiver.listen(zmtp(), f"ipc://{path}")
        path.unlink()
        path.write_text("data")
    assert path.read_text() == "data"


def test_a_name_without_a_file() -> None:
    with ReceiverThread() as receiver:
        listener = receiver.listen(zmtp(), f"ipc://@mq-test-{os.getpid()}")
        with Caller(connect(listener.address, Limits())).connected() as caller:
            assert caller.ask(b"hello") == [b"hello"]


def test_an_address_of_the_sixth_version(transport: Transport) -> None:
    with ReceiverThread() as receiver:
        listener = receiver.listen(transport, "tcp://[::1]:0")
        with Caller(connect(listener.address, Limits())).connected() as caller:
            assert caller.ask(b"hello") == [b"hello"]
            assert receiver.messages[0][0].name.startswith("[::1]:")


@pytest.mark.parametrize("module", ["zeromq", "zmtp"])
def test_a_forked_child_leaves_its_parents_connection_alone(
    tmp_path: Path, transport: Transport, module: str
) -> None:
    """In a process of its own: a fork of this one would copy other tests' threads and locks."""
    script = tmp_path / "fork.py"
    script.write_text(FORK.replace("MODULE", module))
    with ReceiverThread() as receiver:
        listener = receiver.listen(transport, "tcp://127.0.0.1:0")
        command = [sys.executable, "-W", "error", str(script), listener.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        receiver.until(lambda: len(receiver.gone) == 2)
    said = [frames for _, frames in receiver.messages]
    assert said == [[b"parent"], [b"child"], [b"parent again"]]


FORK = """
import os, sys
from cometmq.interfaces import Limits
from cometmq.testing.transport_ends import Caller
from cometmq_transports.MODULE import connect

def call():
    return Caller(connect(sys.argv[1], Limits())).connected()

with call() as parent:
    parent.ask(b"parent")
    child = os.fork()
    if not child:
        parent.channel.close()
        with call() as own:
            own.ask(b"child")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    parent.ask(b"parent again")
"""


@pytest.mark.parametrize("plugin", [ZeromqPlugin(), ZmtpPlugin()], ids=["zeromq", "zmtp"])
def test_the_plugin_counts_what_it_drops(plugin: ZeromqPlugin | ZmtpPlugin) -> None:
    (transport,) = plugin.transports()
    with ReceiverThread() as receiver:
        listener = receiver.listen(transport, "tcp://127.0.0.1:0", Limits(frames=1))
        with Caller(connect(listener.address, Limits())).connected() as caller:
            caller.ask(b"hello")
            assert [(metric.name, metric.value) for metric in plugin.metrics()] == [
                (f"{plugin.name}_connections", 1)
            ]
            caller.send(b"one", b"too many")
            caller.until(lambda: "disconnected" in caller.events)
        receiver.until(lambda: receiver.gone)
        connections, dropped = plugin.metrics()
    assert connections.value == 0
    assert (dropped.name, dropped.value) == (f"{plugin.name}_dropped_total", 1)
    assert dropped.labels == {"address": listener.address, "reason": "too_many_frames"}


def test_without_its_library_all_else_works_and_whoever_wants_it_is_told_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zmq.py").write_text("raise ModuleNotFoundError('it is not here', name='zmq')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with BrokerProcess(tmp_path) as broker:
        run_mq("topic", "create", "t", address=broker.address).ok()
        run_mq("produce", "t", address=broker.address, text=b"line\n").ok()
        assert run_mq("consume", "t", address=broker.address).ok() == b"line\n"
    for command in (("run", "--data", str(tmp_path / "other")), ("plugins",)):
        done = run_mq(*command, "--plugins", "zeromq")
        assert done.code != 0 and "else pip install 'cometmq[zeromq]'; install what" in done.err
    assert b"zeromq" in run_mq("plugins").ok(), "it is listed all the same"
