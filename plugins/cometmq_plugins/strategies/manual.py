"""Plugin `manual`: the configuration says who reads what.

    [plugin.manual.queues]
    "billing-1" = ["orders:0-1"]
    "billing-2" = ["orders:2-3", "audit:*"]

The first member in the file's order that is there and names a queue gets it. What no living member
names is read by nobody: that is the point of it, and `mq group lag` shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import msgspec

from cometmq.group_interfaces import Strategy, StrategyMember, StrategyQueue
from cometmq.hookspecs import hookimpl
from cometmq.plugins import Plugin

Queues = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9_.-]{1,127}:(\*|[0-9]{1,4}(-[0-9]{1,4})?)$",
        description="queues of a topic, as in orders:3, orders:0-3 or orders:*",
    ),
]


class ManualOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `[plugin.manual]`."""

    queues: dict[str, tuple[Queues, ...]] = {}
    """Member's name to what it reads: `TOPIC:QUEUE`, `TOPIC:FIRST-LAST` or `TOPIC:*`."""


class Manual:
    """A fixed list."""

    name = "manual"

    def __init__(self, queues: Mapping[str, Sequence[str]]) -> None:
        """Member's name to queues as written in the options."""
        self._queues = {name: [_parse(text) for text in texts] for name, texts in queues.items()}

    def assign(
        self, members: Sequence[StrategyMember], queues: Collection[StrategyQueue]
    ) -> Mapping[StrategyQueue, str]:
        """See `Strategy.assign`."""
        there = {member.name for member in members}
        found: dict[StrategyQueue, str] = {}
        for name, wanted in self._queues.items():
            if name not in there:
                continue
            for queue in queues:
                if any(topic == queue.topic and queue.queue in span for topic, span in wanted):
                    found.setdefault(queue, name)
        return found


class ManualPlugin(Plugin):
    """Gives each member the queues that the configuration names for it, and nobody the rest."""

    name = "manual"
    options = ManualOptions

    def __init__(self, options: ManualOptions) -> None:
        self._options = options

    @hookimpl
    def rebalance_strategies(self) -> Sequence[Strategy]:
        return [Manual(self._options.queues)]


def _parse(text: str) -> tuple[str, range]:
    topic, _, queues = text.rpartition(":")
    if queues == "*":
        return topic, range(1 << 16)
    first, _, last = queues.partition("-")
    return topic, range(int(first), int(last or first) + 1)
