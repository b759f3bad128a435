"""How a thread that waits for descriptors is woken by another one."""

from __future__ import annotations

import os
import select


def await_readable(descriptors: list[int], timeout_s: float) -> list[int]:
    """Wait for one of them to be readable; which are. One closed meanwhile is too, harmlessly."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(timeout_s * 1000)]


class Waker:
    """Wakes whoever waits for `read_fd`, until he drains it."""

    __slots__ = ("_write_fd", "read_fd", "woken")

    def __init__(self) -> None:
        self.woken = False
        """Somebody woke him since."""
        if hasattr(os, "eventfd"):
            self.read_fd = self._write_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.read_fd, self._write_fd = os.pipe()
            for descriptor in (self.read_fd, self._write_fd):
                os.set_blocking(descriptor, False)

    def wake(self) -> None:
        """In any thread, and in a signal's handler."""
        self.woken = True  # first: a signal handler may come in between
        try:
            os.write(self._write_fd, b"\x01\0\0\0\0\0\0\0")
        except BlockingIOError:
            pass  # it is full of wake-ups already

    def drain(self) -> None:
        """Be able to wait again."""
        if not self.woken:
            return
        self.woken = False
        try:
            os.read(self.read_fd, 64)
        except BlockingIOError:
            pass  # nobody woke us

    def close(self) -> None:
        """Nobody is woken any more."""
        for descriptor in {self.read_fd, self._write_fd}:
            os.close(descriptor)
