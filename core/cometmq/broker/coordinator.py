"""The group coordinator: membership, generations, advice. It knows no strategy, and nothing here
is needed for safety: a queue is read by who holds its claim, whatever was advised.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cometmq.broker.claims import MODE, ClaimKey
from cometmq.broker.gate import Gate
from cometmq.broker.member_room import MemberRoom, check_said, cost_bytes
from cometmq.broker.members import (
    NEVER,
    Advice,
    Group,
    HandOvers,
    Member,
    QueueName,
    advice_reply,
)
from cometmq.broker.names import shown
from cometmq.broker.park import Park
from cometmq.broker.planning import Planner, differing
from cometmq.broker.refusals import Rejected, check_group, check_member
from cometmq.broker.requests import Body, Request
from cometmq.broker.sessions import Session, Sessions
from cometmq.broker.tenures import Tenures
from cometmq.names import is_name
from cometmq.protocol import Empty, GroupHeartbeat, GroupLeave, Status

MEMBERS_MAX = 10_000
SUBSCRIPTIONS_MAX = 1024
MEMBER_QUEUES_MAX = 7000
"""Of one member's topics together: advice has to fit into a frame, whatever their names."""
TIMEOUT_MIN_MS = 100
TIMEOUT_MAX_MS = 24 * 3600 * 1000
HEARTBEATS = 3
"""A member is heard so often in a session timeout, whatever it asks for."""
GENERATIONS = 1_000_000
"""In one epoch: so that no generation comes twice, though membership is not in the log."""

logger = logging.getLogger(__name__)


