"""Asking for offsets: the bounds of queues, by time, and what a group has committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from cometmq.client.engine import Engine
from cometmq.client.outcomes import failure
from cometmq.errors import CometError, ProtocolError, Refused
from cometmq.protocol import (
    Commit,
    CommitPart,
    CommitReply,
    Committed,
    OffsetByTime,
    Offsets,
    OffsetsPart,
    OffsetsReply,
    Operation,
    QueueRef,
    Status,
)

Start = str | int | datetime
"""A place in every queue: "earliest" or "latest", an int for an offset, a datetime for the first
message stored since then."""


def check_start(start: object) -> None:
    """Raises Refused unless it is a `Start`."""
    if start in ("earliest", "latest") or isinstance(start, datetime):
        return
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return
    raise Refused(f"start={start!r}: 'earliest', 'latest', an offset or a datetime is wanted")


async def ask_offsets(
    engine: Engine, queues: Sequence[QueueRef], deadline_s: float
) -> list[OffsetsPart]:
    """Min and max offset of each queue, with the epoch valid for the max."""
    header = Offsets(list(queues))
    reply = await engine.ask(Operation.OFFSETS, header, OffsetsReply, deadline_s)
    return _checked(reply, queues)


async def offsets_at(
    engine: Engine, queues: Sequence[QueueRef], start: Start, deadline_s: float
) -> list[tuple[int, int]]:
    """(offset, epoch) of a `Start` in each queue; epoch 0 for an offset that a person chose."""
    if isinstance(start, datetime):
        by_time = OffsetByTime(list(queues), int(start.timestamp() * 1000))
        reply = await engine.ask(Operation.OFFSET_BY_TIME, by_time, OffsetsReply, deadline_s)
        return [(part.offset, part.epoch) for part in _checked(reply, queues)]
    if isinstance(start, int):
        return [(start, 0)] * len(queues)
    parts = await ask_offsets(engine, queues, deadline_s)
    if start == "latest":
        return [(part.max_offset, part.epoch) for part in parts]
    return [(part.min_offset, part.epoch) for part in parts]


async def committed_offsets(
    engine: Engine, group: str, queues: Sequence[QueueRef], deadline_s: float
) -> list[OffsetsPart | None]:
    """What a group has committed of each queue; None where nothing."""
    header = Committed(group, list(queues))
    reply = await engine.ask(Operation.COMMITTED, header, OffsetsReply, deadline_s)
    return [part if part.found else None for part in _checked(reply, queues)]


async def ask_commit(
    engine: Engine, group: str, parts: Callable[[], list[CommitPart]], deadline_s: float
) -> tuple[list[CommitPart], CommitReply]:
    """Commit, and again while the broker says "later"; what was sent last, and its answer.

    `parts` is asked anew for each try: one that comes late must not take back what a later commit
    has stored meanwhile. Raises Refused, Retryable, OutcomeUnknown.
    """
    header, reply = await engine.ask_anew(
        Operation.COMMIT, lambda: Commit(group, parts()), CommitReply, deadline_s
    )
    return header.parts, reply


def commit_failures(reply: CommitReply, parts: Sequence[CommitPart]) -> dict[int, CometError]:
    """The parts of a commit that failed, by place."""
    if len(reply.parts) != len(parts):
        raise ProtocolError(f"{len(reply.parts)} answers for {len(parts)} parts of a commit")
    return {
        place: failure(part.status, part.detail, part.retry_after_ms)
        for place, part in enumerate(reply.parts)
        if part.status != Status.OK
    }


def _checked(reply: OffsetsReply, queues: Sequence[QueueRef]) -> list[OffsetsPart]:
    """One good part for each queue. Raises the first part's failure."""
    if len(reply.parts) != len(queues):
        raise ProtocolError(f"{len(reply.parts)} answers for {len(queues)} queues")
    for part in reply.parts:
        if part.status != Status.OK:
            raise failure(part.status, part.detail)
    return reply.parts
