"""What to call the other end of a connection, in logs and for `authenticate`."""

from __future__ import annotations

import socket
import struct
from typing import Any

_CREDENTIALS = struct.Struct("=3i")


def peer_name(connection: socket.socket, sockaddr: Any, address: str) -> str:
    """`HOST:PORT` of its `sockaddr`; over a Unix socket, where that says nothing, the listener's
    `address` and the number of the process. Raises OSError if the connection has ended."""
    if connection.family == socket.AF_UNIX:
        packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return f"{address} (process {_CREDENTIALS.unpack(packed)[0]})"
    host, port = sockaddr[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
