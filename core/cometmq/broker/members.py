"""The members of a group as its coordinator knows them, in memory only."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cometmq.broker.sessions import Session
from cometmq.protocol import GroupAdvice, GroupHeartbeat, HeldQueue, Subscription

QueueName = tuple[str, int]
"""Topic and queue."""
NEVER = float("inf")
RESTS_MAX = 6
"""How often the rest of a member that does not claim is doubled."""


class Advice(msgspec.Struct, frozen=True):
    """What a member is told, all but its number."""

    queues: tuple[QueueName, ...] = ()
    subscriptions: tuple[tuple[str, str], ...] = ()
    """Topic and filter, of those that win in the group."""
    warnings: tuple[str, ...] = ()


class HandOvers(msgspec.Struct):
    """Queues that went from one member to another."""

    count: int = 0
    total_s: float = 0.0
    """From the decision to the new holder's claim, of all of them."""
    longest_s: float = 0.0

    def add(self, took_s: float) -> None:
        """One more."""
        self.count += 1
        self.total_s += took_s
        self.longest_s = max(self.longest_s, took_s)


class Member:
    """A member, what it said last, and what it was told."""

    __slots__ = (
        "advice",
        "cost_bytes",
        "declined",
        "generation",
        "heard_s",
        "name",
        "parked",
        "refusals",
        "said",
        "session",
        "since",
        "until_s",
    )

    def __init__(self, said: GroupHeartbeat, session: Session, now_s: float) -> None:
        self.name = said.member
        self.said = said
        self.session = session
        self.heard_s = now_s
        self.cost_bytes = 0
        """What it takes of the room that all members share."""
        self.parked = False
        """A heartbeat of it waits here: as long as its session is heard, it lives."""
        self.until_s = NEVER
        """Its session has ended: it has until then to come back in a new one."""
        self.advice = Advice()
        self.generation = 0
        """When its advice last changed; 0: it never had one."""
        self.since: dict[QueueName, float] = {}
        """Queues that it should claim and has not, and since when."""
        self.declined: dict[QueueName, float] = {}
        """Queues that it did not claim in time, and until when it isn't asked again."""
        self.refusals = 0
        """How often in a row it did not claim what it should."""

    @property
    def timeout_s(self) -> float:
        """How long it may be silent."""
        return self.said.session_timeout_ms / 1000

    @property
    def topics(self) -> frozenset[str]:
        """What it subscribes."""
        return frozenset(each.topic for each in self.said.subscriptions)

    def subscriptions(self) -> tuple[tuple[str, str], ...]:
        """Topic and filter, in order: what two members have to agree on."""
        return tuple(sorted((each.topic, each.filter) for each in self.said.subscriptions))

    def decline(self, now_s: float) -> bool:
        """Note what it did not claim within its timeout, and let go what it is asked for again;
        True if there is any. A member that goes on refusing is asked ever more rarely."""
        back = [queue for queue, until_s in self.declined.items() if now_s >= until_s]
        for queue in back:
            del self.declined[queue]
        late = [q for q, since_s in self.since.items() if now_s - since_s > self.timeout_s]
        if late:
            self.refusals += 1
            rest_s = self.timeout_s * 2 ** min(self.refusals, RESTS_MAX)
            self.declined.update((queue, now_s + rest_s) for queue in late)
            self.since.update((queue, now_s) for queue in late)
        return bool(back or late)

    def why_gone(self, now_s: float) -> str:
        """Why it is regarded as gone; empty while it is not."""
        if self.silent_s(now_s) > self.timeout_s:
            return "it was silent for longer than its timeout"
        came_back = now_s < self.until_s
        return "" if came_back else "its connection ended, and it did not come back"

    def silent_s(self, now_s: float) -> float:
        """How long nothing was heard of it."""
        heard_s = self.heard_s
        if self.parked and self.session.open:
            heard_s = max(heard_s, self.session.seen_s)
        return now_s - heard_s


class Group:
    """A group with at least one member."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[str, Member] = {}
        self.target: dict[QueueName, str] = {}
        """Who should have which queue in the end."""
        self.moving: dict[QueueName, float] = {}
        """Queues on their way to another member, and since when."""
        self.strategy = ""
        self.warnings: tuple[str, ...] = ()
        self.generation = 0
        """Of the newest advice."""

    def leading(self) -> Member:
        """The member whose subscriptions count: they are the newest."""
        return max(self.members.values(), key=lambda member: (member.said.version, member.name))


def advice_reply(group: Group, member: Member) -> GroupAdvice:
    """The advice as the protocol tells it."""
    advice = member.advice
    return GroupAdvice(
        generation=member.generation,
        queues=held_queues(advice.queues),
        subscriptions=[Subscription(topic, filter=text) for topic, text in advice.subscriptions],
        members=len(group.members),
        warnings=list(advice.warnings),
    )


def held_queues(queues: Sequence[QueueName]) -> list[HeldQueue]:
    """Queues as the protocol tells them."""
    return [HeldQueue(*queue) for queue in queues]
