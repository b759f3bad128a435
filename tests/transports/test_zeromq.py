"""The ZeroMQ transport: the contract over TCP and over IPC, and what only it can show."""

from __future__ import annotations

from pathlib import Path

from cometmq.interfaces import Channel, Limits, Transport
from cometmq.testing.transport_contract import TransportContract
from cometmq_transports.zeromq import ZeromqOptions, ZeromqTransport, connect


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
        return ZeromqTransport(ZeromqOptions())

    def free_address(self, folder: Path) -> str:
        return "tcp://127.0.0.1:0"

    def connect(self, address: str, limits: Limits) -> Channel:
        return connect(address, limits)


class TestIpc(TestTcp):
    def free_address(self, folder: Path) -> str:
        return f"ipc://{folder}/broker.sock"


class TestSpinning(TestTcp):
    """The same while the loop looks for the next request before it sleeps."""

    def make_transport(self) -> Transport:
        return ZeromqTransport(ZeromqOptions(spin_us=200))
