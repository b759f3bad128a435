"""The rebalance strategies under their contract, and what each promises besides."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from cometmq.group_interfaces import StrategyMember, StrategyQueue
from cometmq.testing.strategy_contract import Sharing, StrategyContract, members_of, queues_of
from cometmq_plugins.strategies.averagely import Averagely
from cometmq_plugins.strategies.circle import Circle
from cometmq_plugins.strategies.consistent_hash import ConsistentHash, share_max
from cometmq_plugins.strategies.machine_room import MachineRoom
from cometmq_plugins.strategies.manual import Manual, ManualOptions
from cometmq_plugins.strategies.sticky import Sticky


def owned(found: dict[StrategyQueue, str], name: str) -> list[int]:
    return sorted(queue.queue for queue, owner in found.items() if owner == name)


class TestAveragely(StrategyContract):
    def make_strategy(self) -> Averagely:
        return Averagely()

    def test_neighbours_stay_together_and_the_first_get_the_odd_ones(self) -> None:
        found = dict(Averagely().assign(members_of(3), queues_of(8)))
        assert owned(found, "member-00") == [0, 1, 2]
        assert owned(found, "member-01") == [3, 4, 5]
        assert owned(found, "member-02") == [6, 7]


class TestCircle(StrategyContract):
    def make_strategy(self) -> Circle:
        return Circle()

    def test_queues_are_dealt_in_turn(self) -> None:
        found = dict(Circle().assign(members_of(3), queues_of(8)))
        assert owned(found, "member-00") == [0, 3, 6]
        assert owned(found, "member-02") == [2, 5]


class TestConsistentHash(StrategyContract):
    def make_strategy(self) -> ConsistentHash:
        return ConsistentHash()

    def share_bounds(self, members: int, queues: int) -> tuple[int, int]:
        return 0, share_max(members, queues)

    @pytest.mark.parametrize("members", [2, 5, 10, 50])
    def test_a_join_or_leave_moves_little(self, members: int) -> None:
        """Documented in docs/groups.md: of 200 queues, the share of one member and some that a
        full neighbour had passed on."""
        sharing = Sharing(ConsistentHash(), queues_of(200))
        pool = members_of(members + 1)
        sharing.turn(pool[:-1])
        joined = sharing.turn(pool)
        left = sharing.turn(pool[:-1])
        assert 0 < joined == left <= 3 * share_max(members, 200)


class TestMachineRoom(StrategyContract):
    def make_strategy(self) -> MachineRoom:
        return MachineRoom("")

    def test_queues_are_read_where_they_lie(self) -> None:
        members = [StrategyMember(name, room=name[0]) for name in ("a1", "a2", "b1")]
        queues = [StrategyQueue("t", number, "ab"[number % 2]) for number in range(8)]
        found = dict(MachineRoom("").assign(members, queues))
        assert owned(found, "b1") == [1, 3, 5, 7]
        assert owned(found, "a1") == [0, 2]
        assert owned(found, "a2") == [4, 6]

    def test_a_room_without_members_is_shared_by_all(self) -> None:
        members = [StrategyMember("a1", room="a"), StrategyMember("b1", room="b")]
        queues = [StrategyQueue("t", number, "c") for number in range(4)]
        found = dict(MachineRoom("").assign(members, queues))
        assert owned(found, "a1") == [0, 1]
        assert owned(found, "b1") == [2, 3]

    def test_queues_without_a_room_lie_in_that_of_the_broker(self) -> None:
        members = [StrategyMember("a1", room="a"), StrategyMember("b1", room="b")]
        found = dict(MachineRoom("b").assign(members, queues_of(4)))
        assert set(found.values()) == {"b1"}


class TestManual(StrategyContract):
    complete = False

    def make_strategy(self) -> Manual:
        return Manual({"member-00": ["topic-0:*"], "member-01": ["topic-0:0-9", "topic-1:3"]})

    def share_bounds(self, members: int, queues: int) -> tuple[int, int]:
        return 0, queues

    def test_the_list_decides_and_the_rest_is_read_by_nobody(self) -> None:
        strategy = Manual({"one": ["t:0-1", "u:*"], "two": ["t:1-2"], "away": ["t:3"]})
        queues = [StrategyQueue("t", number) for number in range(4)] + [StrategyQueue("u", 7)]
        found = strategy.assign([StrategyMember("two"), StrategyMember("one")], queues)
        assert found == {
            StrategyQueue("t", 0): "one",
            StrategyQueue("t", 1): "one",
            StrategyQueue("t", 2): "two",
            StrategyQueue("u", 7): "one",
        }

    @pytest.mark.parametrize("text", ["orders", "orders:", "orders:a", "or ders:1", "orders:1-"])
    def test_a_bad_list_is_refused_when_it_is_read(self, text: str) -> None:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"queues": {"one": [text]}}, ManualOptions)


class TestSticky(StrategyContract):
    def make_strategy(self) -> Sticky:
        return Sticky()

    @pytest.mark.parametrize("seed", range(20))
    def test_it_moves_no_more_than_even_shares_ask_for(self, seed: int) -> None:
        random = Random(seed)
        queues = queues_of(random.randint(1, 200), topics=random.randint(1, 3))
        sharing = Sharing(Sticky(), queues)
        pool = members_of(50)
        sharing.turn(random.sample(pool, random.randint(1, 50)))
        for _ in range(10):
            there = random.sample(pool, random.randint(1, 50))
            shares = sorted(sharing.shares(there), reverse=True)
            share, odd = divmod(len(queues), len(there))
            # Whoever has most may keep one more: no even sharing keeps more queues in place.
            kept = sum(min(has, share + (at < odd)) for at, has in enumerate(shares))
            assert sharing.turn(there) == len(queues) - kept

    @pytest.mark.parametrize("members", [1, 2, 5, 10, 49])
    def test_one_join_moves_just_the_newcomers_share(self, members: int) -> None:
        sharing = Sharing(Sticky(), queues_of(200))
        pool = members_of(members + 1)
        sharing.turn(pool[:-1])
        assert sharing.turn(pool) == 200 // (members + 1)

    def test_topics_are_spread_over_members(self) -> None:
        sharing = Sharing(Sticky(), queues_of(12, topics=3))
        sharing.turn(members_of(4))
        topics: dict[str, set[str]] = {}
        for queue, name in sharing.owners.items():
            topics.setdefault(name, set()).add(queue.topic)
        assert all(len(each) == 3 for each in topics.values())
