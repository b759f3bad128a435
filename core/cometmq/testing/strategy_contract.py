"""What every rebalance strategy must hold to, as tests that a plugin's author inherits.

    class TestCircle(StrategyContract):
        def make_strategy(self) -> Circle:
            return Circle()

A strategy only advises, so a bad one loses no message and reads none twice; but it can leave queues
unread, load one member with all of them, or move them about for nothing.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from cometmq.group_interfaces import Strategy, StrategyMember, StrategyQueue

SIZES = [(m, q) for m in (1, 2, 3, 7, 16, 31, 50) for q in (1, 2, 3, 8, 50, 64, 199, 200)]
"""Members and queues."""


def members_of(count: int) -> list[StrategyMember]:
    """Members without a history."""
    return [StrategyMember(f"member-{number:02}") for number in range(count)]


def queues_of(count: int, topics: int = 1) -> list[StrategyQueue]:
    """Queues of so many topics."""
    return [StrategyQueue(f"topic-{at % topics}", at // topics) for at in range(count)]


class Sharing:
    """A group over time: each `turn` starts from what everybody held before."""

    def __init__(self, strategy: Strategy, queues: list[StrategyQueue]) -> None:
        self._strategy = strategy
        self._queues = queues
        self.owners: dict[StrategyQueue, str] = {}

    def turn(self, members: list[StrategyMember]) -> int:
        """Ask again; returns how many queues went from one member to another, or to one that was
        read by nobody living."""
        held: dict[str, set[StrategyQueue]] = {}
        for queue, name in self.owners.items():
            held.setdefault(name, set()).add(queue)
        asked = [
            StrategyMember(each.name, frozenset(held.get(each.name, ())), each.room)
            for each in members
        ]
        before, self.owners = self.owners, dict(self._strategy.assign(asked, self._queues))
        return sum(before.get(queue, name) != name for queue, name in self.owners.items())

    def shares(self, members: list[StrategyMember]) -> list[int]:
        """How many queues each member has."""
        counts = Counter(self.owners.values())
        return [counts[member.name] for member in members]


class StrategyContract:
    """Inherit and fill in `make_strategy`; the other two only if the strategy is a special one."""

    def make_strategy(self) -> Strategy:
        """A new strategy that knows nothing."""
        raise NotImplementedError

    def share_bounds(self, members: int, queues: int) -> tuple[int, int]:
        """The least and the most queues that a member may get."""
        return queues // members, -(-queues // members)

    complete = True
    """Whether every queue gets a member."""

    # --- the tests ------------------------------------------------------------------------------

    @pytest.mark.parametrize(("members", "queues"), SIZES)
    def test_each_queue_has_one_of_the_members_and_shares_are_even(
        self, members: int, queues: int
    ) -> None:
        there, asked = members_of(members), queues_of(queues, topics=3)
        sharing = Sharing(self.make_strategy(), asked)
        sharing.turn(there)
        assert set(sharing.owners) <= set(asked)
        assert set(sharing.owners.values()) <= {member.name for member in there}
        if self.complete:
            assert set(sharing.owners) == set(asked)
        least, most = self.share_bounds(members, queues)
        shares = sharing.shares(there)
        assert least <= min(shares) and max(shares) <= most, shares

    @pytest.mark.parametrize("seed", range(10))
    def test_shares_stay_even_as_members_come_and_go(self, seed: int) -> None:
        random = Random(seed)
        queues = queues_of(random.randint(1, 200), topics=random.randint(1, 4))
        sharing = Sharing(self.make_strategy(), queues)
        pool = members_of(50)
        for _ in range(15):
            there = random.sample(pool, random.randint(1, 50))
            sharing.turn(there)
            least, most = self.share_bounds(len(there), len(queues))
            shares = sharing.shares(there)
            assert least <= min(shares) and max(shares) <= most, shares

    @pytest.mark.parametrize("seed", range(10))
    def test_the_order_of_members_and_queues_does_not_matter(self, seed: int) -> None:
        random = Random(seed)
        queues = queues_of(random.randint(1, 60), topics=2)
        before = dict(self.make_strategy().assign(members_of(5), queues))
        members = [
            StrategyMember(
                each.name,
                frozenset(queue for queue, name in before.items() if name == each.name),
            )
            for each in members_of(7)
        ]
        plain = dict(self.make_strategy().assign(members, queues))
        random.shuffle(members)
        random.shuffle(queues)
        assert dict(self.make_strategy().assign(members, queues)) == plain

    def test_asked_again_nothing_moves(self) -> None:
        members, queues = members_of(7), queues_of(40, topics=3)
        sharing = Sharing(self.make_strategy(), queues)
        sharing.turn(members)
        assert sharing.turn(members) == 0

    def test_what_a_member_holds_of_other_topics_does_not_matter(self) -> None:
        other = frozenset({StrategyQueue("elsewhere", 0)})
        members = [StrategyMember(each.name, other) for each in members_of(3)]
        queues = queues_of(9)
        found = dict(self.make_strategy().assign(members, queues))
        assert found == dict(self.make_strategy().assign(members_of(3), queues))

    def test_two_that_believe_to_hold_the_same_queue_are_no_problem(self) -> None:
        queues = queues_of(8)
        members = [StrategyMember(each.name, frozenset(queues)) for each in members_of(3)]
        found = self.make_strategy().assign(members, queues)
        assert set(found) <= set(queues)
        assert not self.complete or set(found) == set(queues)
