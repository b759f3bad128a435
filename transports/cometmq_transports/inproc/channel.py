"""The client's end of an in-process connection: an inbox with an eventfd that tells of it."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from cometmq.environment import Buffer
from cometmq.interfaces import ChannelEvent, Limits


class BrokerEnd(Protocol):
    """What a channel needs of the other end. Callable from any thread."""

    limits: Limits

    def submit(self, frames: Sequence[Buffer], size: int) -> bool:
        """Take a message for the broker; False if there is no broker any more."""

    def drop(self, reason: str) -> None:
        """End the connection."""


class InprocChannel:
    """A `Channel` without a socket. The methods that begin with `broker_` belong to the other end
    and may be called from its thread at any time."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._other: BrokerEnd | None = None
        self._lock = threading.Lock()
        self._inbox: deque[tuple[Sequence[Buffer], int]] = deque()
        self._unread_bytes = 0
        self._underway_bytes = 0
        self._starved = False
        self._events: list[tuple[ChannelEvent, str]] = []
        self._over = False
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._signalled = False

    # --- the client's side (Channel) ----------------------------------------------------------

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Hand one message over by reference. False: the connection is over, or the broker has
        not yet taken `limits.credit_bytes` of what was sent before."""
        other = self._other
        if other is None or self._over:
            return False
        size = sum(map(len, frames))
        limits = other.limits
        if len(frames) > limits.frames:
            other.drop("too_many_frames")
            return False
        if size > limits.frame_bytes and max(map(len, frames)) > limits.frame_bytes:
            other.drop("too_large")
            return False
        with self._lock:
            if self._underway_bytes and self._underway_bytes + size > limits.credit_bytes:
                self._starved = True
                return False
            self._underway_bytes += size
        return other.submit(frames, size)

    def receive(self, max_messages: int = 256) -> list[Sequence[Buffer]]:
        """Messages that are there now."""
        messages: list[Sequence[Buffer]] = []
        with self._lock:
            self._calm()
            while self._inbox and len(messages) < max_messages:
                frames, size = self._inbox.popleft()
                self._unread_bytes -= size
                messages.append(frames)
            if self._inbox:
                self._signal()
        return messages

    def events(self) -> list[tuple[ChannelEvent, str]]:
        """What happened since the last call: "connected", then one event that ends it."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def fileno(self) -> int:
        """Readable when something came, until `receive` is called; -1 once closed."""
        return self._fd

    def wait(self, timeout_s: float, wake_fd: int = -1) -> None:
        """Block until a message, an event or (after a refused send) room is there, `wake_fd` is
        readable, or the time is over."""
        if self._fd < 0 or self._inbox or self._events:
            return
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if wake_fd >= 0:
            poll.register(wake_fd, select.POLLIN)
        poll.poll(max(0.0, timeout_s) * 1000)

    def close(self) -> None:
        """Close at once; the broker still gets what was sent before."""
        other, self._other = self._other, None
        with self._lock:
            self._over = True
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1
            self._inbox.clear()
            self._events = []
        if other is not None:
            other.drop("")

    # --- the broker's side ----------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Nothing passes any more."""
        return self._over

    def broker_accepts(self, other: BrokerEnd) -> None:
        """The connection stands."""
        self._other = other
        self._tell("connected", f"connected to {self._address}")

    def broker_sends(self, frames: Sequence[Buffer], credit_bytes: int) -> bool:
        """Put a message into the inbox. False: closed, or more unread than the credit."""
        size = sum(map(len, frames))
        with self._lock:
            if self._over or (self._inbox and self._unread_bytes + size > credit_bytes):
                return False
            self._inbox.append((frames, size))
            self._unread_bytes += size
            self._signal()
        return True

    def broker_took(self, size: int) -> None:
        """A message of this size is in the broker's hands."""
        with self._lock:
            self._underway_bytes -= size
            if self._starved:
                self._starved = False
                self._signal()

    def broker_drops(self) -> None:
        """The broker ended the connection."""
        if not self._over:
            self._over = True
            self._tell("disconnected", f"the connection to {self._address} ended")

    def _tell(self, event: ChannelEvent, sentence: str) -> None:
        with self._lock:
            self._events.append((event, sentence))
            self._signal()

    def _signal(self) -> None:
        """Make the descriptor readable (one system call a burst). The lock is held."""
        if not self._signalled and self._fd >= 0:
            self._signalled = True
            os.eventfd_write(self._fd, 1)

    def _calm(self) -> None:
        if self._signalled and self._fd >= 0:
            self._signalled = False
            os.eventfd_read(self._fd)
