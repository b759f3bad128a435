"""The broker's end: all connections of one address, in the event loop itself.

The listener has an epoll of its own in the loop, so that one call of the loop finds everybody who
has something to say, and what they said goes to the receiver in one call. Each gets its share of
such a turn and no more; who has said more is heard again in the next one.

What is sent while several messages are handed up leaves at the end of the turn, what is sent while
one is at once: its sender waits for that, and most likely nothing else follows. Whoever left is
announced when everything that it said has been handed up.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice

from cometmq.environment import Buffer, Environment, Timer
from cometmq.interfaces import Limits, Peer, Receiver
from cometmq.native import Received
from cometmq_transports.connection_limits import SILENT_S, SPARE_CONNECTIONS
from cometmq_transports.zmtp.acceptor import Acceptor
from cometmq_transports.zmtp.connection import Connection
from cometmq_transports.zmtp.decoder import SCRATCH_BYTES, Decoder
from cometmq_transports.zmtp.holdings import Holdings
from cometmq_transports.zmtp.options import ZmtpOptions
from cometmq_transports.zmtp.spinning import ALONE, LOOKS, SMALL_BYTES, Spin

DRAIN_FRAMES = 128
DRAIN_BYTES = 512 << 10
"""In one turn, of all connections together: so much rubbish is refused within a millisecond, for
which everybody else waits; to receive a mebibyte at once takes up to a millisecond too."""
SHARE_FRAMES_MIN = 8
SHARE_BYTES_MIN = 128 << 10
CALLERS_MAX = 64
"""Connections that are read in one turn; the others come first in the next."""
ACCEPTS_MAX = 64

_MOMENT_S = 0.2
"""For the last replies to arrive, and for the client to close."""
_REST_S = 1.0
_READABLE = select.EPOLLIN
_WRITABLE = select.EPOLLOUT
_BROKEN = select.EPOLLHUP | select.EPOLLERR


class ZmtpListener:
    """A `Listener` on a bound socket, which it owns."""

    def __init__(
        self,
        listening: socket.socket,
        address: str,
        receiver: Receiver,
        limits: Limits,
        options: ZmtpOptions,
        environment: Environment,
    ) -> None:
        self.address = address
        self.credit_bytes = limits.credit_bytes
        self._turn_bytes = max(SHARE_BYTES_MIN, min(DRAIN_BYTES, limits.credit_bytes // 4))
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.counters: Counter[str] = Counter()
        """What was dropped or failed, by reason."""
        self._acceptor = Acceptor(listening, address, self.counters)
        self._receiver = receiver
        self._limits = limits
        self._options = options
        self._clock = environment.clock
        self.holdings = Holdings(environment.clock, limits.held_bytes)
        self._spin = Spin(options.spin_us / 1e6)
        self._spinning = False
        self._found: list[tuple[int, int]] = []
        """What the epoll said while we looked, not yet heard."""
        self._answered: Connection | None = None
        """Who was alone in the last turn, and answered."""
        self._expected: Connection | None = None
        """Who alone is looked at while we do, since it was answered twice in a row; None: all."""
        self._received: Received | None = None
        """What it said then, not yet heard."""
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._unfinished: dict[Connection, None] = {}
        self._sending: dict[Connection, None] = {}
        self._left: list[Connection] = []
        self._stepping = False
        self._gathering = False
        self._answers = 0
        self._looking = False
        self._resting: Timer | None = None
        self._closing: asyncio.Event | None = None
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Begin to accept and deliver."""
        self._epoll.register(self._acceptor.fileno(), select.EPOLLIN)
        self._loop.add_reader(self._epoll.fileno(), self._step)

    @property
    def connections(self) -> int:
        """How many are open, silent ones included."""
        return len(self._connections)

    # --- what connections call (Hub) ----------------------------------------------------------

    def wants_to_send(self, connection: Connection) -> bool:
        self._answers += 1
        if self._gathering:
            self._sending[connection] = None
        return self._gathering

    def changed(self, connection: Connection) -> None:
        if connection.fileno() < 0:
            return
        self.holdings.count(connection)
        wanted = connection.wanted()
        if wanted != connection.interest:
            connection.interest = wanted
            self._epoll.modify(connection.fileno(), wanted)
        if connection.pending and not connection.paused:
            self._unfinished[connection] = None
            self._look_soon()
        elif self.holdings.too_much:
            self._look_soon()

    def drop(self, connection: Connection, reason: str = "") -> None:
        descriptor = connection.fileno()
        if descriptor < 0:
            return
        if reason:
            self.counters[reason] += 1
        self._epoll.unregister(descriptor)
        del self._connections[descriptor]
        self._unfinished.pop(connection, None)
        self._sending.pop(connection, None)
        if connection is self._answered:
            self._answered = self._expected = None
        self.holdings.forget(connection)
        connection.end()
        if self._closing is not None:
            if not self._connections:
                self._closing.set()
            return
        if connection.heard:
            self._left.append(connection)
            self._look_soon()
        self._wake_acceptor()

    def retire(self, connection: Connection) -> None:
        self.counters["closed"] += 1
        self._see_off(connection, _MOMENT_S)

    # --- a turn -------------------------------------------------------------------------------

    def _step(self) -> None:
        """Hear who has something to say, hand it up, send what is answered."""
        self._stepping = True
        self._answers = 0
        drain: list[tuple[Peer, Sequence[Buffer]]] = []
        try:
            self._hear(drain)
            if drain:
                self._gathering = len(drain) > 1
                self._receiver.received(drain)
        finally:
            self._stepping = self._gathering = False
            if self._sending:
                sending, self._sending = self._sending, {}
                for connection in sending:
                    connection.push()
            if self.holdings.total_bytes > self._limits.held_bytes:
                self._drop_holders()
            if self._left:
                self._announce()
            if self._unfinished:
                self._look_soon()
            elif len(drain) == 1 and self._answers:
                self._await_next(*drain[0])

    def _hear(self, drain: list[tuple[Peer, Sequence[Buffer]]]) -> None:
        if self._received is not None and self._expected is not None:
            self._read(self._expected, DRAIN_FRAMES, self._turn_bytes, drain)
            return
        callers: list[Connection] = []
        if self._unfinished:
            callers += islice(self._unfinished, CALLERS_MAX)
            for connection in callers:
                del self._unfinished[connection]
        found, self._found = self._found or self._look_now(), []
        for descriptor, event in found:
            caller = self._connections.get(descriptor)
            if caller is None:  # the acceptor's, or one of a connection dropped just now
                if descriptor == self._acceptor.fileno():
                    self._welcome()
            elif caller.gone:
                self._hear_out(caller, event)
            elif event & _BROKEN and caller.paused:
                self.drop(caller)
            else:
                if event & _WRITABLE:
                    caller.flush()
                if event & ~_WRITABLE and not caller.pending:
                    callers.append(caller)
        frames, size = DRAIN_FRAMES, self._turn_bytes
        if len(callers) > 1:
            frames = max(SHARE_FRAMES_MIN, frames // len(callers))
            size = max(SHARE_BYTES_MIN, min(size, DRAIN_BYTES // len(callers)))
        for connection in callers:
            if not connection.gone and not connection.paused:
                self._read(connection, frames, size, drain)

    def _read(
        self,
        connection: Connection,
        frames: int,
        size: int,
        drain: list[tuple[Peer, Sequence[Buffer]]],
    ) -> None:
        was_ready = connection.heard or connection.ready
        received, self._received = self._received, None
        messages = connection.read(frames, size, received)
        if messages:
            if not connection.heard:
                connection.heard = True
                self._set_timer(connection)
                if connection.gone:
                    self._left.append(connection)
            for message in messages:
                drain.append((connection, message))
        elif connection.ready and not was_ready and not connection.gone:
            self._set_timer(connection, SILENT_S, "silent")
        if connection.holds or connection.counted_bytes or connection.interest != _READABLE:
            self.changed(connection)

    def _drop_holders(self) -> None:
        for holder in self.holdings.excess():
            assert isinstance(holder, Connection)
            self.drop(holder, "too_much_held")

    def _announce(self) -> None:
        """Tell of those who left; called when nothing of theirs waits to be handed up."""
        while self._left:
            self._receiver.lost(self._left.pop(0))

    def _look_soon(self) -> None:
        if not self._looking and not self._stepping:
            self._looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._looking = False  # only here: a turn that the epoll asked for leaves this one queued
        if self._closing is None:
            self._step()

    def _await_next(self, peer: Peer, frames: Sequence[Buffer]) -> None:
        """One request came, and was answered: if more come like that, it may pay not to sleep. Not
        while an answer waits for a sync, which needs the interpreter for itself."""
        if len(frames) > 1 or len(frames[0]) > SMALL_BYTES:
            return
        assert isinstance(peer, Connection)
        self._expected = peer if peer is self._answered else None
        self._answered = peer
        if self._spin.passed(self._clock.monotonic_s()) and not self._spinning:
            self._spinning = True
            self._loop.call_soon(self._look_on)

    def _look_on(self) -> None:
        """Look for a while, then give the loop a turn, which may have other things to do."""
        self._spinning = False
        if self._closing is not None or not self._spin.wanted:
            return
        look = None if self._expected is None else self._expected.looker(DRAIN_FRAMES)
        if look is None:
            self._found = self._spin.look(self._look_now, self._clock.monotonic_s) or []
        else:
            self._look_at_one(look)
        if self._received is not None or self._found:
            self._step()
        elif self._spin.wanted and not self._spinning:
            self._spinning = True
            self._loop.call_soon(self._look_on)

    def _look_at_one(self, look: Callable[[], Received | None]) -> None:
        """And at everybody now and then."""
        spin, now_s = self._spin, self._clock.monotonic_s
        for _ in range(LOOKS // ALONE):
            self._received = spin.look(look, now_s, ALONE)
            if self._received is None:
                self._found = spin.look(self._look_now, now_s, 1) or []
            if not spin.wanted:  # found something, or it is over
                break

    def _look_now(self) -> list[tuple[int, int]]:
        return self._epoll.poll(0, CALLERS_MAX)

    # --- coming and going -----------------------------------------------------------------------

    def _welcome(self) -> None:
        most = self._limits.connections + SPARE_CONNECTIONS
        for connected, name in self._acceptor.accept(ACCEPTS_MAX):
            if len(self._connections) >= most:
                self.counters["too_many_connections"] += 1
                connected.close()
                continue
            decoder = Decoder(self.scratch, self._limits)
            connection = Connection(self, connected, name, decoder)
            try:
                self._epoll.register(connected, connection.interest)
            except OSError:  # the system watches no more for this user
                self.counters["accept_failed"] += 1
                connected.close()
                continue
            self._connections[connected.fileno()] = connection
            if self._options.handshake_ms:
                handshake_s = self._options.handshake_ms / 1000
                self._set_timer(connection, handshake_s, "handshake_too_slow")
            connection.greet()
        if self._acceptor.resting:
            self._epoll.unregister(self._acceptor.fileno())
            self._resting = self._after(_REST_S, self._wake_acceptor)

    def _wake_acceptor(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
            self._epoll.register(self._acceptor.fileno(), select.EPOLLIN)

    def _see_off(self, connection: Connection, patience_s: float) -> None:
        """Hear nothing more, and close it once all has left and the client has seen the end: to
        close at once would take away what the client has not received yet."""
        connection.gone = True
        self._unfinished.pop(connection, None)
        self._set_timer(connection, patience_s)
        self._hear_out(connection, select.EPOLLOUT)
        if not patience_s:
            self.drop(connection)

    def _hear_out(self, connection: Connection, event: int) -> None:
        if event & select.EPOLLIN and not connection.discard():
            self.drop(connection)
        elif event & ~select.EPOLLIN:
            connection.flush()
        if connection.fileno() >= 0 and connection.say_no_more():
            self._set_timer(connection, _MOMENT_S)

    # --- time -----------------------------------------------------------------------------------

    def _after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._clock.call_at(self._clock.monotonic_s() + delay_s, callback)

    def _set_timer(self, connection: Connection, delay_s: float = 0.0, reason: str = "") -> None:
        """Drop it after that time for that reason, instead of what was set before; 0: don't."""
        if connection.timer is not None:
            connection.timer.cancel()
            connection.timer = None
        if delay_s and connection.fileno() >= 0:
            connection.timer = self._after(delay_s, lambda: self.drop(connection, reason))

    async def close(self) -> None:
        """Stop accepting and reading, give what was sent `linger_ms` to leave, drop all clients.
        `lost` is not called for them."""
        if self._closing is not None:
            return
        self._closing = asyncio.Event()
        self._wake_acceptor()
        self._epoll.unregister(self._acceptor.fileno())
        self._acceptor.close()
        linger_s = self._options.linger_ms / 1000
        for connection in list(self._connections.values()):
            if not connection.gone:
                self._see_off(connection, linger_s)
        if self._connections:
            await self._closing.wait()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
