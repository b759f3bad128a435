"""The operations on offsets: bounds, by time, commit, committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cometmq.broker.catalog import Catalog
from cometmq.broker.commits import Commits, check_room
from cometmq.broker.gate import Gate
from cometmq.broker.names import shown
from cometmq.broker.offsets import CommittedOffsets, OffsetCommit
from cometmq.broker.places import go_on_from
from cometmq.broker.refusals import Rejected, check_group, check_parts
from cometmq.broker.requests import Body, Request
from cometmq.broker.tenures import Tenures
from cometmq.broker.tokens import check_commit_token
from cometmq.log import Log
from cometmq.protocol import (
    Commit,
    CommitPart,
    Committed,
    OffsetByTime,
    Offsets,
    OffsetsPart,
    OffsetsReply,
    PartStatus,
    QueueRef,
    Status,
)


class OffsetOperations:
    """Handlers. Each queue of a request succeeds or fails alone."""

    def __init__(
        self,
        log: Log,
        catalog: Catalog,
        gate: Gate,
        offsets: CommittedOffsets,
        commits: Commits,
        tenures: Tenures,
    ) -> None:
        self._tenures = tenures
        self._log = log
        self._catalog = catalog
        self._gate = gate
        self._offsets = offsets
        self._commits = commits

    def bounds(self, request: Request, header: Offsets, body: Body) -> None:
        def bounds_of(part: OffsetsPart, ref: QueueRef) -> None:
            part.offset = part.max_offset

        request.answer(self._each(request, "OFFSETS", header.queues, bounds_of))

    def by_time(self, request: Request, header: OffsetByTime, body: Body) -> None:
        def first_since(part: OffsetsPart, ref: QueueRef) -> None:
            found = self._log.index.offset_by_time(part.incarnation, ref.queue, header.time_ms)
            part.offset = min(found, part.max_offset)

        request.answer(self._each(request, "OFFSET_BY_TIME", header.queues, first_since))

    def committed(self, request: Request, header: Committed, body: Body) -> None:
        check_group(header.group)
        self._gate.check(request.session, "COMMITTED", f"group:{header.group}")
        # Commits of this very drain are not in the log yet.
        self._commits.flush()

        def committed_at(part: OffsetsPart, ref: QueueRef) -> None:
            place = self._offsets.get(header.group, part.incarnation, ref.queue)
            part.found = place is not None
            if place is not None:
                part.offset, part.epoch = place

        request.answer(self._each(request, "COMMITTED", header.queues, committed_at))

    def commit(self, request: Request, header: Commit, body: Body) -> None:
        check_group(header.group)
        check_parts(len(header.parts))
        self._gate.check(request.session, "COMMIT", f"group:{header.group}")
        statuses: list[PartStatus] = []
        accepted: list[OffsetCommit] = []
        for part in header.parts:
            try:
                accepted.append(self._accept(header.group, part))
            except Rejected as error:
                statuses.append(PartStatus(error.status, error.detail, error.retry_after_ms))
            else:
                statuses.append(PartStatus(Status.OK))
        self._commits.add(request, accepted, statuses)

    def _accept(self, group: str, part: CommitPart) -> OffsetCommit:
        """The record of one commit. Raises Rejected."""
        topic = self._catalog.find_queue(part.topic, part.queue, part.incarnation)
        where = f"group {shown(group)} on queue {part.queue} of topic {shown(part.topic)}"
        key = group, topic.incarnation, part.queue
        check_commit_token(self._tenures, key, part.token, where)
        go_on = go_on_from(self._log, topic.incarnation, part.queue, part.offset, part.epoch)
        if go_on is not None:
            raise Rejected(
                Status.TRUNCATED,
                f"{where} commits offset {part.offset}, but the queue ends at {go_on}: "
                "go on from there",
            )
        check_room(self._offsets, group, topic.incarnation, part.queue)
        return OffsetCommit(group, topic.incarnation, part.queue, part.offset, part.epoch)

    def _each(
        self,
        request: Request,
        operation: str,
        queues: Sequence[QueueRef],
        fill: Callable[[OffsetsPart, QueueRef], None],
    ) -> OffsetsReply:
        check_parts(len(queues))
        for topic in {ref.topic for ref in queues}:
            self._gate.check(request.session, operation, topic)
        return OffsetsReply([self._one(ref, fill) for ref in queues])

    def _one(self, ref: QueueRef, fill: Callable[[OffsetsPart, QueueRef], None]) -> OffsetsPart:
        try:
            topic = self._catalog.find_queue(ref.topic, ref.queue, ref.incarnation)
        except Rejected as error:
            return OffsetsPart(status=error.status, detail=error.detail)
        part = OffsetsPart(
            status=Status.OK,
            min_offset=self._log.min_offset(topic.incarnation, ref.queue),
            max_offset=self._log.max_offset(topic.incarnation, ref.queue),
            # Valid for every offset that this log can give out now.
            epoch=self._log.epoch,
            incarnation=topic.incarnation,
        )
        fill(part, ref)
        return part
