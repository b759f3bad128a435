"""One client as the ROUTER sees it, with the replies that don't fit into its pipe yet."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import zmq

from cometmq.environment import Buffer
from cometmq_transports.zeromq.connections import Opened
from cometmq_transports.zeromq.frames import send_frames

_FIRST = zmq.NOBLOCK | zmq.SNDMORE


class Hub(Protocol):
    """What a peer needs of its listener."""

    credit_bytes: int

    def sent(self) -> None:
        """The socket was touched, which may have eaten the news of arrivals."""

    def blocked(self, peer: RouterPeer) -> None:
        """This peer has queued something."""

    def dropping(self, peer: RouterPeer, reason: str, delay_s: float = 0.0) -> None:
        """Nothing may pass from or to this peer any more; close its connection."""


class RouterPeer:
    """A `Peer` behind a ROUTER socket."""

    __slots__ = ("_hub", "_queue", "_queued_bytes", "_socket", "gone", "name", "opened", "route")

    def __init__(self, hub: Hub, socket: zmq.Socket[bytes], route: bytes) -> None:
        self._hub = hub
        self._socket = socket
        self._queue: deque[Sequence[Buffer]] = deque()
        self._queued_bytes = 0
        self.route = route
        """Made by the ROUTER; never a name that the client chose."""
        self.opened: Opened | None = None
        self.name = ""
        self.gone = False
        """Nothing passes any more."""

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send, or queue while the client reads too slowly. False: it is gone, or dropped now
        because more than the credit is queued. The frames must not be changed afterwards."""
        if self.gone:
            return False
        if not self._queue and self._transmit(frames):
            self._hub.sent()
            return True
        if self.gone:
            return False
        size = sum(map(len, frames))
        if self._queue and self._queued_bytes + size > self._hub.credit_bytes:
            self._hub.dropping(self, "too_slow")
            return False
        self._queue.append(frames)
        self._queued_bytes += size
        self._hub.blocked(self)
        return True

    def close(self) -> None:
        """Take nothing more from this peer; what was sent to it gets a moment to leave."""
        if not self.gone:
            self._hub.dropping(self, "closed", 0.2)

    @property
    def waiting(self) -> bool:
        """Whether something is queued."""
        return bool(self._queue)

    def flush(self) -> bool:
        """Send what is queued, as far as there is room. True if something went."""
        went = False
        while self._queue and self._transmit(self._queue[0]):
            self._queued_bytes -= sum(map(len, self._queue.popleft()))
            went = True
        return went

    def discard(self) -> None:
        """Forget what is queued and let nothing pass."""
        self.gone = True
        self._queue.clear()
        self._queued_bytes = 0

    def _transmit(self, frames: Sequence[Buffer]) -> bool:
        """False: no room now, or the peer is gone (then it is `gone`)."""
        try:
            self._socket.send(self.route, _FIRST)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._hub.dropping(self, "unreachable")
            return False
        # The ROUTER has chosen the pipe and found room: the frames can't fail any more.
        send_frames(self._socket, frames)
        return True
