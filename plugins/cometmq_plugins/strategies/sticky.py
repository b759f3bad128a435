"""Plugin `sticky`: everybody keeps what they have, as far as shares stay even. The default.

Each member keeps as many of its queues as its share allows; the members that hold most get the
shares that are one larger, so no assignment with even shares moves fewer. What is left is dealt to
those with room, preferring who has least of that topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby

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
        for topic, left in groupby(sorted(asked - found.keys()), key=lambda queue: queue.topic):
            # Who has least of this topic comes first, then who has most room.
            able = [(topics[name][topic], -free, name) for name, free in room.items() if free]
            heapify(able)
            for queue in left:
                count, _, name = heappop(able)
                found[queue] = name
                room[name] -= 1
                if room[name]:
                    heappush(able, (count + 1, -room[name], name))
        return found


class StickyPlugin(Plugin):
    """Even shares with the least movement that keeps them even."""

    name = "sticky"

    @hookimpl
    def rebalance_strategies(self) -> Sequence[Strategy]:
        return [Sticky()]
