"""Plugin `circle`: queues are dealt like cards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cometmq.group_interfaces import Strategy, StrategyMember, StrategyQueue
from cometmq.hookspecs import hookimpl
from cometmq.plugins import Plugin


class Circle:
    """One queue to each member in turn, so that a topic's queues are spread over all members."""

    name = "circle"

    def assign(
        self, members: Sequence[StrategyMember], queues: Collection[StrategyQueue]
    ) -> Mapping[StrategyQueue, str]:
        """See `Strategy.assign`."""
        names = sorted(member.name for member in members)
        return {queue: names[at % len(names)] for at, queue in enumerate(sorted(queues))}


class CirclePlugin(Plugin):
    """Deals queues one by one; one join or leave moves nearly all of them."""

    name = "circle"

    @hookimpl
    def rebalance_strategies(self) -> Sequence[Strategy]:
        return [Circle()]
