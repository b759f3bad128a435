"""The broker's own ZMTP end: the contract over TCP and over IPC, with ZeroMQ's clients."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.errors import ConfigError
from cometmq.interfaces import Channel, Limits, Transport
from cometmq.testing.transport_contract import TransportContract
from cometmq.testing.transport_ends import Caller, ReceiverThread
from cometmq_transports.zeromq import connect
from cometmq_transports.zmtp import ZmtpOptions, ZmtpPlugin, ZmtpTransport


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket, wherever pytest keeps its own."""
    with tempfile.TemporaryDirectory(prefix="mq-") as name:
        yield Path(name)


class TestTcp(TransportContract):
    bad_addresses = (
        *TransportContract.bad_addresses,
        "tcp://127.0.0.1",
        "tcp://:7800",
        "tcp://127.0.0.1:seven",
        "tcp://127.0.0.1:65536",
    )

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


class TestSpinning(TestTcp):
    """The same while the loop looks for the next request before it sleeps."""

    def make_transport(self) -> Transport:
        return ZmtpTransport(ZmtpOptions(spin_us=200))
