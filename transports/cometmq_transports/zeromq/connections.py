"""The connections under a ROUTER socket, as its monitor tells them.

A ROUTER says neither when a peer left, nor can it be told to drop one. Two things make up for it:
every message names the descriptor of the connection that it came by, and the socket's monitor
reports the opening and closing of descriptors, in order. A connection is dropped by shutting down
a duplicate of its descriptor, after making sure (by inode) that it is still the same connection;
ZeroMQ's I/O thread then sees it end like any other. The monitor is not asked for what could not be
accepted: while no descriptor is left that is news without end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket as sockets
from collections import Counter
from typing import Generic, NamedTuple, TypeVar

import zmq

from cometmq_transports.connection_limits import ceiling
from cometmq_transports.peer_name import peer_name
from cometmq_transports.zeromq.descriptors import Spare
from cometmq_transports.zeromq.monitor import HANDSHAKE_FAILED, open_monitor, read_event

logger = logging.getLogger(__name__)
_WARN_EVERY_S = 60.0


class Opened(NamedTuple):
    """One open connection."""

    descriptor: int
    inode: int
    """Tells it from a later one of the same number."""
    since_s: float
    refused: bool = False
    """Shut down by us before it had an owner."""


Owner = TypeVar("Owner")


class Connections(Generic[Owner]):
    """Descriptors and their owners (who speaks over them).

    `limit` connections may be open at once; what comes beyond is dropped before it can speak, and
    so is what comes when descriptors run out. `counters` collects what went wrong, by reason.
    `leaving` collects the owners whose connection is closed, until somebody takes them away.
    """

    def __init__(self, router: zmq.Socket[bytes], limit: int, counters: Counter[str]) -> None:
        self._limit = limit
        self._counters = counters
        self._opened: dict[int, Opened] = {}
        self._owners: dict[int, Owner] = {}
        self.leaving: list[Owner] = []
        self._warned_s: float | None = None
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        self._monitor = open_monitor(router, "monitor", events | HANDSHAKE_FAILED)
        self._spare = Spare()

    def __len__(self) -> int:
        return len(self._opened)

    def fileno(self) -> int:
        """Turns readable when something was opened or closed (edge-triggered)."""
        return self._monitor.fileno()

    def update(self, now_s: float) -> None:
        """Take in all that the monitor reported."""
        surplus: dict[int, str] = {}
        highest = ceiling()
        while True:
            try:
                event, value = read_event(self._monitor)
            except zmq.Again:
                break
            if event == zmq.EVENT_ACCEPTED:
                if len(self._opened) >= self._limit:
                    surplus[value] = "too_many_connections"
                elif value >= highest:
                    surplus[value] = "few_descriptors"
                self._opened[value] = Opened(value, _inode(value), now_s)
            elif event == zmq.EVENT_DISCONNECTED:
                surplus.pop(value, None)
                self._opened.pop(value, None)
                owner = self._owners.pop(value, None)
                if owner is not None:
                    self.leaving.append(owner)
            else:
                self._counters["handshake_failed"] += 1
        for descriptor, reason in surplus.items():
            self.refuse(descriptor, reason)
        if "few_descriptors" in surplus.values():
            self._warn(now_s)

    def refuse(self, descriptor: int, reason: str) -> None:
        """Drop a connection that has no owner."""
        opened = self._opened.get(descriptor)
        if opened is not None and not opened.refused:
            self._opened[descriptor] = opened._replace(refused=True)
            self._counters[reason] += 1
            self.drop(opened)

    def adopt(self, descriptor: int, owner: Owner) -> Opened | None:
        """`owner` speaks over `descriptor`; None if that is closed again, and the owner leaving.
        Call `update` first, so that what was known of an earlier connection of the same number is
        settled."""
        former = self._owners.pop(descriptor, None)
        if former is not None:
            self.leaving.append(former)
        opened = self._opened.get(descriptor)
        if opened is None:
            self.leaving.append(owner)
        else:
            self._owners[descriptor] = owner
        return opened

    def drop_silent(self, opened_before_s: float) -> None:
        """Drop the connections older than that which never sent a message."""
        for opened in list(self._opened.values()):
            if opened.since_s < opened_before_s and opened.descriptor not in self._owners:
                self.refuse(opened.descriptor, "silent")

    def drop(self, opened: Opened) -> None:
        """Shut a connection down, unless it is closed already."""
        with self._spare.copy(opened.descriptor, opened.inode) as connection:
            if connection is not None:
                with contextlib.suppress(OSError):  # it ended by itself meanwhile
                    connection.shutdown(sockets.SHUT_RDWR)

    def name_of(self, opened: Opened, address: str) -> str:
        """Who is at the other end, for people; `address` is ours."""
        with self._spare.copy(opened.descriptor, opened.inode) as connection:
            if connection is not None:
                with contextlib.suppress(OSError):  # it ended by itself meanwhile
                    return peer_name(connection, connection.getpeername(), address)
        return f"{address} (closed)"

    def close(self) -> None:
        """Stop watching."""
        self._monitor.close()
        self._spare.close()

    def _warn(self, now_s: float) -> None:
        if self._warned_s is None or now_s >= self._warned_s + _WARN_EVERY_S:
            self._warned_s = now_s
            logger.warning(
                "new connections are dropped: descriptors run out, with %d connections open; those "
                "are served; raise the limit (`ulimit -n`) or lower limits.connections",
                len(self._opened),
            )


def _inode(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return 0
