"""Is the place that a consumer holds still a place of its queue?"""

from __future__ import annotations

from cometmq.log import Log


def go_on_from(log: Log, incarnation: int, queue: int, offset: int, epoch: int) -> int | None:
    """None if reading may go on at `offset`, got with `epoch` (0: typed by a person); else the
    offset to go on from, because the log was cut or never was that long. May raise NotLoaded."""
    cut_at = log.judge(incarnation, queue, offset, epoch)
    if cut_at is not None:
        return cut_at
    end = log.next_offset(incarnation, queue)
    return end if offset > end else None
