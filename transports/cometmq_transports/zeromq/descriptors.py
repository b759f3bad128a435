"""How to look at a connection without taking another descriptor, for when few are left.

ZeroMQ tries to accept for ever while somebody knocks and no descriptor is left, which costs a core.
It can't be told to wait (to unbind would end the connections that are there), so it must not come
so far: the last descriptors are kept free of connections (see `ceiling`).
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
from collections.abc import Iterator


class Spare:
    """A place that any descriptor can be copied to, also when no other one is left."""

    def __init__(self) -> None:
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._place = os.dup(self._nothing)

    @contextlib.contextmanager
    def copy(self, descriptor: int, inode: int) -> Iterator[sockets.socket | None]:
        """The socket behind a descriptor, which nobody can close under us meanwhile; None if it
        isn't the one of that inode any more."""
        try:
            os.dup2(descriptor, self._place, inheritable=False)
        except OSError:
            yield None
            return
        connection = None
        try:
            if os.fstat(self._place).st_ino == inode:
                with contextlib.suppress(OSError):  # no socket: the number was taken by a file
                    connection = sockets.socket(fileno=self._place)
            yield connection
        finally:
            if connection is not None:
                connection.detach()
            os.dup2(self._nothing, self._place, inheritable=False)

    def close(self) -> None:
        """Give both descriptors back."""
        os.close(self._nothing)
        os.close(self._place)
