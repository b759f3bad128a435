"""The operations CLAIM and RELEASE: safety lives here, at the broker that holds the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cometmq.broker.catalog import Catalog
from cometmq.broker.claims import GROUP_KIND, MODE, ClaimChange, GroupChange
from cometmq.broker.commits import check_room
from cometmq.broker.gate import Gate
from cometmq.broker.names import shown
from cometmq.broker.offsets import CommittedOffsets, Place
from cometmq.broker.places import EARLIEST, go_on_from, place_at
from cometmq.broker.refusals import Rejected, check_group, check_member, check_parts
from cometmq.broker.requests import Body, Request
from cometmq.broker.tenures import Tenures
from cometmq.broker.tokens import check_token, goes_on, is_token
from cometmq.broker.waits import Waits
from cometmq.log import Log
from cometmq.log.records import TopicChange
from cometmq.protocol import (
    Claim,
    ClaimPart,
    ClaimReply,
    ClaimResultPart,
    CommitReply,
    PartStatus,
    Release,
    ReleasePart,
    Status,
    Token,
)

HAND_OVER_MS = 500
"""When to ask again for a queue that a living member holds: by then it may have let go."""


class _Accepted(NamedTuple):
    """A part of a claim that is granted."""

    at: int
    topic: TopicChange
    queue: int
    kept: bool


class _Begins(NamedTuple):
    """Where the group of a claim begins, what it had no place in."""

    places: dict[tuple[int, int], Place]
    topics: dict[int, Rejected | None]
    """Those all of whose queues were given one, or why that can't be: looked at once, not for each
    of the queues that are claimed."""


class ClaimOperations:
    """Handlers. Each queue of a request succeeds or fails alone; what succeeds is one batch."""

    def __init__(
        self,
        log: Log,
        catalog: Catalog,
        gate: Gate,
        waits: Waits,
        offsets: CommittedOffsets,
        tenures: Tenures,
        timeout_ms_of: Callable[[str, str], int],
    ) -> None:
        """`timeout_ms_of(group, member)`: how long a member may be silent, if it didn't say."""
        self._log = log
        self._catalog = catalog
        self._gate = gate
        self._waits = waits
        self._offsets = offsets
        self._tenures = tenures
        self._timeout_ms_of = timeout_ms_of

    def claim(self, request: Request, header: Claim, body: Body) -> None:
        self._check(request, "CLAIM", header.group, header.member, len(header.parts))
        self._check_mode(header.group)
        results = [ClaimResultPart(Status.OK) for _ in header.parts]
        accepted: list[_Accepted] = []
        begins = _Begins({}, {})
        for at, part in enumerate(header.parts):
            try:
                granted = self._grant(at, header, part)
                self._add_places(header, granted, begins)
            except Rejected as error:
                results[at] = ClaimResultPart(
                    error.status, detail=error.detail, retry_after_ms=error.retry_after_ms
                )
            else:
                accepted.append(granted)
        if not accepted:
            request.answer(ClaimReply(results))
            return
        self._append(request, header, accepted, begins.places, results)

    def release(self, request: Request, header: Release, body: Body) -> None:
        self._check(request, "RELEASE", header.group, header.member, len(header.parts))
        changes: dict[tuple[int, int], ClaimChange] = {}
        statuses: list[PartStatus] = []
        for part in header.parts:
            try:
                change, status = self._let_go(header.group, part)
            except Rejected as error:
                statuses.append(PartStatus(error.status, error.detail, error.retry_after_ms))
            else:
                changes[change.incarnation, change.queue] = change
                statuses.append(status)
        if not changes:
            request.answer(CommitReply(statuses))
            return
        appended = self._tenures.append(list(changes.values()))
        self._waits.answer(request, appended.end, lambda: CommitReply(statuses))

    def _check(self, request: Request, operation: str, group: str, member: str, parts: int) -> None:
        check_group(group)
        check_member(member)
        check_parts(parts)
        self._gate.check(request.session, operation, f"group:{group}")

    def _check_mode(self, group: str) -> None:
        mode = self._tenures.claims.mode(group)
        if mode not in ("", MODE):
            raise Rejected(
                Status.REFUSED,
                f"group {shown(group)} consumes by {mode}, so its members can't claim queues: use "
                "another group",
            )

    def _grant(self, at: int, header: Claim, part: ClaimPart) -> _Accepted:
        """Raises Rejected if somebody else holds the queue, or if there is no such queue."""
        topic = self._catalog.find_queue(part.topic, part.queue, part.incarnation)
        key = header.group, topic.incarnation, part.queue
        holder = self._tenures.living(key)
        if holder is not None and holder.member != header.member:
            raise Rejected(
                Status.CLAIMED,
                f"queue {part.queue} of topic {shown(part.topic)} is held by member "
                f"{shown(holder.member)} of group {shown(header.group)}: wait until it lets go",
                self._tenures.retry_after_ms(key, HAND_OVER_MS),
            )
        kept = holder is not None and goes_on(part.token, holder)
        return _Accepted(at, topic, part.queue, kept)

    def _add_places(self, header: Claim, granted: _Accepted, begins: _Begins) -> None:
        """Where the group begins in a topic that it never subscribed is decided now, for all of its
        queues; a queue that was added later begins at its start. Raises Rejected, NotLoaded."""
        group, topic = header.group, granted.topic
        if topic.incarnation in self._offsets.topics_of(group):
            self._begin(group, topic.incarnation, granted.queue, EARLIEST, begins.places)
            return
        if topic.incarnation not in begins.topics:
            begins.topics[topic.incarnation] = None
            try:
                for queue in range(topic.queues):
                    start = header.start or EARLIEST
                    self._begin(group, topic.incarnation, queue, start, begins.places)
            except Rejected as error:
                begins.topics[topic.incarnation] = error
        if (refused := begins.topics[topic.incarnation]) is not None:
            raise refused

    def _begin(
        self,
        group: str,
        incarnation: int,
        queue: int,
        start: str,
        places: dict[tuple[int, int], Place],
    ) -> None:
        """Give a queue a place, if it has none. Raises Rejected, NotLoaded."""
        key = incarnation, queue
        if key not in places and self._offsets.get(group, *key) is None:
            check_room(self._offsets, group, *key)
            places[key] = Place(place_at(self._log, *key, start), self._log.epoch)

    def _append(
        self,
        request: Request,
        header: Claim,
        accepted: list[_Accepted],
        places: dict[tuple[int, int], Place],
        results: list[ClaimResultPart],
    ) -> None:
        group, member = header.group, header.member
        timeout_ms = header.session_timeout_ms or self._timeout_ms_of(group, member)
        if not self._tenures.claims.mode(group):
            self._log.append_control(GROUP_KIND, [GroupChange(group)])
        changes = [
            ClaimChange(group, *key, offset=place.offset, epoch=place.epoch)
            for key, place in places.items()
        ]
        changes += [
            ClaimChange(
                group, part.topic.incarnation, part.queue, member, timeout_ms, kept=part.kept
            )
            for part in accepted
        ]
        appended = self._tenures.append(changes, request.session)
        token = Token(self._log.epoch, appended.position)
        for part in accepted:
            place = self._offsets.get(group, part.topic.incarnation, part.queue)
            assert place is not None, "a claim gives every queue a place"
            results[part.at] = ClaimResultPart(
                Status.OK,
                token=token,
                offset=place.offset,
                epoch=place.epoch,
                incarnation=part.topic.incarnation,
                kept=part.kept,
            )
        self._waits.answer(request, appended.end, lambda: ClaimReply(results))

    def _let_go(self, group: str, part: ReleasePart) -> tuple[ClaimChange, PartStatus]:
        """Raises Rejected for who doesn't hold the queue. A place that was cut off is not
        committed, but the queue is let go all the same."""
        topic = self._catalog.find_queue(part.topic, part.queue, part.incarnation)
        key = group, topic.incarnation, part.queue
        where = f"group {shown(group)} on queue {part.queue} of topic {shown(part.topic)}"
        if not is_token(part.token):
            raise Rejected(
                Status.FENCED, f"{where} can't be released without its claim's token: give it"
            )
        check_token(self._tenures, key, part.token, where)
        status = PartStatus(Status.OK)
        offset = part.offset
        if offset is not None:
            go_on = go_on_from(self._log, topic.incarnation, part.queue, offset, part.epoch)
            if go_on is not None:
                detail = (
                    f"{where} commits offset {offset}, but the queue ends at {go_on}: the queue is "
                    "released without it"
                )
                status, offset = PartStatus(Status.TRUNCATED, detail), None
        return ClaimChange(*key, member="", offset=offset, epoch=part.epoch), status
