"""Plugin `sticky`: everybody keeps what they have, as far as shares stay even. The default.

Each member keeps as many of its queues as its share allows; the members that hold most get the
shares that are one larger, so no assignment with even shares moves fewer. What is left is dealt to
those with room, preferring who has least of that topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from cometmq.group_interfaces import Strategy, StrategyMember, StrategyQueue
from cometmq.hookspecs import hookimpl
from cometmq.plugins import Plugin


class Sticky:
    """Even shares, least movement."""

    name = "sticky"

    def assign(
        self, members: Sequence[StrategyMember], queues: Collection[StrategyQueue]
    ) -> Mapping[StrategyQueue, str]:
        """See `Strategy.assign`."""
        asked = set(queues)
        taken: set[StrategyQueue] = set()
        held: dict[str, list[StrategyQueue]] = {}
        for member in sorted(members, key=lambda each: each.name):
            # Two may believe that they hold the same queue: the claim decides, here the first.
            mine = (member.held & asked) - taken
            taken |= mine
            held[member.name] = sorted(mine)
        share, odd = divmod(len(asked), len(members))
        found: dict[StrategyQueue, str] = {}
        room: dict[str, int] = {}
        topics: dict[str, Counter[str]] = {}
        most_first = sorted(held, key=lambda name: (-len(held[name]), name))
        for place, name in enumerate(most_first):
            size = share + (place < odd)
            kept = held[name][:size]
            room[name] = size - len(kept)
            topics[name] = Counter(queue.topic for queue in kept)
            found.update((queue, name) for queue in kept)
        for queue in sorted(asked - found.keys()):
            name = min(
                (name for name, left in room.items() if left),
                key=lambda name: (topics[name][queue.topic], -room[name], name),
            )
            room[name] -= 1
            topics[name][queue.topic] += 1
            found[queue] = name
        return found


class StickyPlugin(Plugin):
    """Even shares with the least movement that keeps them even."""

    name = "sticky"

    @hookimpl
    def rebalance_strategies(self) -> Sequence[Strategy]:
        return [Sticky()]
