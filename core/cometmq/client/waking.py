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


def wake_descriptors() -> tuple[int, int]:
    """What to read from and what to write to; a pipe where there is no eventfd."""
    if hasattr(os, "eventfd"):
        descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return descriptor, descriptor
    read_fd, write_fd = os.pipe()
    for descriptor in (read_fd, write_fd):
        os.set_blocking(descriptor, False)
    return read_fd, write_fd
