"""Connecting to one of the addresses that a name stands for.

They are called one after the other: the next one once the system or the broker's machine has
refused, or has not answered in time. The last socket given away belongs to whoever asked for it.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Iterable

from cometmq_transports.address import Place
from cometmq_transports.keepalive import keep_alive

_SYN_REPEATS = 1
"""The system gives up connecting by itself, 3 s after the first of two attempts."""
_NOBODY = frozenset((errno.ECONNREFUSED, errno.ENOENT))


class Calls:
    """What is left to call."""

    def __init__(self, address: str, places: Iterable[Place]) -> None:
        self._address = address
        self._places = deque(places)
        self.why = ""
        """Why the first one that failed did: the resolver puts the most likely one first."""

    @property
    def left(self) -> int:
        """How many addresses were not called yet."""
        return len(self._places)

    def failed(self, error: OSError) -> None:
        """The one that was called last refused."""
        if error.errno in _NOBODY:
            self.gave_up(f"nobody listens on {self._address}")
        else:
            self.gave_up(f"{self._address}: {error.strerror or error}")

    def gave_up(self, why: str) -> None:
        """The one that was called last is no use."""
        self.why = self.why or why

    def next(self) -> socket.socket | None:
        """A socket that is connected, or about to be; None when no address is left."""
        while self._places:
            try:
                return _call(self._places.popleft())
            except OSError as error:
                self.failed(error)
        return None


def _call(place: Place) -> socket.socket:
    calling = socket.socket(place.family, socket.SOCK_STREAM)
    try:
        calling.setblocking(False)
        if place.family != socket.AF_UNIX:
            calling.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_SYNCNT"):
                calling.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, _SYN_REPEATS)
            keep_alive(calling)
        code = calling.connect_ex(place.sockaddr)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except BaseException:
        calling.close()
        raise
    return calling
