"""Plugin `averagely`: neighbouring queues in blocks, the first members get the odd ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cometmq.group_interfaces import Strategy, StrategyMember, StrategyQueue
from cometmq.hookspecs import hookimpl
from cometmq.plugins import Plugin


class Averagely:
    """Blocks of neighbours in the order of topic and queue."""

    name = "averagely"

    def assign(
        self, members: Sequence[StrategyMember], queues: Collection[StrategyQueue]
    ) -> Mapping[StrategyQueue, str]:
        """See `Strategy.assign`."""
        names = sorted(member.name for member in members)
        ordered = sorted(queues)
        share, odd = divmod(len(ordered), len(names))
        found: dict[StrategyQueue, str] = {}
        at = 0
        for place, name in enumerate(names):
            end = at + share + (place < odd)
            found.update((queue, name) for queue in ordered[at:end])
            at = end
        return found


class AveragelyPlugin(Plugin):
    """Shares queues in blocks of neighbours; one join or leave moves up to half of them."""

    name = "averagely"

    @hookimpl
    def rebalance_strategies(self) -> Sequence[Strategy]:
        return [Averagely()]
