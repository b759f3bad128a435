"""The operations on groups: list, describe, reset, delete."""

from __future__ import annotations

from cometmq.broker.catalog import Catalog
from cometmq.broker.claims import GROUP_KIND, GroupChange
from cometmq.broker.commits import Commits, check_room
from cometmq.broker.coordinator import Coordinator
from cometmq.broker.gate import Gate
from cometmq.broker.group_lag import GroupLag
from cometmq.broker.members import Member, held_queues
from cometmq.broker.names import shown
from cometmq.broker.offsets import CommittedOffsets
from cometmq.broker.refusals import Rejected, check_group
from cometmq.broker.requests import Body, Request
from cometmq.broker.resets import Resets, changes_of, parts_of
from cometmq.broker.tenures import Tenures
from cometmq.broker.waits import Waits
from cometmq.log import Log
from cometmq.protocol import (
    Empty,
    GroupDelete,
    GroupDescribe,
    GroupDescription,
    GroupList,
    GroupListing,
    GroupReset,
    GroupResetReply,
    GroupSummary,
    MemberInfo,
    Status,
)

LISTED_MAX = 5000
"""Groups in one reply, which has to fit into a frame."""


class GroupOperations:
    """Handlers for people and tools. What they change waits for the broker's default level."""

    def __init__(
        self,
        log: Log,
        catalog: Catalog,
        gate: Gate,
        waits: Waits,
        offsets: CommittedOffsets,
        commits: Commits,
        tenures: Tenures,
        coordinator: Coordinator,
        lag: GroupLag,
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._gate = gate
        self._waits = waits
        self._offsets = offsets
        self._commits = commits
        self._tenures = tenures
        self._coordinator = coordinator
        self._lag = lag
        self._resets = Resets(log, catalog, offsets, tenures)

    def list(self, request: Request, header: GroupList, body: Body) -> None:
        self._gate.check(request.session, "GROUP_LIST", "")
        self._commits.flush()
        known = {*self._offsets.names(), *self._tenures.claims.groups(), *self._coordinator.groups}
        names = sorted(name for name in known if name.startswith(header.prefix))
        if len(names) > LISTED_MAX:
            raise Rejected(
                Status.LIMIT_REACHED,
                f"{len(names)} groups begin with {shown(header.prefix)}, {LISTED_MAX} fit into one "
                "reply: ask with a longer prefix",
            )
        request.answer(GroupListing([self._summary(name) for name in names]))

    def describe(self, request: Request, header: GroupDescribe, body: Body) -> None:
        self._gate.check(request.session, "GROUP_DESCRIBE", f"group:{header.group}")
        self._check_known(header.group)
        group = self._coordinator.groups.get(header.group)
        topics = self._lag.topics_of(header.group)
        members = [] if group is None else sorted(group.members.items())
        request.answer(
            GroupDescription(
                group=header.group,
                mode=self._tenures.claims.mode(header.group),
                generation=0 if group is None else group.generation,
                strategy="" if group is None else group.strategy,
                members=[_member_info(member) for _, member in members],
                queues=self._lag.queues(header.group),
                can_undo=self._resets.can_undo(header.group, topics),
            )
        )

    def reset(self, request: Request, header: GroupReset, body: Body) -> None:
        check_group(header.group)
        self._gate.check(request.session, "GROUP_RESET", f"group:{header.group}")
        self._commits.flush()
        if header.topic:
            topics = [self._catalog.find(header.topic)]
        else:
            self._check_known(header.group)
            topics = self._lag.topics_of(header.group)
        moves = self._resets.moves(header, topics)
        if header.dry_run or not moves:
            request.answer(GroupResetReply(parts_of(moves), done=False))
            return
        if not header.force:
            self._check_idle(header.group, "reset")
        for move in moves:
            check_room(self._offsets, *move.key)
        appended = self._tenures.append(changes_of(moves))
        self._waits.answer(request, appended.end, lambda: GroupResetReply(parts_of(moves)))

    def delete(self, request: Request, header: GroupDelete, body: Body) -> None:
        self._gate.check(request.session, "GROUP_DELETE", f"group:{header.group}")
        self._check_known(header.group)
        if not header.force:
            self._check_idle(header.group, "delete")
        self._tenures.void(self._tenures.held(header.group))
        appended = self._log.append_control(GROUP_KIND, [GroupChange(header.group, deleted=True)])
        self._waits.answer(request, appended.end, Empty)

    def _summary(self, name: str) -> GroupSummary:
        """May raise NotLoaded."""
        group = self._coordinator.groups.get(name)
        return GroupSummary(
            group=name,
            members=0 if group is None else len(group.members),
            topics=len(self._lag.topics_of(name)),
            lag=self._lag.messages(name),
        )

    def _check_known(self, name: str) -> None:
        """Raises Rejected for a group of which nothing is known."""
        check_group(name)
        self._commits.flush()
        if not (
            self._offsets.knows(name)
            or self._tenures.claims.mode(name)
            or name in self._coordinator.groups
        ):
            raise Rejected(
                Status.GROUP_NOT_FOUND,
                f"there is no group {shown(name)} here: `mq group list` shows those that there are",
            )

    def _check_idle(self, name: str, verb: str) -> None:
        """Raises Rejected while somebody consumes for the group."""
        group = self._coordinator.groups.get(name)
        members = set() if group is None else set(group.members)
        for key in self._tenures.held(name):
            holder = self._tenures.living(key)
            if holder is not None:
                members.add(holder.member)
        if members:
            who = ", ".join(shown(member) for member in sorted(members)[:3])
            noun = "member" if len(members) == 1 else "members"
            raise Rejected(
                Status.REFUSED,
                f"group {shown(name)} has {len(members)} active {noun} ({who}): stop them before "
                f"you {verb} it, or force it (`--force`), which takes their queues away from them",
            )


def _member_info(member: Member) -> MemberInfo:
    said = member.said
    return MemberInfo(
        member=member.name,
        host=said.host,
        client_id=member.session.client_id,
        session_timeout_ms=said.session_timeout_ms,
        subscriptions=said.subscriptions,
        advised=held_queues(member.advice.queues),
    )
