"""The client's end: one socket, driven by whoever calls, without a thread of its own.

A lone request costs its caller two system calls and the wait between them. Of a message that the
system took in part the rest waits in the outbox, and leaves with the next calls of `receive` or
`send`; until then no other one is taken.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from cometmq.environment import Buffer
from cometmq.interfaces import Channel, ChannelEvent, Limits
from cometmq.native import Received
from cometmq_transports.address import parse, places
from cometmq_transports.unreachable import UnreachableChannel
from cometmq_transports.zmtp.calling import Calls
from cometmq_transports.zmtp.decoder import SCRATCH_BYTES, Decoder, Message
from cometmq_transports.zmtp.outbox import GATHER_MAX, Outbox, gather
from cometmq_transports.zmtp.spinning import ANSWER_SPIN_US, LOOKS, Spin
from cometmq_transports.zmtp.wire import CLIENT, GREETING

CONNECT_S = 3.0
"""For all addresses of a name together."""
HANDSHAKE_S = 5.0

RECEIVE_BYTES = 4 << 20
"""About so much one call of `receive` takes, so that its caller gets to look at the time."""
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


def connect(address: str, limits: Limits, spin_us: int = ANSWER_SPIN_US) -> Channel:
    """Begin to connect to `tcp://HOST:PORT` or `ipc://PATH`; the channel's events tell how it went.

    A host name is resolved here, by the caller's thread; of several addresses one after the
    other is tried until one answers. Replies are accepted up to `limits.credit_bytes` a frame.
    An answer that is waited for is awaited awake for up to `spin_us` where that pays (0: never).
    Raises ConfigError if the address is none.
    """
    endpoint = parse(address, listening=False)
    try:
        calls = Calls(address, places(endpoint))
    except OSError as error:
        why = f"the host of {address} can't be found ({error.strerror or error})"
        return UnreachableChannel(why, "unknown_host")
    calling = calls.next()
    if calling is None:
        return UnreachableChannel(calls.why)
    return ZmtpChannel(address, calling, calls, limits, spin_us)


def _has_other_threads() -> bool:
    """Whether a thread of the host may want the interpreter: who looks hardly lets it go. A
    client's own one sleeps while somebody waits here; the workers of a consumer run handlers."""
    mine = threading.current_thread()
    return any(
        thread is not mine and thread.name != "mq-client" for thread in threading.enumerate()
    )


