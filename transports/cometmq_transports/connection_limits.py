"""How many connections a listener lets in, and for how long one may say nothing."""

from __future__ import annotations

import resource
import sys

SPARE_CONNECTIONS = 64
"""Connections above the limit that may still speak, so that they can be refused with a reason."""
SILENT_S = 10.0
"""A connection that has not sent a message by then is dropped."""
_FREE_DESCRIPTORS = 128
"""No connection may have these: they are for segments, indexes and what plugins open. It is the
last brake; `mq run` lowers `limits.connections` earlier, to what the limit on open files allows."""


def ceiling() -> int:
    """The number below which the descriptor of a connection has to lie. Systems give the lowest
    one that is free, so a connection with a higher one says that only few are left, whatever took
    the others."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return limit - min(_FREE_DESCRIPTORS, limit // 4)
