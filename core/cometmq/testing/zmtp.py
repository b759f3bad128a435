"""A ZeroMQ peer made by hand over a bare socket: it can say what no ZeroMQ library would."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Sequence
from typing import Any, Self

import msgspec

from cometmq import protocol
from cometmq.environment import Buffer
from cometmq.protocol import Hello, Operation, Status

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4
_names = itertools.count(1)


def frame(content: Buffer, *, more: bool = False, command: bool = False) -> bytes:
    """One frame as it lies on the wire."""
    flags = (_MORE if more else 0) | (_COMMAND if command else 0)
    size = len(content)
    if size < 256:
        return bytes([flags, size]) + bytes(content)
    return struct.pack(">BQ", flags | _LONG, size) + bytes(content)


def message(frames: Sequence[Buffer]) -> bytes:
    """A whole message as it lies on the wire."""
    last = len(frames) - 1
    return b"".join(frame(content, more=at < last) for at, content in enumerate(frames))


def request(request_id: int, operation: int, header: msgspec.Struct, *body: Buffer) -> bytes:
    """A request as it lies on the wire."""
    return message(protocol.pack(request_id, operation, header, body))


def ready(kind: bytes = b"DEALER", routing_id: bytes = b"") -> bytes:
    """The command that ends a handshake."""
    fields = ((b"Socket-Type", kind), (b"Identity", routing_id))
    packed = [bytes([len(k)]) + k + struct.pack(">I", len(v)) + v for k, v in fields]
    return frame(b"\x05READY" + b"".join(packed), command=True)


class ZmtpPeer:
    """One TCP connection. `send` puts bytes on the wire as they are; `read_message` reads what a
    broker answers. A context manager: closed at the end."""

    def __init__(self, address: str, timeout_s: float = 10.0) -> None:
        """Connect to `tcp://HOST:PORT` and say nothing. Raises OSError."""
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._read = b""

    def shake_hands(self, routing_id: bytes = b"") -> Self:
        """Become a DEALER of that routing id."""
        self.send(GREETING)
        self._take(len(GREETING))
        self.send(ready(routing_id=routing_id))
        self._frame()
        return self

    def say_hello(self, client_id: str = "") -> Self:
        """Open a session. Raises AssertionError if the broker refuses."""
        hello = Hello(
            protocol.PROTOCOL_MIN, protocol.PROTOCOL_MAX, client_id or f"zmtp-{next(_names)}"
        )
        status, header = self.ask(Operation.HELLO, hello)
        assert status == Status.OK, header
        return self

    def ask(self, operation: int, header: msgspec.Struct, *body: Buffer) -> tuple[Status, Any]:
        """Send a request and read the next reply: its status and header."""
        self.send(request(1, operation, header, *body))
        _, code, reply, _ = protocol.unpack(self.read_message())
        kind = protocol.Failure if code != Status.OK else protocol.REPLIES[operation]
        return Status(code), protocol.decode(kind, reply)

    def send(self, data: Buffer) -> None:
        """Raises OSError once the other side has closed, TimeoutError if it reads nothing."""
        self.socket.sendall(data)

    def read_message(self) -> list[bytes]:
        """The frames of the next message; ZeroMQ's pings are answered on the way. Raises
        ConnectionError when the other side has closed."""
        frames: list[bytes] = []
        while True:
            flags, content = self._frame()
            if flags & _COMMAND:
                if content.startswith(b"\x04PING"):
                    self.send(frame(b"\x04PONG" + content[7:], command=True))
                continue
            frames.append(content)
            if not flags & _MORE:
                return frames

    def drain(self, seconds: float) -> int:
        """Read and throw away for so long, or until the other side closes; how many bytes."""
        self.socket.settimeout(seconds)
        size = 0
        try:
            while data := self.socket.recv(1 << 16):
                size += len(data)
        except (TimeoutError, ConnectionError):
            return size
        return size

    def ended(self, timeout_s: float = 10.0) -> bool:
        """Whether the other side closes in time; what it sends before is thrown away."""
        self.socket.settimeout(timeout_s)
        try:
            while self.socket.recv(1 << 16):
                pass  # what it said before it closed
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Close without a word."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _frame(self) -> tuple[int, bytes]:
        flags = self._take(1)[0]
        if flags & _LONG:
            (size,) = struct.unpack(">Q", self._take(8))
        else:
            size = self._take(1)[0]
        return flags, self._take(size)

    def _take(self, size: int) -> bytes:
        while len(self._read) < size:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the other side closed")
            self._read += data
        taken, self._read = self._read[:size], self._read[size:]
        return taken