class Coordinator:
    """All groups with members at this broker."""

    def __init__(
        self, sessions: Sessions, park: Park, gate: Gate, tenures: Tenures, planner: Planner
    ) -> None:
        self._sessions = sessions
        self._park = park
        self._gate = gate
        self._tenures = tenures
        self._planner = planner
        self._room = MemberRoom()
        self.groups: dict[str, Group] = {}
        self._by_session: dict[Session, dict[Member, Group]] = {}
        self._returning: dict[str, tuple[set[str], float]] = {}
        """Members of the log's claims that a start waits for, and until when."""
        self._generation = 0
        self.rebalances = 0
        """How often queues went to other members."""
        self.hand_overs = HandOvers()

    def begin(self, epoch: int) -> None:
        """The log is open: who held claims when it was closed gets one session time to rejoin."""
        self._generation = epoch * GENERATIONS
        now_s = self._sessions.now_s()
        for (group, _, _), holder in self._tenures.claims.items():
            names, until_s = self._returning.get(group, (set[str](), 0.0))
            names.add(holder.member)
            self._returning[group] = names, max(until_s, now_s + holder.timeout_ms / 1000)

    # --- operations ---------------------------------------------------------------------------

    def heartbeat(self, request: Request, header: GroupHeartbeat, body: Body) -> None:
        self._check(header)
        header.held = []  # what it holds its claims say; this would only be kept
        self._gate.check(request.session, "GROUP_HEARTBEAT", f"group:{header.group}")
        group = self.groups.get(header.group) or Group(header.group)
        member = group.members.get(header.member)
        taken_bytes = cost = 0 if member is None else member.cost_bytes
        if member is None or _differs(member, header):
            cost = self._check_join(group, Member(header, request.session, 0.0))
            self._room.check(cost - taken_bytes)
        # An older heartbeat of the same member that still waits here is answered first.
        self._park.release(_key(header.group, header.member))
        now_s = self._sessions.now_s()
        if member is None:
            self.groups[header.group] = group
            member = group.members[header.member] = Member(header, request.session, now_s)
            self._returned(header.group, header.member)
            replan = True
        else:
            replan = _differs(member, header)
        member.said, member.heard_s, member.until_s = header, now_s, NEVER
        self._room.taken_bytes += cost - taken_bytes
        member.cost_bytes = cost
        self._bind(group, member, request.session)
        if replan:
            self._plan(group)
        self._answer_or_park(request, group, member)

    def leave(self, request: Request, header: GroupLeave, body: Body) -> None:
        check_group(header.group)
        self._gate.check(request.session, "GROUP_LEAVE", f"group:{header.group}")
        group = self.groups.get(header.group)
        member = None if group is None else group.members.get(header.member)
        if group is not None and member is not None:
            self._remove([(group, member, "it left")])
        request.answer(Empty())

    # --- news ---------------------------------------------------------------------------------

    def claims_changed(self, groups: set[str]) -> None:
        """Queues were claimed or let go: who waits for one hears of it."""
        for name in groups:
            group = self.groups.get(name)
            if group is not None:
                self._advise(group)

    def topic_changed(self, topic: str) -> None:
        """A topic was made, changed or deleted."""
        for group in list(self.groups.values()):
            if any(topic in member.topics for member in group.members.values()):
                self._plan(group)

    def tick(self) -> None:
        """Give up members that are silent, and advice that nobody follows."""
        now_s = self._sessions.now_s()
        waited = [name for name, (_, until_s) in self._returning.items() if now_s >= until_s]
        for name in waited:
            del self._returning[name]
            if name in self.groups:
                self._plan(self.groups[name])
        self._remove(
            [
                (group, member, why)
                for group in self.groups.values()
                for member in group.members.values()
                if (why := member.why_gone(now_s))
            ]
        )
        for group in list(self.groups.values()):
            # Whom else should it ask, if there is only one member?
            if len(group.members) > 1 and any(
                [member.decline(now_s) for member in group.members.values()]
            ):
                self._plan(group)

    def timeout_ms_of(self, group: str, member: str) -> int | None:
        """How long a member may be silent; None for one that is not known here."""
        found = self.groups.get(group)
        known = None if found is None else found.members.get(member)
        return None if known is None else known.said.session_timeout_ms

    # --- joining and leaving ------------------------------------------------------------------

    def _check(self, header: GroupHeartbeat) -> None:
        check_group(header.group)
        check_member(header.member)
        topics = [each.topic for each in header.subscriptions]
        if not 1 <= len(topics) <= SUBSCRIPTIONS_MAX or len(set(topics)) < len(topics):
            raise Rejected(
                Status.BAD_REQUEST,
                f"a member with {len(topics)} subscriptions: give 1 to {SUBSCRIPTIONS_MAX}, each "
                "topic once",
            )
        for topic in topics:
            if not is_name(topic):
                raise Rejected(Status.BAD_NAME, f"{shown(topic)} is no topic name")
        if not TIMEOUT_MIN_MS <= header.session_timeout_ms <= TIMEOUT_MAX_MS:
            raise Rejected(
                Status.BAD_REQUEST,
                f"a session timeout of {header.session_timeout_ms} ms: give {TIMEOUT_MIN_MS} to "
                f"{TIMEOUT_MAX_MS}",
            )
        check_said(header)
        self._check_strategy(header.strategy)
        mode = self._tenures.claims.mode(header.group)
        if mode not in ("", MODE):
            raise Rejected(
                Status.REFUSED,
                f"group {shown(header.group)} consumes by {mode}, not by {MODE}: use another group",
            )

    def _check_strategy(self, name: str) -> None:
        known = self._planner.strategies
        if not known:
            raise Rejected(
                Status.REFUSED,
                "no plugin of this broker brings a rebalance strategy: enable one, such as sticky",
            )
        if name and name not in known:
            raise Rejected(
                Status.REFUSED,
                f"no plugin of this broker brings the rebalance strategy {shown(name)}, there are "
                f"{', '.join(known)}: choose one of them, or enable its plugin",
            )

    def _check_join(self, group: Group, joining: Member) -> int:
        """What it would take of the room for members. Raises Rejected."""
        if len(group.members) >= MEMBERS_MAX and joining.name not in group.members:
            raise Rejected(
                Status.LIMIT_REACHED,
                f"group {shown(group.name)} has {len(group.members)} members, the most that one "
                "group may have: use another group",
            )
        queues = self._planner.queues(joining.topics)
        if queues > MEMBER_QUEUES_MAX:
            raise Rejected(
                Status.LIMIT_REACHED,
                f"the topics that member {shown(joining.name)} subscribes have {queues} queues, "
                f"{MEMBER_QUEUES_MAX} can be shared out in one group: use a group for each of them",
            )
        for other in group.members.values():
            if other.name == joining.name or not (joining.said.strict or other.said.strict):
                continue
            if other.subscriptions() != joining.subscriptions():
                raise Rejected(Status.REFUSED, differing(group.name, other, joining))
        return cost_bytes(joining.said, queues)

    def _returned(self, group: str, member: str) -> None:
        """One less to wait for after a start."""
        names, _ = self._returning.get(group, (set[str](), 0.0))
        names.discard(member)
        if not names:
            self._returning.pop(group, None)

    def _bind(self, group: Group, member: Member, session: Session) -> None:
        """The member ends with its session, unless the same client goes on in another one."""
        if member.session is not session:
            self._by_session.get(member.session, {}).pop(member, None)
            member.session = session
        members = self._by_session.get(session)
        if members is None:
            members = self._by_session[session] = {}
            session.on_end[self] = lambda: self._ended(session)
        members[member] = group

    def _ended(self, session: Session) -> None:
        gone: list[tuple[Group, Member, str]] = []
        for member, group in self._by_session.pop(session, {}).items():
            member.until_s = session.returns_s(member.timeout_s)
            if member.until_s <= self._sessions.now_s():
                gone.append((group, member, "its connection ended"))
        self._remove(gone)

    def _remove(self, gone: Sequence[tuple[Group, Member, str]]) -> None:
        """Those who go together, and why; they cost each of their groups one plan."""
        held: list[ClaimKey] = []
        for group, member, why in gone:
            logger.info("member %s leaves group %s: %s", member.name, group.name, why)
            del group.members[member.name]
            self._room.taken_bytes -= member.cost_bytes
            self._by_session.get(member.session, {}).pop(member, None)
            if not group.members:
                del self.groups[group.name]
            held += self._tenures.held(group.name, member.name)
            # Whoever still waits under its name hears that it is out.
            self._park.release(_key(group.name, member.name))
        self._tenures.void(held)
        for group in {group.name: group for group, _, _ in gone if group.members}.values():
            self._plan(group)

    # --- advice -------------------------------------------------------------------------------

    def _plan(self, group: Group) -> None:
        now_s = self._sessions.now_s()
        before, warned = group.target, group.warnings
        group.target = self._planner.plan(group)
        if group.name in self._returning:
            # Queues stay where they are until everybody is back, or had the time to be.
            holders = self._planner.holders(group)
            group.target = {q: name for q, name in holders.items() if name in group.members}
        for warning in set(group.warnings) - set(warned):
            logger.warning("%s", warning)
        moved = [q for q, name in group.target.items() if before.get(q, name) != name]
        group.moving = {q: at for q, at in group.moving.items() if q in group.target}
        group.moving.update((queue, now_s) for queue in moved)
        self.rebalances += bool(moved)
        self._advise(group)

    def _advise(self, group: Group) -> None:
        """Tell each member what it may claim now: what nobody else holds any more."""
        now_s = self._sessions.now_s()
        holders = self._planner.holders(group) if group.members else {}
        queues: dict[str, list[QueueName]] = {name: [] for name in group.members}
        for queue, name in sorted(group.target.items()):
            if name in queues and holders.get(queue, name) == name:
                queues[name].append(queue)
                if holders.get(queue) == name:
                    self._handed_over(group, queue, now_s)
        wins = group.leading().subscriptions() if group.members else ()
        told = [
            member
            for member in group.members.values()
            if self._tell(group, member, queues[member.name], wins, holders, now_s)
        ]
        for member in told:
            self._park.fire(_key(group.name, member.name))

    def _tell(
        self,
        group: Group,
        member: Member,
        queues: Sequence[QueueName],
        wins: tuple[tuple[str, str], ...],
        holders: dict[QueueName, str],
        now_s: float,
    ) -> bool:
        """Note what a member should claim; True if that is news."""
        missing = [queue for queue in queues if holders.get(queue) != member.name]
        member.since = {queue: member.since.get(queue, now_s) for queue in missing}
        if queues and not missing:
            member.refusals = 0
        advice = Advice(tuple(queues), wins, group.warnings)
        if advice == member.advice and member.generation:
            return False
        self._generation += 1
        member.advice = advice
        member.generation = group.generation = self._generation
        return True

    def _handed_over(self, group: Group, queue: QueueName, now_s: float) -> None:
        began_s = group.moving.pop(queue, None)
        if began_s is not None:
            self.hand_overs.add(now_s - began_s)

    def _answer_or_park(self, request: Request, group: Group, member: Member) -> None:
        header = member.said
        member.parked = False
        waiting = _ParkedHeartbeat(self, request, header)
        wait_ms = min(header.wait_ms, header.session_timeout_ms // HEARTBEATS)
        if header.known == member.generation and wait_ms:
            member.parked = self._park.hold(waiting, [_key(group.name, member.name)], wait_ms)
            if member.parked:
                request.when_gone(waiting, lambda: self._park.drop(waiting))
                return
        request.answer(advice_reply(group, member))


class _ParkedHeartbeat:
    """A heartbeat that waits for its member's advice to change."""

    __slots__ = ("_coordinator", "_header", "_request")

    def __init__(self, coordinator: Coordinator, request: Request, header: GroupHeartbeat) -> None:
        self._coordinator = coordinator
        self._request = request
        self._header = header

    def retry(self) -> bool:
        group = self._coordinator.groups.get(self._header.group)
        member = None if group is None else group.members.get(self._header.member)
        if member is not None and member.generation == self._header.known:
            return False
        self.answer_empty()
        return True

    def answer_empty(self) -> None:
        request, header = self._request, self._header
        request.session.on_end.pop(self, None)
        group = self._coordinator.groups.get(header.group)
        member = None if group is None else group.members.get(header.member)
        if not request.session.open:
            request.drop()
        elif group is None or member is None:
            request.fail(
                Status.RETRY,
                f"member {shown(header.member)} is not in group {shown(header.group)} any more: "
                "join it again",
            )
        else:
            member.parked = False
            request.answer(advice_reply(group, member))


def _key(group: str, member: str) -> tuple[str, str, str]:
    """Under which a member's heartbeat is parked."""
    return "group-heartbeat", group, member


def _differs(member: Member, header: GroupHeartbeat) -> bool:
    """Whether what a member says now may change who should have what."""
    old = member.said
    return (old.subscriptions, old.version, old.strategy, old.room, old.strict) != (
        header.subscriptions,
        header.version,
        header.strategy,
        header.room,
        header.strict,
    )
