"""The client's end: one DEALER socket, which is one connection and never reconnects.

ZeroMQ would reconnect by itself, silently lose what sat in the dead connection, and send requests
before the hello of the new one. So a socket here lives as long as its connection, and its monitor
says how that ended.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import select
from collections.abc import Sequence
from typing import Final

import zmq

from cometmq.environment import Buffer
from cometmq.interfaces import Channel, ChannelEvent, Limits
from cometmq_transports.address import Endpoint, parse, resolve
from cometmq_transports.unreachable import UnreachableChannel
from cometmq_transports.zeromq.frames import ready, receive_frames, send_frames
from cometmq_transports.zeromq.keepalive import KEEPALIVE
from cometmq_transports.zeromq.monitor import HANDSHAKE_FAILED, open_monitor, read_event

CONNECT_MS = 3_000
HANDSHAKE_MS = 5_000
HWM: Final = 64
NEVER_MS = 1_000_000_000
"""For reconnecting: eleven days, since a channel ends with its connection. The value that means
"never", and IMMEDIATE as well, would make ZeroMQ throw away what was received but not yet read when
the connection ends, such as the last acks of a broker."""

_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | HANDSHAKE_FAILED
)
_SOCKETS_MAX = 65_535

_monitor_numbers = itertools.count()
_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """The context of this process. A forked child gets its own: the parent's has no I/O thread
    there, and would swallow everything without an error."""
    pid = os.getpid()
    found = _contexts.get(pid)
    if found is None:
        found = zmq.Context()
        found.set(zmq.MAX_SOCKETS, _SOCKETS_MAX)
        _contexts[pid] = found  # the parent's stays: ending it here would hang
    return found


def connect(address: str, limits: Limits) -> Channel:
    """Begin to connect to `tcp://HOST:PORT` or `ipc://PATH`; the channel's events tell how it went.

    A host name is resolved here, by the caller's thread. Replies are accepted up to
    `limits.credit_bytes` a frame. Raises ConfigError if the address is none.
    """
    endpoint = parse(address, listening=False)
    try:
        return DealerChannel(address, resolve(endpoint), limits)
    except OSError as error:
        why = f"the host of {address} can't be found ({error.strerror or error})"
        return UnreachableChannel(why, "unknown_host")


class DealerChannel:
    """A `Channel` over one DEALER socket."""

    def __init__(self, address: str, endpoint: Endpoint, limits: Limits) -> None:
        self._address = address
        self._pid = os.getpid()
        self._connected = False
        self._over = False
        self._frames_max = limits.frames
        self._socket: zmq.Socket[bytes] = context().socket(zmq.DEALER)
        self._set_up(endpoint, limits)
        self._monitor = open_monitor(self._socket, f"channel-{next(_monitor_numbers)}", _EVENTS)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._full = False
        self._wake_fd = -1
        self._epoll = select.epoll()
        self._epoll.register(self._socket.fileno(), select.EPOLLIN)
        self._epoll.register(self._monitor.fileno(), select.EPOLLIN)
        self._socket.connect(endpoint.text())

    def _set_up(self, endpoint: Endpoint, limits: Limits) -> None:
        settings = {
            zmq.RECONNECT_IVL: NEVER_MS,
            zmq.IMMEDIATE: 0,
            zmq.LINGER: 0,
            zmq.SNDHWM: HWM,
            zmq.RCVHWM: HWM,
            zmq.MAXMSGSIZE: limits.credit_bytes,
            zmq.CONNECT_TIMEOUT: CONNECT_MS,
            zmq.HANDSHAKE_IVL: HANDSHAKE_MS,
            **KEEPALIVE,
            zmq.IPV6: int(":" in endpoint.host),
        }
        for option, value in settings.items():
            self._socket.set(option, value)
        self._socket.copy_threshold = 0

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Hand one message over. False: `events` has not told of a connection, or has told of its
        end, or there is no room now. Large frames are not copied: no frame may be changed
        afterwards."""
        if self._over or not self._connected:
            return False
        try:
            send_frames(self._socket, frames)
        except zmq.Again:
            self._watch_room(True)
            return False
        self._watch_room(False)
        return True

    def _watch_room(self, full: bool) -> None:
        if full != self._full:
            self._full = full
            self._poller.modify(self._socket, zmq.POLLIN | zmq.POLLOUT if full else zmq.POLLIN)

    def receive(self, max_messages: int = 256) -> list[Sequence[Buffer]]:
        """Messages that are there now."""
        messages: list[Sequence[Buffer]] = []
        while len(messages) < max_messages and not self._socket.closed:
            if len(messages) == 1 and not ready(self._socket):
                break
            try:
                messages.append(receive_frames(self._socket, self._frames_max)[1])
            except zmq.Again:
                break
        return messages

    def events(self) -> list[tuple[ChannelEvent, str]]:
        """What happened since the last call: at most "connected", then one event that ends it."""
        happened: list[tuple[ChannelEvent, str]] = []
        while not self._monitor.closed and ready(self._monitor):
            kind, value = read_event(self._monitor)
            event = None if self._over else self._judge(kind, value)
            if event is not None:
                happened.append(event)
        return happened

    def _judge(self, kind: int, value: int) -> tuple[ChannelEvent, str]:
        if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._connected = True
            return "connected", f"connected to {self._address}"
        self._over = True
        if self._connected:
            return "disconnected", f"the connection to {self._address} ended"
        if kind & (HANDSHAKE_FAILED | zmq.EVENT_DISCONNECTED):
            silent = kind == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and value == errno.EAGAIN
            why = "is silent" if silent else "ended the connection or speaks something else"
            return "handshake_failed", f"{self._address} {why}; is it no broker, or full?"
        return "refused", f"nobody listens on {self._address}"

    def fileno(self) -> int:
        """Readable when messages, events or room to send may be there; -1 once closed.
        Edge-triggered: each call of `send` or `receive` may take the news of the others."""
        return -1 if self._epoll.closed else self._epoll.fileno()

    def wait(self, timeout_s: float, wake_fd: int = -1) -> None:
        """Block until a message, an event or (after a refused send) room is there, `wake_fd` is
        readable, or the time is over; it is rounded up to milliseconds."""
        if self._socket.closed:
            return
        if wake_fd != self._wake_fd:
            if self._wake_fd >= 0:
                self._poller.unregister(self._wake_fd)
            if wake_fd >= 0:
                self._poller.register(wake_fd, zmq.POLLIN)
            self._wake_fd = wake_fd
        self._poller.poll(math.ceil(max(0.0, timeout_s) * 1000))

    def close(self) -> None:
        """Close at once: what was sent and has not left is dropped. In a forked child only the
        child's descriptors are released."""
        self._over = True
        self._epoll.close()
        if os.getpid() == self._pid and not self._socket.closed:
            self._socket.disable_monitor()
            self._monitor.close()
            self._socket.close()
