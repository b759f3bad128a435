"""A broker's end of one ZMTP connection, made by hand, and the client's channel at the other."""

from __future__ import annotations

import socket
from typing import Self

from cometmq.interfaces import Connect, Limits
from cometmq.testing import zmtp
from cometmq.testing.transport_ends import PATIENCE_S, Caller


class ZmtpServer:
    """It says what it is told to, over one connection of a channel made by `connect`."""

    def __init__(self, connect: Connect, limits: Limits | None = None) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listening.getsockname()[1]}"
        self.caller = Caller(connect(self.address, limits or Limits()))
        self.socket, _ = self.listening.accept()
        self.socket.settimeout(PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.caller.channel.close()
        self.socket.close()
        self.listening.close()

    def say(self, *pieces: bytes) -> None:
        """Each piece for itself, so that they may arrive one by one."""
        for piece in pieces:
            self.socket.sendall(piece)

    def shake_hands(self) -> Self:
        """Be a broker as far as ZMTP goes; returns when the channel tells of the connection."""
        self.say(zmtp.GREETING, zmtp.ready(b"ROUTER"))
        self.caller.connected()
        return self

    def hear(self, end: bytes) -> bytes:
        """What the channel says up to `end`."""
        said = b""
        while not said.endswith(end):
            piece = self.socket.recv(4096)
            assert piece, f"it ended after {said!r}"
            said += piece
        return said
