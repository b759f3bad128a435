"""How many files and connections this process may have, and a broker's settings that fit in."""

from __future__ import annotations

import logging
import resource
import sys

import msgspec

from cometmq.config import Config

logger = logging.getLogger(__name__)

RESERVED = 256
"""Descriptors of a broker that are no connections of clients: the log's files, its own, and what
transports have besides or keep free for files by themselves."""


def raise_limit() -> int:
    """Let this process open as many files as its user may; returns how many that is. The lower
    limit that shells begin with is for programs that use select(), which this one doesn't."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            # Some systems have a lower limit besides the one that they tell.
            logger.warning("the limit on open files stays at %d: %s", soft, error)
        else:
            logger.info("the limit on open files was raised from %d to %d", soft, hard)
            soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def highest_limit() -> int:
    """How many files a process of this user may open at most."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def shortage(config: Config, descriptors: int) -> str:
    """One sentence if so many descriptors are too few for `limits.connections`, else empty."""
    wanted, possible = config.limits.connections, connections_of(descriptors)
    if wanted <= possible:
        return ""
    return (
        f"a broker here may open {descriptors} files, enough for {possible} connections and not "
        f"for the {wanted} of limits.connections: raise the limit (`ulimit -n`, LimitNOFILE) to "
        f"{wanted + RESERVED}, or lower limits.connections"
    )


def fitted(config: Config, descriptors: int) -> Config:
    """The settings with no more connections than so many descriptors are enough for."""
    connections = min(config.limits.connections, connections_of(descriptors))
    limits = msgspec.structs.replace(config.limits, connections=connections)
    return msgspec.structs.replace(config, limits=limits)


def connections_of(descriptors: int) -> int:
    """How many connections a broker with so many descriptors can serve."""
    return max(descriptors - RESERVED, descriptors // 4, 1)