class ZmtpChannel:
    """A `Channel` over one socket, which it owns.

    `fileno` stays readable as long as there is something to do. It does not tell that the time to
    connect or to shake hands is over: `wait` returns then, and `events` tells it when called.
    """

    def __init__(
        self, address: str, calling: socket.socket, calls: Calls, limits: Limits, spin_us: int
    ) -> None:
        self._address = address
        self._pid = os.getpid()
        self._socket = calling
        self._calls = calls
        # A frame of the greatest size may have company in its message.
        credit = limits.credit_bytes
        mine = msgspec.structs.replace(limits, frame_bytes=credit, credit_bytes=2 * credit)
        self._decoder = Decoder(memoryview(bytearray(SCRATCH_BYTES)), mine, CLIENT)
        self._outbox = Outbox()
        self._outbox.put_raw(GREETING)
        self._connecting = True
        self._connect_until_s = time.monotonic() + CONNECT_S
        self._deadline_s = self._share()
        self._ready = False
        self._ended = False
        self._quiet = False
        """A message has just left, so that its answer can't be there yet: one call of `receive`
        may pass without asking the system. If there is something, the descriptor tells."""
        self._spin = Spin(spin_us / 1e6)
        self._found: Received | None = None
        """What came while we looked for it, not yet received."""
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
        if size < len(buffers[0]) or size < sum(map(len, buffers)):
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
        found, self._found = self._found, None
        if self._quiet and not (decoder.pending or found):
            self._quiet = False
            return []
        if found is None and decoder.receives and not self._ended:
            found = decoder.receive(self._socket.fileno(), max_messages)
            if found is None:
                return []
        if found is None:
            messages = self._more(max_messages) if decoder.pending else []
        else:
            messages = decoder.received(found, max_messages)
            if not found[-1]:
                self._received(0)
            elif not (decoder.holds or decoder.replies or decoder.fault):
                return messages
            self._react()
        left_bytes = RECEIVE_BYTES
        while not (self._ended or decoder.pending) and len(messages) < max_messages:
            buffers = decoder.buffers()
            size = self._receive_into(buffers)
            if size <= 0:
                break
            messages += decoder.came(size, max_messages - len(messages))
            if decoder.replies or decoder.fault:
                self._react()
            if size < len(buffers[0]) or size < sum(map(len, buffers)):
                break  # that was all, most likely; if not, the descriptor is still readable
            left_bytes -= size
            if left_bytes < 0:
                break
        if decoder.pending and len(messages) < max_messages:  # of several frames each
            messages += self._more(max_messages - len(messages))
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
        if self._epoll.closed or self._last is not None or self._decoder.pending or self._found:
            return
        asked, self._quiet = self._quiet, False
        if wake_fd != self._wake_fd:
            if self._wake_fd >= 0:
                self._poll.unregister(self._wake_fd)
            if wake_fd >= 0:
                self._poll.register(wake_fd, select.POLLIN)
            self._wake_fd = wake_fd
        if not self._ready and not self._ended:
            timeout_s = min(timeout_s, self._deadline_s - time.monotonic())
        if not (asked and self._came_awake()):
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

    def _came_awake(self) -> bool:
        """Whether something came while we looked for it, if that was worth trying."""
        spin = self._spin
        if spin.passed(time.monotonic()) and not _has_other_threads():
            receive = self._receiver()
            looks = LOOKS if receive is None else 1  # another thread may wake us
            try:
                while spin.wanted:
                    self._found = None if receive is None else spin.look(receive, time.monotonic)
                    if self._found or spin.look(self._look, time.monotonic, looks):
                        return True
            except BaseException:  # a signal's handler raised, maybe just when something came
                if receive is not None and self._found is None and self._decoder.overwritten:
                    self._end("disconnected", f"what came from {self._address} was interrupted")
                raise
        return False

    def _receiver(self) -> Callable[[], Received | None] | None:
        """What finds an answer as soon as it comes; None: the system has to be asked."""
        if self._ended or not self._decoder.receives:
            return None
        return self._decoder.receiver(self._socket.fileno(), 1)

    def _look(self) -> list[tuple[int, int]]:
        return self._poll.poll(0)

    def _more(self, most: int) -> list[Message]:
        """Messages of what came already, as many as are there or wanted: the descriptor does not
        tell of it."""
        decoder = self._decoder
        messages: list[Message] = []
        while decoder.pending and len(messages) < most:
            messages += decoder.more(most - len(messages))
            self._react()
        return messages

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
                self._calls.gave_up(f"nobody answers on {self._address}")
                self._call_next()
            else:
                self._fail_handshake("is silent")

    def _call_next(self) -> int:
        """Go on to the next address of the name: 0, or -1 if this one was the last."""
        calling = self._calls.next()
        if calling is None:
            self._end("refused", self._calls.why)
            return -1
        for watching in (self._poll, self._epoll):
            watching.unregister(self._socket)
            watching.register(calling, self._interest)
        self._socket.close()
        self._socket = calling
        self._deadline_s = self._share()
        return 0

    def _share(self) -> float:
        """Until when this address may take: each one left gets as much."""
        now_s = time.monotonic()
        return now_s + (self._connect_until_s - now_s) / (1 + self._calls.left)

    def _react(self) -> None:
        """Do what the protocol itself asks for, or end what breaks it."""
        decoder = self._decoder
        if decoder.replies:
            if not self._outbox:  # else what waits is our sign of life, and pongs would pile up
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
        """How many bytes the system took; -1 if it takes none any more: then nothing may follow,
        since part of a message may have left."""
        try:
            return self._socket.sendmsg(buffers, (), _NO_SIGNAL)
        except BlockingIOError:
            return 0
        except OSError as error:
            if self._connecting:
                self._calls.failed(error)
                return self._call_next()
            self._hang_up()  # what came before can still be received
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
        return self._received(size)

    def _received(self, size: int) -> int:
        """So many bytes came; 0 if that was the end."""
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
