"""The standard set: what every broker starts with unless somebody takes it away."""

from __future__ import annotations

from cometmq.plugins import Plugin


class Standard(Plugin):
    """A bundle without hooks of its own: transports, a durable log, group commit, long polling,
    cleanup, for groups two ways to share queues and the filter by tag, and idempotent producers."""

    name = "standard"
    bundle = (
        "zmtp",
        "inproc",
        "commitlog",
        "flush-sync",
        "longpoll",
        "cleanup",
        "sticky",
        "averagely",
        "tagfilter",
        "dedup",
    )
