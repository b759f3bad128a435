"""One connection: its socket, what came half, what waits to be sent. To the broker it is a `Peer`.

What is sent while the listener hands up several messages leaves together at the end; at any other
time it leaves at once. A client whose replies pile up is not read until they have left.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from select import EPOLLIN, EPOLLOUT
from typing import Protocol

from cometmq.environment import Buffer, Timer
from cometmq.native import Received
from cometmq_transports.zmtp.decoder import Decoder, Message
from cometmq_transports.zmtp.outbox import Outbox, gather
from cometmq_transports.zmtp.wire import GREETING


class Hub(Protocol):
    """What a connection needs of its listener."""

    credit_bytes: int
    scratch: memoryview

    def wants_to_send(self, connection: Connection) -> bool:
        """True: the listener is going to call `push` by itself, soon."""

    def changed(self, connection: Connection) -> None:
        """`interest` may be another one."""

    def drop(self, connection: Connection, reason: str = "") -> None:
        """Close it now; count the reason, if it is ours."""

    def retire(self, connection: Connection) -> None:
        """Close it once what was sent to it had a moment to leave."""


class Connection:
    """A `Peer` over one socket, which it owns."""

    __slots__ = (
        "_decoder",
        "_hub",
        "_outbox",
        "_shut",
        "_socket",
        "blocked",
        "counted_bytes",
        "gone",
        "heard",
        "interest",
        "moved_s",
        "name",
        "timer",
    )

    def __init__(self, hub: Hub, connected: socket.socket, name: str, decoder: Decoder) -> None:
        self._hub = hub
        self._socket = connected
        self._decoder = decoder
        self._outbox = Outbox()
        self._shut = False
        self.name = name
        self.interest = EPOLLIN
        """What the listener watches it for."""
        self.blocked = False
        """The system takes no more now."""
        self.gone = False
        """Nothing passes any more between it and the broker."""
        self.heard = False
        """A message of it was handed up."""
        self.counted_bytes = 0
        self.moved_s = 0.0
        self.timer: Timer | None = None
        """Ends it, unless it makes progress."""

    def fileno(self) -> int:
        """Its descriptor; -1 once closed."""
        return self._socket.fileno()

    # --- what the broker calls (Peer) -----------------------------------------------------------

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send, or queue while the client reads too slowly. False: it is gone, or dropped now
        because more than the credit is queued. The frames must not be changed afterwards."""
        if self.gone:
            return False
        if self._outbox.cost_bytes and self._over_credit(frames):
            self.flush()
            if self._over_credit(frames):
                self._hub.drop(self, "too_slow")
            if self.gone:
                return False
        if self._hub.wants_to_send(self):
            self._outbox.put(frames)
        elif self._outbox.cost_bytes:
            self._outbox.put(frames)
            self.push()
        else:
            self._send_now(gather(frames))
        return not self.gone

    def _send_now(self, buffers: list[Buffer]) -> None:
        """Nothing waits before it: only what the system doesn't take sees the outbox."""
        try:
            size = self._socket.sendmsg(buffers)
        except BlockingIOError:
            size = 0
        except OSError:
            self._hub.drop(self)  # it left
            return
        if size < sum(map(len, buffers)):
            for data in buffers:
                self._outbox.put_raw(data)
            self._outbox.sent(size)
            self.flush()

    def _over_credit(self, frames: Sequence[Buffer]) -> bool:
        """Whether this can't wait behind what waits already. Alone it may be of any size."""
        outbox = self._outbox
        size = sum(map(len, frames))
        return bool(outbox) and outbox.cost_bytes + size > self._hub.credit_bytes

    def close(self) -> None:
        """Take nothing more from this client; what was sent to it gets a moment to leave."""
        if not self.gone:
            self._hub.retire(self)

    # --- what the listener calls ----------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the handshake is over."""
        return self._decoder.ready

    @property
    def pending(self) -> bool:
        """Whether there is more to hand up without reading."""
        return self._decoder.pending and not self.gone

    @property
    def holds(self) -> bool:
        """Whether anything came that is not handed up yet; so it is if it is `pending`."""
        return self._decoder.holds and not self.gone

    @property
    def held_bytes(self) -> int:
        """What it takes of our memory: unfinished messages, unread replies."""
        return self._decoder.held_bytes + self._outbox.cost_bytes

    @property
    def paused(self) -> bool:
        """Whether its replies have piled up, so that it is not read."""
        return self._outbox.cost_bytes > self._hub.credit_bytes // 2

    def wanted(self) -> int:
        """What to watch it for now."""
        writable = EPOLLOUT if self.blocked else 0
        deaf = not self.gone and (self.paused or self._decoder.pending)
        return writable if deaf else writable | EPOLLIN

    def greet(self) -> None:
        """Say who we are."""
        self._outbox.put_raw(GREETING)
        self.flush()

    def looker(self, most_frames: int) -> Callable[[], Received | None] | None:
        """What finds something as soon as there is something to `read`, which is to be told of
        it. None: the listener has to ask the system."""
        if self.gone or self.paused or not self._decoder.receives:
            return None
        return self._decoder.receiver(self._socket.fileno(), most_frames)

    def read(
        self, most_frames: int, most_bytes: int, found: Received | None = None
    ) -> list[Message]:
        """Messages that are there, from about so many frames and bytes; the first bytes may be
        `found` already. At the end of what the client has to say, or at a fault, the connection
        is dropped; what is returned is good."""
        decoder = self._decoder
        last = decoder.seen + most_frames
        if found is None and decoder.receives:
            found = decoder.receive(self._socket.fileno(), most_frames)
            if found is None:
                return []
        ended = False
        if found is None:
            messages = decoder.more(most_frames) if decoder.pending else []
        else:
            messages, ended = decoder.received(found, most_frames), not found[-1]
            if not (ended or decoder.holds or decoder.replies or decoder.fault):
                return messages
        while not (ended or decoder.pending or decoder.fault) and most_bytes > 0:
            buffers = decoder.buffers(most_bytes)
            size = self._receive(buffers)
            if size <= 0:
                ended = size == 0
                break
            messages += decoder.came(size, max(1, last - decoder.seen))
            most_bytes -= size
            if size < len(buffers[0]) or size < sum(map(len, buffers)):
                break  # that was all, most likely; if not, the listener comes again
        if decoder.replies:
            for reply in decoder.replies:
                self._outbox.put_raw(reply)
            decoder.replies = []
            self.flush()
        if ended or decoder.fault:
            self._hub.drop(self, decoder.fault)
        return messages

    def discard(self) -> bool:
        """Read and throw away. False once the client has closed."""
        return self._receive([self._hub.scratch]) != 0

    def push(self) -> None:
        """Send what was put here, unless the system is known to take nothing."""
        if self.blocked:
            self._hub.changed(self)
        else:
            self.flush()

    def flush(self) -> None:
        """Send what the system takes."""
        outbox = self._outbox
        self.blocked = False
        while outbox.cost_bytes:
            buffers = outbox.gathered()
            try:
                size = self._socket.sendmsg(buffers)
            except BlockingIOError:
                self.blocked = True
                break
            except OSError:
                self._hub.drop(self)  # it left; whoever closes first is no failure
                return
            outbox.sent(size)
        if self.blocked or self.interest != EPOLLIN:
            self._hub.changed(self)

    def say_no_more(self) -> bool:
        """Tell the client that nothing follows, once all has left. True when that was told now."""
        if self._shut or self._outbox:
            return False
        self._shut = True
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._hub.drop(self)  # it left
            return False
        return True

    def end(self) -> None:
        """Close the socket and forget everything."""
        self.gone = True
        self._outbox.clear()
        self._decoder.forget()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._socket.close()

    def _receive(self, buffers: list[memoryview]) -> int:
        """Bytes received; 0 at the end, -1 if there is nothing now."""
        try:
            if len(buffers) == 1:
                return self._socket.recv_into(buffers[0])
            return self._socket.recvmsg_into(buffers)[0]
        except BlockingIOError:
            return -1
        except OSError:
            return 0  # reset: whatever it said before was read first
