"""Plugin `consistent-hash`: a queue stays where a ring of hashes puts it, whoever held it before.

The ring has bounded loads: a member that is full is passed over. So no member gets more than
a quarter above the average (rounded up), and a join or leave still moves few queues. Unlike
`sticky` the outcome depends on names alone, so two coordinators agree without a word.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b

from cometmq.group_interfaces import Strategy, StrategyMember, StrategyQueue
from cometmq.hookspecs import hookimpl
from cometmq.plugins import Plugin

POINTS = 64
"""Of each member on the ring."""


def share_max(members: int, queues: int) -> int:
    """The most queues that one member gets: a quarter above the average, rounded up."""
    return -(-5 * queues // (4 * members))


class ConsistentHash:
    """A ring of hashes with bounded loads."""

    name = "consistent-hash"

    def assign(
        self, members: Sequence[StrategyMember], queues: Collection[StrategyQueue]
    ) -> Mapping[StrategyQueue, str]:
        """See `Strategy.assign`."""
        ring = sorted(
            (_hash(f"{member.name}#{point}"), member.name)
            for member in members
            for point in range(POINTS)
        )
        room = dict.fromkeys(
            (member.name for member in members), share_max(len(members), len(queues))
        )
        placed = sorted((_hash(f"{queue.topic}:{queue.queue}"), queue) for queue in queues)
        found: dict[StrategyQueue, str] = {}
        for place, queue in placed:
            at = bisect_right(ring, (place, ""))
            while not room[ring[at % len(ring)][1]]:
                at += 1
            name = ring[at % len(ring)][1]
            room[name] -= 1
            found[queue] = name
        return found


class ConsistentHashPlugin(Plugin):
    """Puts queues on a ring of hashes, no member above 1.25 times the average."""

    name = "consistent-hash"

    @hookimpl
    def rebalance_strategies(self) -> Sequence[Strategy]:
        return [ConsistentHash()]


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
