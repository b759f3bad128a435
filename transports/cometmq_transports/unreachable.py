"""A channel that never gets through: the reason is its only event."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence

from cometmq.environment import Buffer
from cometmq.interfaces import ChannelEvent


class UnreachableChannel:
    """What `connect` returns when it knows at once that nobody is there (a `Channel`)."""

    def __init__(self, why: str, event: ChannelEvent = "refused") -> None:
        self._events: list[tuple[ChannelEvent, str]] = [(event, why)]
        self._fd = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Always False."""
        return False

    def receive(self, max_messages: int = 256) -> list[Sequence[Buffer]]:
        """Always empty."""
        return []

    def events(self) -> list[tuple[ChannelEvent, str]]:
        """The refusal, once."""
        events, self._events = self._events, []
        if events and self._fd >= 0:
            os.eventfd_read(self._fd)
        return events

    def fileno(self) -> int:
        """Readable until the refusal was seen; -1 once closed."""
        return self._fd

    def wait(self, timeout_s: float, wake_fd: int = -1) -> None:
        """Return at once while the refusal was not seen, else wait for `wake_fd`."""
        if not self._events:
            poll = select.poll()  # `select` fails above 1024 open descriptors
            if wake_fd >= 0:
                poll.register(wake_fd, select.POLLIN)
            poll.poll(max(0.0, timeout_s) * 1000)

    def close(self) -> None:
        """Release the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._events = []
