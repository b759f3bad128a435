"""Where a consumer begins in its queues: at what its group has committed, or at a `Start`."""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.client.cursor import Cursor
from cometmq.client.engine import Engine
from cometmq.client.offsets import Start, committed_offsets, offsets_at
from cometmq.protocol import QueueRef


async def place(
    engine: Engine, cursors: Sequence[Cursor], group: str, start: Start, deadline_s: float
) -> None:
    """Move cursors to what the group has committed (without a group nothing is), else to `start`.
    Raises Refused, Retryable."""
    left = list(cursors)
    if group:
        found = await committed_offsets(engine, group, refs(cursors), deadline_s)
        left = []
        for cursor, part in zip(cursors, found, strict=True):
            if part is None:
                left.append(cursor)
            else:
                cursor.move(part.offset, part.epoch)
    if left:
        await move_to(engine, left, start, deadline_s)


async def move_to(
    engine: Engine, cursors: Sequence[Cursor], start: Start, deadline_s: float
) -> None:
    """Move cursors to `start`. Raises Refused, Retryable."""
    places = await offsets_at(engine, refs(cursors), start, deadline_s)
    for cursor, (offset, epoch) in zip(cursors, places, strict=True):
        cursor.move(offset, epoch)


def refs(cursors: Sequence[Cursor]) -> list[QueueRef]:
    """How a request names the queues of cursors."""
    return [QueueRef(cursor.topic, cursor.queue, cursor.incarnation) for cursor in cursors]
