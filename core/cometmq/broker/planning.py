"""Who should have which queue: the group's strategy is asked, what it says is checked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from cometmq.broker.members import Group, Member, QueueName
from cometmq.broker.names import shown
from cometmq.broker.tenures import Tenures
from cometmq.broker.topics import Topics
from cometmq.errors import FAILURES, PluginFailure
from cometmq.group_interfaces import Strategy, StrategyMember, StrategyQueue
from cometmq.plugins import by_key

WARNINGS_MAX = 10

logger = logging.getLogger(__name__)


class Planner:
    """Makes the target of a group from its members, its topics and its strategy."""

    def __init__(
        self,
        topics: Topics,
        tenures: Tenures,
        strategies: Iterable[tuple[str, Strategy]],
        blame: Callable[[str, BaseException], PluginFailure],
    ) -> None:
        """`strategies` by the plugin that brings each; `blame` names and counts such a plugin for
        what its strategy did. Raises PluginError for two of one name."""
        self._topics = topics
        self._tenures = tenures
        self._blame = blame
        brought = [(plugin, strategy.name, strategy) for plugin, strategy in strategies]
        self.strategies = by_key("rebalance strategy", brought)
        self._plugins = {name: plugin for plugin, name, _ in brought}

    @property
    def default(self) -> str:
        """The strategy of a group that names none; empty if there is none at all."""
        return next(iter(self.strategies), "")

    def queues(self, names: Iterable[str]) -> int:
        """How many queues these topics have together."""
        topics = map(self._topics.get, names)
        return sum(topic.queues for topic in topics if topic is not None)

    def holders(self, group: Group) -> dict[QueueName, str]:
        """Who holds what the group reads."""
        found: dict[QueueName, str] = {}
        for name in {topic for topic, _ in group.leading().subscriptions()}:
            topic = self._topics.get(name)
            for queue in range(0 if topic is None else topic.queues):
                assert topic is not None
                holder = self._tenures.living((group.name, topic.incarnation, queue))
                if holder is not None:
                    found[name, queue] = holder.member
        return found

    def plan(self, group: Group) -> dict[QueueName, str]:
        """Queue to member's name. Members get only queues of topics that they subscribe, and only
        of topics that the newest subscriptions have."""
        leader = group.leading()
        group.strategy = leader.said.strategy or self.default
        told, group.warnings = group.warnings, self._warnings(group, leader)
        holders = self.holders(group)
        target: dict[QueueName, str] = {}
        for members, queues in self._classes(group, leader):
            target.update(self._assign(group, members, queues, holders, told))
        _avoid_decliners(group, target)
        return target

    def _classes(
        self, group: Group, leader: Member
    ) -> list[tuple[list[Member], list[StrategyQueue]]]:
        """Members and the queues that each of them may have: topics with the same subscribers are
        shared out together, so that nobody gets the odd queue of every topic."""
        classes: dict[frozenset[str], list[StrategyQueue]] = {}
        for name in sorted(leader.topics):
            topic = self._topics.get(name)
            able = frozenset(each.name for each in group.members.values() if name in each.topics)
            if topic is not None and able:
                queues = [StrategyQueue(name, queue) for queue in range(topic.queues)]
                classes.setdefault(able, []).extend(queues)
        return [
            ([group.members[name] for name in sorted(able)], queues)
            for able, queues in classes.items()
        ]

    def _assign(
        self,
        group: Group,
        members: list[Member],
        queues: list[StrategyQueue],
        holders: Mapping[QueueName, str],
        told: Sequence[str],
    ) -> dict[QueueName, str]:
        """Ask the strategy. One that fails or breaks the contract costs movement, not reading, and
        is logged once, though it may fail at every plan. `told` are the warnings so far."""
        names = {member.name for member in members}
        held: dict[str, set[StrategyQueue]] = {}
        for (topic, queue), name in holders.items():
            held.setdefault(name, set()).add(StrategyQueue(topic, queue))
        asked = [
            StrategyMember(each.name, frozenset(held.get(each.name, ())), each.said.room)
            for each in members
        ]
        try:
            answer = dict(self.strategies[group.strategy].assign(asked, queues))
            if not (set(answer) <= set(queues) and set(answer.values()) <= names):
                raise ValueError("it gave a queue or a member that it was not asked about")
            return {(each.topic, each.queue): name for each, name in answer.items()}
        except FAILURES as error:
            failure = self._blame(self._plugins[group.strategy], error)
            text = (
                f"the queues of group {shown(group.name)} stay where they are, since its strategy "
                f"{group.strategy} fails: {failure}"
            )
            if text not in told:
                logger.error("%s", text, exc_info=error)
            group.warnings = (text, *group.warnings)[:WARNINGS_MAX]
            kept = {(each.topic, each.queue): "" for each in queues}
            return {q: name for q, name in holders.items() if q in kept and name in names}

    def _warnings(self, group: Group, leader: Member) -> tuple[str, ...]:
        wins = leader.subscriptions()
        warnings = [
            f"topic {shown(topic)} is not there: nothing comes from it until it is created"
            for topic, _ in wins
            if self._topics.get(topic) is None
        ]
        for member in sorted(group.members.values(), key=lambda each: each.name):
            if member.subscriptions() != wins:
                warnings.append(differing(group.name, leader, member))
        return tuple(warnings[:WARNINGS_MAX])


def differing(group: str, leader: Member, member: Member) -> str:
    """A sentence on two members that want different things."""
    return (
        f"members of group {shown(group)} subscribe different things: {shown(leader.name)} "
        f"{_listed(leader)}, {shown(member.name)} {_listed(member)}; the newest, that of "
        f"{shown(leader.name)}, counts: give all members the same"
    )


def _listed(member: Member) -> str:
    return ", ".join(f"{topic}:{text}" if text else topic for topic, text in member.subscriptions())


def _avoid_decliners(group: Group, target: dict[QueueName, str]) -> None:
    """What a member was advised to claim and didn't goes to another one, if there is one."""
    counts = {name: 0 for name in group.members}
    for name in target.values():
        counts[name] += 1
    for queue, name in sorted(target.items()):
        if queue not in group.members[name].declined:
            continue
        others = [
            each.name
            for each in group.members.values()
            if queue[0] in each.topics and queue not in each.declined
        ]
        if others:
            target[queue] = min(others, key=lambda other: (counts[other], other))
            counts[name] -= 1
            counts[target[queue]] += 1
