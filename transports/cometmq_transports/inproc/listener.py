"""The broker's end of in-process connections, and the names that are published in this process."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Sequence

from cometmq.environment import Buffer
from cometmq.errors import ConfigError
from cometmq.interfaces import Channel, Limits, Peer, Receiver
from cometmq_transports.connection_limits import SPARE_CONNECTIONS
from cometmq_transports.inproc.channel import InprocChannel
from cometmq_transports.unreachable import UnreachableChannel

DRAIN_MESSAGES = 256
DRAIN_BYTES = 8 << 20

_published: dict[str, InprocListener] = {}
_published_lock = threading.Lock()


class InprocPeer:
    """A `Peer` in the same process."""

    def __init__(self, listener: InprocListener, channel: InprocChannel, name: str) -> None:
        self.name = name
        self.limits = listener.limits
        self.gone = False
        self.channel = channel
        self._listener = listener

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Hand the frames to the client by reference. False: it is gone, or dropped now because it
        leaves more than the credit unread."""
        if self.gone:
            return False
        if self.channel.broker_sends(frames, self.limits.credit_bytes):
            return True
        self.drop("" if self.channel.over else "too_slow")
        return False

    def close(self) -> None:
        """Drop the client; it can still read what was sent to it."""
        self.drop("closed")

    def submit(self, frames: Sequence[Buffer], size: int) -> bool:
        """A message from the client (any thread)."""
        return not self.gone and self._listener.submit(self, frames, size)

    def drop(self, reason: str) -> None:
        """End the connection (any thread). What the client sent before is still delivered if it
        left by itself, which an empty reason says."""
        if self.gone:
            return
        if reason:
            self.gone = True
            self._listener.counters[reason] += 1
        self.channel.broker_drops()
        self._listener.submit(self, None, 0)


class InprocListener:
    """A `Listener`: clients put their messages into one inbox and wake the loop once a burst."""

    def __init__(self, address: str, receiver: Receiver, limits: Limits) -> None:
        self.address = address
        self.limits = limits
        self.counters: Counter[str] = Counter()
        """Clients dropped, by reason."""
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[tuple[InprocPeer, Sequence[Buffer] | None, int]] = deque()
        self._peers: dict[InprocPeer, None] = {}
        self._lock = threading.Lock()
        self._scheduled = False
        self._closed = False
        self._number = 0

    def accept(self, channel: InprocChannel) -> bool:
        """Connect a client (any thread); False if there are too many."""
        with self._lock:
            if self._closed or len(self._peers) >= self.limits.connections + SPARE_CONNECTIONS:
                self.counters["too_many_connections"] += 1
                return False
            self._number += 1
            peer = InprocPeer(self, channel, f"{self.address}#{self._number}")
            self._peers[peer] = None
        channel.broker_accepts(peer)
        return True

    def submit(self, peer: InprocPeer, frames: Sequence[Buffer] | None, size: int) -> bool:
        """A message of `peer`, or (None) that it is gone (any thread). False: the broker is."""
        self._inbox.append((peer, frames, size))
        return self._wake()

    def _wake(self) -> bool:
        with self._lock:
            if self._closed:
                return False
            if self._scheduled:
                return True
            self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._step)
        except RuntimeError:  # the loop ended without closing us, as in a simulated crash
            self._abandon()
            return False
        return True

    def _step(self) -> None:
        with self._lock:
            self._scheduled = False
        drain: list[tuple[Peer, Sequence[Buffer]]] = []
        left: list[InprocPeer] = []
        total = 0
        try:
            while self._inbox and len(drain) < DRAIN_MESSAGES and total < DRAIN_BYTES:
                peer, frames, size = self._inbox.popleft()
                if frames is None:
                    left.append(peer)
                else:
                    peer.channel.broker_took(size)
                    total += size
                    if not peer.gone:
                        drain.append((peer, frames))
            if drain:
                self._receiver.received(drain)
            for peer in left:
                self._lose(peer)
        finally:
            if self._inbox:
                self._wake()

    def _lose(self, peer: InprocPeer) -> None:
        peer.gone = True
        with self._lock:
            known = peer in self._peers
            self._peers.pop(peer, None)
        if known:
            self._receiver.lost(peer)

    async def close(self) -> None:
        """Take the name back and drop all clients. What was sent to them is in their inboxes.
        `lost` is not called for them."""
        self._abandon()

    def _abandon(self) -> None:
        with self._lock:
            self._closed = True
            peers, self._peers = list(self._peers), {}
        with _published_lock:
            if _published.get(self.address) is self:
                del _published[self.address]
        for peer in peers:
            peer.gone = True
            peer.channel.broker_drops()
        self._inbox.clear()

    @property
    def abandoned(self) -> bool:
        """Closed, or its loop has ended."""
        return self._closed or self._loop.is_closed()


def check(address: str) -> None:
    """Raises ConfigError unless this is `inproc://NAME`."""
    scheme, separator, name = address.partition("://")
    if scheme != "inproc" or not separator or not name:
        raise ConfigError(
            f"{address!r} is no address in this process; write inproc://NAME, for example"
            " inproc://broker"
        )


def publish(listener: InprocListener) -> None:
    """Make a listener known under its address. Raises ConfigError if it is none, or taken."""
    check(listener.address)
    with _published_lock:
        there = _published.get(listener.address)
        if there is not None and not there.abandoned:
            raise ConfigError(
                f"{listener.address} is in use in this process: close that broker or choose"
                " another name"
            )
        _published[listener.address] = listener


def connect(address: str, limits: Limits) -> Channel:
    """Connect to a broker of this process; the channel's events tell how it went. The listener's
    limits hold, not `limits`. Raises ConfigError if the address is none."""
    check(address)
    with _published_lock:
        listener = _published.get(address)
    if listener is None or listener.abandoned:
        return UnreachableChannel(f"no broker of this process listens on {address}: start it first")
    channel = InprocChannel(address)
    if listener.accept(channel):
        return channel
    channel.close()
    return UnreachableChannel(f"{address} has too many clients: close some or raise connections")
