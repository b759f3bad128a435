"""After which silence a connection's other end counts as vanished. TCP finds out by itself: the
protocols above need no heartbeats for that."""

from __future__ import annotations

import socket
from typing import Final

IDLE_S: Final = 5
INTERVAL_S: Final = 5
COUNT: Final = 3
"""After 5 s of silence three questions, 5 s apart."""


def keep_alive(connection: socket.socket) -> None:
    """Let the system ask on this TCP connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, COUNT)
