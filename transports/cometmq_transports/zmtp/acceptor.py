"""The listening socket: binds it, and takes in who knocks.

When no descriptor is left, accepting fails while the caller goes on waiting, so that a loop that
simply tried again would burn a core. So the acceptor rests: until a connection of ours was closed,
or for a second. It does so before the last ones are gone, which are for files.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from collections import Counter

from cometmq.errors import ConfigError
from cometmq_transports.address import Endpoint, bind_failure, check_socket_file, places
from cometmq_transports.connection_limits import ceiling
from cometmq_transports.keepalive import keep_alive
from cometmq_transports.peer_name import peer_name

logger = logging.getLogger(__name__)

_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


def bind(address: str, endpoint: Endpoint, backlog: int) -> socket.socket:
    """A listening socket. Raises ConfigError: which address, why not, what to do."""
    try:
        family, where = places(endpoint)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise bind_failure(address, error.errno, error.strerror) from error
    try:
        if family == socket.AF_UNIX:
            _clear(address, endpoint.host)
        else:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        listening.bind(where)
        listening.listen(backlog)
    except OSError as error:
        listening.close()
        raise bind_failure(address, error.errno, error.strerror) from error
    except ConfigError:
        listening.close()
        raise
    return listening


def _clear(address: str, path: str) -> None:
    """Take away the socket file of a killed process, if that is what lies there."""
    check_socket_file(address, path)
    if not path.startswith("@") and os.path.lexists(path):
        os.unlink(path)


class Acceptor:
    """Accepts on a socket, which it owns; `counters` collects what failed, by reason."""

    def __init__(self, listening: socket.socket, address: str, counters: Counter[str]) -> None:
        self._listening = listening
        self._address = address
        self._counters = counters
        self._told = False
        self._path = self._own_path()
        self.resting = False
        """No descriptor is left: the socket must not be watched for a while."""

    def fileno(self) -> int:
        """Readable while somebody knocks."""
        return self._listening.fileno()

    def accept(self, most: int) -> list[tuple[socket.socket, str]]:
        """Up to `most` new connections and what to call them. May begin to rest."""
        accepted: list[tuple[socket.socket, str]] = []
        self.resting = False
        highest = ceiling()
        for _ in range(most):
            try:
                self._look_ahead(highest)
                connected, sockaddr = self._listening.accept()
            except BlockingIOError:
                self._told = False
                break
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._counters["few_descriptors"] += 1
                    self._rest(error)
                    break
                self._counters["accept_failed"] += 1
                continue  # that one left before its turn came
            try:
                _set_up(connected)
                accepted.append((connected, peer_name(connected, sockaddr, self._address)))
            except OSError:
                connected.close()  # it left meanwhile
        return accepted

    def close(self) -> None:
        """Stop listening; the socket file goes, unless it is another one by now."""
        self._listening.close()
        if self._path is not None:
            path, inode = self._path
            try:
                if os.lstat(path).st_ino == inode:
                    os.unlink(path)
            except FileNotFoundError:
                pass  # somebody was quicker

    def _look_ahead(self, highest: int) -> None:
        """Raises OSError if the next descriptor is not for a connection."""
        lowest_free = os.dup(self._listening.fileno())
        os.close(lowest_free)
        if lowest_free >= highest:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def _rest(self, error: OSError) -> None:
        self.resting = True
        if not self._told:
            self._told = True
            logger.warning(
                "%s takes no new connections: %s; those that are there are served, new ones wait "
                "until some close (raise `ulimit -n` above limits.connections)",
                self._address,
                error.strerror,
            )

    def _own_path(self) -> tuple[str, int] | None:
        if self._listening.family != socket.AF_UNIX:
            return None
        path = self._listening.getsockname()
        if not isinstance(path, str):
            return None
        status = os.lstat(path)
        return (path, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None


def _set_up(connected: socket.socket) -> None:
    """Make it ready for use. Raises OSError if it left meanwhile."""
    connected.setblocking(False)
    if connected.family != socket.AF_UNIX:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connected)
