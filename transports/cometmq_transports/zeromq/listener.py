"""The broker's end: one ROUTER socket, read by the event loop itself.

ZeroMQ's descriptor tells of changes, not of states ("edge-triggered"), and every send or receive
may eat the news. So after each step, and after sends that happened outside of one, the socket's
EVENTS are looked at again; a tick once a second is the safety net. All messages that are there go
to the receiver in one call, up to a limit, so that the loop can do other things in between.

Two known holes, which only authentication closes, since ZeroMQ lets nobody look at a frame before
its message is complete: the number of frames of a message that never ends is not bounded; and a
client that fills its pipe, says a ZeroMQ ping and resets the connection makes ZeroMQ abort (see
`keepalive.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import zmq

from cometmq.environment import Buffer, Environment, Timer
from cometmq.interfaces import Limits, Peer, Receiver
from cometmq_transports.connection_limits import SILENT_S, SPARE_CONNECTIONS
from cometmq_transports.zeromq.connections import Connections
from cometmq_transports.zeromq.frames import ready, receive_frames
from cometmq_transports.zeromq.options import ZeromqOptions
from cometmq_transports.zeromq.peer import RouterPeer

DRAIN_MESSAGES = 256
DRAIN_BYTES = 8 << 20

_ROUTE_BYTES = 5
"""Length of a routing id made by the ROUTER, which begins with a zero. Others were chosen by the
client, and could come again."""
_TICK_S = 1.0
_FLUSH_AT_ONCE = 16
_FLUSH_LATER_S = 0.005
_CLOSE_POLL_S = 0.01


class RouterListener:
    """A `Listener` on a bound ROUTER socket, which it owns together with the socket's context."""

    def __init__(
        self,
        router: zmq.Socket[bytes],
        address: str,
        receiver: Receiver,
        limits: Limits,
        options: ZeromqOptions,
        environment: Environment,
    ) -> None:
        self.address = address
        self.credit_bytes = limits.credit_bytes
        self.counters: Counter[str] = Counter()
        """What was dropped or failed, by reason."""
        self._router = router
        self._receiver = receiver
        self._frames_max = limits.frames
        self._options = options
        self._environment = environment
        self._clock = environment.clock
        self._spin_s = options.spin_us / 1e6
        self._spin_until_s = 0.0
        self._connections: Connections[RouterPeer] = Connections(
            router, limits.connections + SPARE_CONNECTIONS, self.counters
        )
        self._peers: dict[bytes, RouterPeer] = {}
        self._left: set[bytes] = set()
        self._left_before: set[bytes] = set()
        self._blocked: dict[RouterPeer, None] = {}
        self._timers: dict[str, Timer] = {}
        self._stepping = False
        self._looking = False
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Begin to deliver."""
        self._loop.add_reader(self._router.fileno(), self._step)
        self._loop.add_reader(self._connections.fileno(), self._connection_news)
        self._later("tick", _TICK_S, self._tick)
        self._look_soon()

    @property
    def connections(self) -> int:
        """How many are open, silent ones included."""
        return len(self._connections)

    # --- what peers call (Hub) ----------------------------------------------------------------

    def sent(self) -> None:
        if not self._stepping and not self._looking:
            self._look_soon()

    def blocked(self, peer: RouterPeer) -> None:
        self._blocked[peer] = None
        self.sent()

    def dropping(self, peer: RouterPeer, reason: str, delay_s: float = 0.0) -> None:
        self.counters[reason] += 1
        if not delay_s:
            self._cut(peer)
        else:
            peer.gone = True
            self._clock.call_at(self._clock.monotonic_s() + delay_s, lambda: self._cut(peer))
        self.sent()

    # --- reading ------------------------------------------------------------------------------

    def _step(self) -> None:
        """Deliver what is there, send what can go now, and make sure of being called again."""
        self._stepping = busy = True
        try:
            drain, exhausted = self._drain()
            busy = bool(drain)
            if busy:
                self._receiver.received(drain)
            self._flush(_FLUSH_AT_ONCE)
            if exhausted:
                self._announce()
        finally:
            self._stepping = False
            if not self._closed:
                self._rest(busy)

    def _drain(self) -> tuple[list[tuple[Peer, Sequence[Buffer]]], bool]:
        """Up to a limit of messages, and whether there were no more."""
        drain: list[tuple[Peer, Sequence[Buffer]]] = []
        receive = self._router.recv
        size = 0
        for count in range(DRAIN_MESSAGES):
            if count == 1 and not ready(self._router):
                return drain, True
            try:
                route = receive(zmq.NOBLOCK)
            except zmq.Again:
                return drain, True
            first, frames = receive_frames(self._router, self._frames_max)
            peer = self._peers.get(route) or self._welcome(route, first)
            if peer is None or peer.gone:
                continue
            if len(frames) > self._frames_max:
                self.dropping(peer, "too_many_frames")
                continue
            drain.append((peer, frames))
            size += len(frames[0]) if len(frames) == 1 else sum(map(len, frames))
            if size > DRAIN_BYTES:
                break
        return drain, False

    def _welcome(self, route: bytes, first: zmq.Frame) -> RouterPeer | None:
        """Make the peer of a route seen for the first time. None if it left already or is not
        welcome: it chose its routing id, or speaks a ZeroMQ so old that its connection can't be
        known (which then counts as silent)."""
        if route in self._left or route in self._left_before:
            return None
        self._connections.update(self._clock.monotonic_s())
        try:
            descriptor = int(first.get(zmq.SRCFD))
        except zmq.ZMQError:
            self.counters["old_protocol"] += 1
            return None
        if route[0] or len(route) != _ROUTE_BYTES:
            self._connections.refuse(descriptor, "chosen_routing_id")
            return None
        peer = self._peers[route] = RouterPeer(self, self._router, route)
        peer.opened = self._connections.adopt(descriptor, peer)
        opened = peer.opened
        peer.name = self._connections.name_of(opened, self.address) if opened else self.address
        return peer

    def _rest(self, busy: bool) -> None:
        """After a step: look whether more has come, or spin for a while if that is wanted.

        To look for arrivals eats the news of room to send, and the other way round. So both are
        tried in turn; what still slips through waits for the flush timer.
        """
        more = ready(self._router)
        if not more and self._blocked:
            more = self._flush(_FLUSH_AT_ONCE) or ready(self._router)
        if more:
            self._look_soon()
        elif self._spin_s and busy:
            self._spin_until_s = self._clock.monotonic_s() + self._spin_s
            self._look_soon()

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        if self._closed:
            return
        if ready(self._router) or self._blocked or self._connections.leaving:
            self._step()
        elif self._spin_until_s:
            if self._clock.monotonic_s() < self._spin_until_s:
                self._look_soon()
            else:
                self._spin_until_s = 0.0

    # --- peers that come and go -----------------------------------------------------------------

    def _connection_news(self) -> None:
        self._connections.update(self._clock.monotonic_s())
        if self._connections.leaving:
            self._look_soon()

    def _announce(self) -> None:
        """Tell of peers that left; called when nothing of theirs is waiting to be delivered."""
        leaving = self._connections.leaving
        while leaving:
            peer = leaving.pop()
            if self._peers.pop(peer.route, None) is not None:
                peer.discard()
                self._blocked.pop(peer, None)
                self._left.add(peer.route)
                self._receiver.lost(peer)

    def _cut(self, peer: RouterPeer) -> None:
        peer.discard()
        self._blocked.pop(peer, None)
        if peer.opened is None:
            self._connections.leaving.append(peer)
        elif not self._closed:
            self._connections.drop(peer.opened)

    def _flush(self, count: int) -> bool:
        """Try the next `count` of the peers that have something queued; True if something went."""
        went = False
        for peer in list(self._blocked)[:count]:
            del self._blocked[peer]
            went = peer.flush() or went
            if peer.waiting:
                self._blocked[peer] = None
        if self._blocked and "flush" not in self._timers:
            self._later("flush", _FLUSH_LATER_S, self._flush_all)
        return went

    def _flush_all(self) -> None:
        del self._timers["flush"]
        self._flush(len(self._blocked))
        self._look_soon()

    # --- time -----------------------------------------------------------------------------------

    def _later(self, name: str, delay_s: float, callback: Callable[[], None]) -> None:
        self._timers[name] = self._clock.call_at(self._clock.monotonic_s() + delay_s, callback)

    def _tick(self) -> None:
        self._later("tick", _TICK_S, self._tick)
        now_s = self._clock.monotonic_s()
        self._connections.update(now_s)
        self._step()
        self._announce()
        self._connections.drop_silent(now_s - SILENT_S)
        # Routes never come again, so they need to be known only while a message may be on its way.
        self._left, self._left_before = set(), self._left

    async def close(self) -> None:
        """Stop reading, give what was sent `linger_ms` to leave, drop all peers. `lost` is not
        called for them."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._router.fileno())
        self._loop.remove_reader(self._connections.fileno())
        for timer in self._timers.values():
            timer.cancel()
        until_s = self._clock.monotonic_s() + self._options.linger_ms / 1000
        while self._blocked and self._clock.monotonic_s() < until_s:
            for peer in list(self._blocked):
                peer.flush()
            self._blocked = {peer: None for peer in self._blocked if peer.waiting}
            await self._clock.sleep(_CLOSE_POLL_S)
        for peer in self._peers.values():
            peer.discard()
        self._peers.clear()
        context = self._router.context
        self._router.disable_monitor()
        self._connections.close()
        self._router.close(self._options.linger_ms)
        await self._environment.threads.run(context.term)
