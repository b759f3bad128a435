"""ZMTP 3.1 as it lies on the wire: greeting, commands, frames. Nothing here has a state.

The reference is ZeroMQ RFC 37. Security mechanism is NULL; the broker's end is a ROUTER, the
client's a DEALER.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

MORE: Final = 1
LONG: Final = 2
COMMAND: Final = 4
FLAGS_MAX: Final = MORE | LONG | COMMAND

GREETING_BYTES: Final = 64
GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
COMMAND_BYTES_MAX: Final = 4096
"""The longest command that is heard out; those of ZeroMQ have at most 300 bytes."""
LONG_HEADER: Final = struct.Struct(">BQ")

_LENGTH = struct.Struct(">I")
_MECHANISM = slice(12, 32)
_PING_HEAD_BYTES = 7
"""The name, and a time to live, which is ours to ignore: sessions have heartbeats of their own."""
_PING_CONTEXT_BYTES_MAX = 16


def greeting_fault(said: bytes) -> str:
    """The reason to refuse a greeting, as soon as its beginning shows one; empty if there is none
    so far."""
    if (said and said[0] != 0xFF) or (len(said) > 9 and not said[9] & 1):
        return "not_zmtp"
    if len(said) > 10 and said[10] < 3:
        return "old_protocol"
    if len(said) >= GREETING_BYTES and said[_MECHANISM].rstrip(b"\0") != b"NULL":
        return "other_mechanism"
    return ""


def header(size: int, flags: int = 0) -> bytes:
    """What precedes `size` bytes of content."""
    if size < 256:
        return bytes((flags, size))
    return LONG_HEADER.pack(flags | LONG, size)


def command(name: bytes, data: bytes) -> bytes:
    """A whole command."""
    content = bytes((len(name),)) + name + data
    return header(len(content), COMMAND) + content


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + _LENGTH.pack(len(value)) + value


class Side(NamedTuple):
    """One of the two ends, as the handshake tells them apart."""

    ready: bytes
    """The command that ends its own handshake."""
    others: frozenset[bytes]
    """Socket types that it talks to."""


def _ready(kind: bytes) -> bytes:
    return command(b"READY", _property(b"Socket-Type", kind) + _property(b"Identity", b""))


READY: Final = _ready(b"ROUTER")
BROKER: Final = Side(READY, frozenset((b"DEALER", b"REQ", b"ROUTER")))
CLIENT: Final = Side(_ready(b"DEALER"), frozenset((b"ROUTER",)))


def ready_fault(content: bytes, others: frozenset[bytes]) -> str:
    """The reason to refuse the command that has to end the other side's handshake, or nothing.
    What it calls itself is not looked at: nobody chooses a name here."""
    if not content.startswith(b"\x05READY"):
        return "bad_handshake"
    at, kind = 6, b""
    while at < len(content):
        name_end = at + 1 + content[at]
        value_at = name_end + _LENGTH.size
        if value_at > len(content):
            return "bad_handshake"
        end = value_at + _LENGTH.unpack_from(content, name_end)[0]
        if end > len(content):
            return "bad_handshake"
        if content[at + 1 : name_end].lower() == b"socket-type":
            kind = content[value_at:end]
        at = end
    return "" if kind in others else "wrong_socket_type"


def answer(content: bytes) -> bytes | None:
    """What to answer to a command between messages; nothing to most; None if none such may
    come."""
    if content.startswith(b"\x04PONG"):
        return b""
    context = content[_PING_HEAD_BYTES:]
    if (
        content.startswith(b"\x04PING")
        and len(content) >= _PING_HEAD_BYTES
        and len(context) <= _PING_CONTEXT_BYTES_MAX
    ):
        return command(b"PONG", context)
    return None
