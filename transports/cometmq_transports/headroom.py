"""Where connections have to stop, so that the broker can go on opening files."""

from __future__ import annotations

import resource
import sys

HEADROOM = 128
"""Descriptors that no connection may have: for segments, indexes and what plugins open."""


def ceiling() -> int:
    """The number below which the descriptor of a connection has to lie. Systems give the lowest
    one that is free, so a connection with a higher one says that only few are left, whatever took
    the others."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return limit - min(HEADROOM, limit // 4)
