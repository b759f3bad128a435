"""A socket's monitor: where ZeroMQ's I/O thread tells what happens to connections."""

from __future__ import annotations

import struct

import zmq

HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_EVENT = struct.Struct("=Hi")


def open_monitor(socket: zmq.Socket[bytes], name: str, events: int) -> zmq.Socket[bytes]:
    """A socket that gets these events of `socket`; `name` is one that no other monitor of the
    context has. It holds as many as come: a full one would block ZeroMQ's I/O thread."""
    monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
    monitor.set(zmq.RCVHWM, 0)
    monitor.set(zmq.LINGER, 0)
    socket.monitor(f"inproc://{name}", events)
    monitor.connect(f"inproc://{name}")
    return monitor


def read_event(monitor: zmq.Socket[bytes]) -> tuple[int, int]:
    """The next event and its value. Raises zmq.Again if there is none."""
    event, value = _EVENT.unpack(monitor.recv(zmq.NOBLOCK))
    monitor.recv(zmq.NOBLOCK)  # the address, which a descriptor tells better
    return event, value
