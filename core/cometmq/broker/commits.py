"""Offset commits, coalesced: those of one drain become one control batch."""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.broker.names import shown
from cometmq.broker.offsets import KIND, CommittedOffsets, OffsetCommit
from cometmq.broker.refusals import Rejected, log_refusal
from cometmq.broker.requests import Request
from cometmq.broker.waits import NOT_WRITTEN
from cometmq.errors import LogError
from cometmq.log import Log, Outcome
from cometmq.log.records import RECORDS_MAX
from cometmq.protocol import CommitReply, PartStatus, Status

GROUPS_MAX = 100_000
"""Memory is bounded, and a client with a bug can name a new group in every commit."""
PLACES_MAX = 1_000_000
"""Committed offsets of all groups and queues together; a checkpoint holds them all."""

_Waiting = tuple[Request, list[PartStatus]]


class Commits:
    """Collects commits until `flush`, which every drain ends with; a commit is answered when it
    has the broker's default level."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._records: list[OffsetCommit] = []
        self._waiting: list[_Waiting] = []

    def add(
        self, request: Request, records: Sequence[OffsetCommit], statuses: list[PartStatus]
    ) -> None:
        """Take what a request commits; `statuses` are its answer if that works."""
        if not records:
            request.answer(CommitReply(statuses))
            return
        self._records.extend(records)
        self._waiting.append((request, statuses))
        if len(self._records) >= RECORDS_MAX:
            self.flush()

    def flush(self) -> None:
        """Append what was collected; afterwards it is visible."""
        if not self._records:
            return
        records, waiting = self._records, self._waiting
        self._records, self._waiting = [], []
        try:
            end = self._log.append_control(KIND, records).end
        except LogError as error:
            _fail(waiting, log_refusal(error))
            return
        self._log.wait(None, end, lambda outcome: _done(waiting, outcome))


def check_room(offsets: CommittedOffsets, group: str, incarnation: int, queue: int) -> None:
    """Raises Rejected when a new committed offset would be one too many."""
    if offsets.groups >= GROUPS_MAX and not offsets.knows(group):
        what = f"{offsets.groups} groups have committed offsets"
    elif offsets.count >= PLACES_MAX and offsets.get(group, incarnation, queue) is None:
        what = f"{offsets.count} offsets are committed"
    else:
        return
    raise Rejected(
        Status.LIMIT_REACHED,
        f"{what}, the most that one broker keeps, so group {shown(group)} can't commit: use a "
        "group again, or delete groups and topics that nobody reads (their offsets go with them)",
    )


def _done(waiting: Sequence[_Waiting], outcome: Outcome) -> None:
    if outcome is Outcome.REACHED:
        for request, statuses in waiting:
            request.answer(CommitReply(statuses))
    elif outcome is Outcome.NOT_WRITTEN:
        _fail(waiting, Rejected(Status.RETRY, NOT_WRITTEN))
    else:
        for request, _ in waiting:
            request.drop()


def _fail(waiting: Sequence[_Waiting], error: Rejected) -> None:
    """What could have been committed was not; parts refused before keep their own reason."""
    failed = PartStatus(error.status, error.detail, error.retry_after_ms)
    for request, statuses in waiting:
        request.answer(
            CommitReply([failed if part.status == Status.OK else part for part in statuses])
        )
