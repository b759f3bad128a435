"""The client's end: one socket, driven by whoever calls, without a thread of its own.

A lone request costs its caller two system calls and the wait between them. Of a message that the
system took in part the rest waits in the outbox, and leaves with the next calls of `receive` or
`send`; until then no other one is taken.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Sequence

import msgspec

from cometmq.environment import Buffer
from cometmq.interfaces import Channel, ChannelEvent, Limits
from cometmq_transports.address import Endpoint, parse, resolve
from cometmq_transports.keepalive import keep_alive
from cometmq_transports.unreachable import UnreachableChannel
from cometmq_transports.zmtp.decoder import SCRATCH_BYTES, Decoder, Message
from cometmq_transports.zmtp.outbox import GATHER_MAX, Outbox, gather
from cometmq_transports.zmtp.wire import CLIENT, GREETING

CONNECT_S = 3.0
HANDSHAKE_S = 5.0

_SYN_REPEATS = 1
"""The system gives up connecting by itself, 3 s after the first of two attempts."""
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
_NOBODY = frozenset((errno.ECONNREFUSED, errno.ENOENT))


def connect(address: str, limits: Limits) -> Channel:
    """Begin to connect to `tcp://HOST:PORT` or `ipc://PATH`; the channel's events tell how it went.

    A host name is resolved here, by the caller's thread. Replies are accepted up to
    `limits.credit_bytes` a frame. Raises ConfigError if the address is none.
    """
    endpoint = parse(address, listening=False)
    try:
        endpoint = resolve(endpoint)
        calling = _call(endpoint)
    except OSError as error:
        return UnreachableChannel(_unreachable(address, error))
    return ZmtpChannel(address, calling, limits)


def _call(endpoint: Endpoint) -> socket.socket:
    """A socket that is connected, or about to be. Raises OSError."""
    where: str | tuple[str, int] = endpoint.host
    family = socket.AF_UNIX
    if endpoint.scheme == "tcp":
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        where = endpoint.host, endpoint.port
    elif endpoint.host.startswith("@"):
        where = "\0" + endpoint.host[1:]
    calling = socket.socket(family, socket.SOCK_STREAM)
    try:
        calling.setblocking(False)
        if endpoint.scheme == "tcp":
            calling.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_SYNCNT"):
                calling.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, _SYN_REPEATS)
            keep_alive(calling)
        code = calling.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except BaseException:
        calling.close()
        raise
    return calling


def _unreachable(address: str, error: OSError) -> str:
    if error.errno in _NOBODY:
        return f"nobody listens on {address}"
    return f"{address}: {error.strerror or error}"


class ZmtpChannel:
    """A `Channel` over one socket, which it owns.

    `fileno` stays readable as long as there is something to do. It does not tell that the time to
    connect or to shake hands is over: `wait` returns then, and `events` tells it when called.
    """

    def __init__(self, address: str, calling: socket.socket, limits: Limits) -> None:
        self._address = address
        self._pid = os.getpid()
        self._socket = calling
        # A frame of the greatest size may have company in its message.
        credit = limits.credit_bytes
        mine = msgspec.structs.replace(limits, frame_bytes=credit, credit_bytes=2 * credit)
        self._decoder = Decoder(memoryview(bytearray(SCRATCH_BYTES)), mine, CLIENT)
        self._outbox = Outbox()
        self._outbox.put_raw(GREETING)
        self._connecting = True
        self._deadline_s = time.monotonic() + CONNECT_S
        self._ready = False
        self._ended = False
        self._quiet = False
        """A message has just left, so that its answer can't be there yet: one call of `receive`
        may pass without asking the system. If there is something, the descriptor tells."""
        self._last: tuple[ChannelEvent, str] | None = None
        """What ended it, until `events` tells."""
        self._wake_fd = -1
        self._interest = select.EPOLLIN | select.EPOLLOUT
        self._poll = select.poll()
        self._poll.register(calling, self._interest)
        self._epoll = select.epoll()
        self._epoll.register(calling, self._interest)

    # --- Channel --------------------------------------------------------------------------------

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Hand one message over. False: `events` has not told of a connection, or it has ended,
        or there is no room now. Large frames are not copied: none may be changed afterwards."""
        if not self._ready or self._ended:
            return False
        outbox = self._outbox
        if outbox.cost_bytes:
            self._flush()
            if outbox:
                return False
        buffers = gather(frames)
        size = self._transmit(buffers[:GATHER_MAX])
        if size < 0:
            return False  # `receive` finds the end, behind what came before it
        if size != sum(map(len, buffers)):
            for data in buffers:
                outbox.put_raw(data)
            outbox.sent(size)
            self._flush()
        self._quiet = True
        return True

    def receive(self, max_messages: int = 256) -> list[Message]:
        """Messages that are there now."""
        if not self._ready:
            return []
        if self._outbox.cost_bytes:
            self._flush()
        decoder = self._decoder
        if self._quiet and not decoder.pending:
            self._quiet = False
            return []
        messages = decoder.more(max_messages) if decoder.pending else []
        while not (self._ended or decoder.pending) and len(messages) < max_messages:
            buffers = decoder.buffers()
            size = self._receive_into(buffers)
            if size <= 0:
                break
            messages += decoder.came(size, max_messages - len(messages))
            if decoder.replies or decoder.fault:
                self._react()
            if size < sum(map(len, buffers)):
                break  # that was all, most likely; if not, the descriptor is still readable
        return messages

    def events(self) -> list[tuple[ChannelEvent, str]]:
        """What happened since the last call: at most "connected", then one event that ends it."""
        happened: list[tuple[ChannelEvent, str]] = []
        if self._ready and self._last is None:
            return happened
        if not (self._ready or self._ended):
            self._get_ready()
            if self._ready:
                happened.append(("connected", f"connected to {self._address}"))
        if self._last is not None and not self._decoder.pending:
            happened.append(self._last)
            self._last = None
            self._poll.unregister(self._socket)
            self._epoll.unregister(self._socket)
        return happened

    def fileno(self) -> int:
        """Readable while messages, events or (after one was sent in part or refused) room to send
        may be there; -1 once closed."""
        return -1 if self._epoll.closed else self._epoll.fileno()

    def wait(self, timeout_s: float, wake_fd: int = -1) -> None:
        """Block until a message, an event or (after one was sent in part or refused) room is
        there, `wake_fd` is readable, or the time is over; it is rounded up to milliseconds."""
        if self._epoll.closed or self._last is not None or self._decoder.pending:
            return
        self._quiet = False
        if wake_fd != self._wake_fd:
            if self._wake_fd >= 0:
                self._poll.unregister(self._wake_fd)
            if wake_fd >= 0:
                self._poll.register(wake_fd, select.POLLIN)
            self._wake_fd = wake_fd
        if not self._ready and not self._ended:
            timeout_s = min(timeout_s, self._deadline_s - time.monotonic())
        self._poll.poll(max(0.0, timeout_s) * 1000)

    def close(self) -> None:
        """Close at once: what was sent and has not left is dropped. In a forked child only the
        child's descriptors are released."""
        if self._epoll.closed:
            return
        self._ended = True
        self._last = None
        self._outbox.clear()
        self._epoll.close()
        if os.getpid() == self._pid:
            self._hang_up()  # a forked child may still have the descriptor
        self._socket.close()

    # --- inside ---------------------------------------------------------------------------------

    def _get_ready(self) -> None:
        """Go on with connecting and shaking hands."""
        decoder = self._decoder
        if self._connecting:
            self._flush()
            if not (self._outbox or self._ended):
                self._connecting = False
                self._deadline_s = time.monotonic() + HANDSHAKE_S
        while not (self._connecting or self._ended or decoder.ready):
            size = self._receive_into(decoder.buffers())
            if size <= 0:
                break
            decoder.came(size, 1)  # what follows the handshake stays for `receive`
            self._react()
        self._ready = decoder.ready
        if not (self._ready or self._ended) and time.monotonic() >= self._deadline_s:
            if self._connecting:
                self._end("refused", f"nobody answers on {self._address}")
            else:
                self._fail_handshake("is silent")

    def _react(self) -> None:
        """Do what the protocol itself asks for, or end what breaks it."""
        decoder = self._decoder
        if decoder.replies:
            for reply in decoder.replies:
                self._outbox.put_raw(reply)
            decoder.replies = []
            self._flush()
        if decoder.fault:
            self._hang_up()
            if decoder.ready:
                broken = f"{self._address} broke the protocol ({decoder.fault})"
                self._end("disconnected", f"the connection ended: {broken}; is it a broker?")
            else:
                self._fail_handshake("speaks something else")

    def _flush(self) -> None:
        """Send what the system takes."""
        outbox = self._outbox
        while outbox:
            size = self._transmit(outbox.gathered())
            if size < 0:
                outbox.clear()
            elif size == 0:
                break
            else:
                outbox.sent(size)
        self._watch()

    def _transmit(self, buffers: list[Buffer]) -> int:
        """How many bytes the system took; -1 if it takes none any more."""
        try:
            return self._socket.sendmsg(buffers, (), _NO_SIGNAL)
        except BlockingIOError:
            return 0
        except OSError as error:
            if self._connecting:
                self._end("refused", _unreachable(self._address, error))
            return -1

    def _receive_into(self, buffers: list[memoryview]) -> int:
        """How many bytes came; 0 if none, or if this was the end."""
        try:
            if len(buffers) == 1:
                size = self._socket.recv_into(buffers[0])
            else:
                size = self._socket.recvmsg_into(buffers)[0]
        except BlockingIOError:
            return 0
        except OSError:
            size = 0  # reset: whatever was said before was read first
        if not size:
            if self._ready:
                self._end("disconnected", f"the connection to {self._address} ended")
            else:
                self._fail_handshake("ended the connection or speaks something else")
        return size

    def _watch(self) -> None:
        """Look for room to send as long as something waits for it."""
        interest = select.EPOLLIN | select.EPOLLOUT if self._outbox else select.EPOLLIN
        if interest != self._interest and not self._ended:
            self._interest = interest
            self._poll.modify(self._socket, interest)
            self._epoll.modify(self._socket, interest)

    def _fail_handshake(self, why: str) -> None:
        self._end("handshake_failed", f"{self._address} {why}; is it no broker, or full?")

    def _end(self, event: ChannelEvent, sentence: str) -> None:
        if not self._ended:
            self._ended = True
            self._last = event, sentence
            self._outbox.clear()

    def _hang_up(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was quicker
