"""The client's own ZMTP end: the contract against both listeners, and what only it can show."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.interfaces import Channel, Limits, Transport
from cometmq.testing.transport_contract import TransportContract
from cometmq_transports.zeromq import ZeromqOptions, ZeromqTransport
from cometmq_transports.zmtp import ZmtpOptions, ZmtpTransport, connect


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket, wherever pytest keeps its own."""
    with tempfile.TemporaryDirectory(prefix="mq-") as name:
        yield Path(name)


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
