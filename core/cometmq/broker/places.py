"""Places in a queue: where reading begins, and whether a place that somebody holds is still one."""

from __future__ import annotations

from cometmq.broker.names import shown
from cometmq.broker.refusals import Rejected
from cometmq.log import Log
from cometmq.protocol import Status

EARLIEST, LATEST = "earliest", "latest"


def go_on_from(log: Log, incarnation: int, queue: int, offset: int, epoch: int) -> int | None:
    """None if reading may go on at `offset`, got with `epoch` (0: typed by a person); else the
    offset to go on from, because the log was cut or never was that long. May raise NotLoaded."""
    end = log.next_offset(incarnation, queue)
    if log.in_doubt and offset >= end and not 0 < epoch < log.epoch:
        return None  # what can be read ends there because of damage: where it ended nobody knows
    cut_at = log.judge(incarnation, queue, offset, epoch)
    if cut_at is not None:
        return cut_at
    return end if offset > end else None


def place_at(log: Log, incarnation: int, queue: int, start: str) -> int:
    """The offset that `start` (earliest, latest, or ms since 1970) means now. Raises Rejected,
    NotLoaded."""
    low = log.min_offset(incarnation, queue)
    high = log.max_offset(incarnation, queue)
    if start == EARLIEST:
        return low
    if start == LATEST:
        return high
    try:
        time_ms = int(start)
    except ValueError:
        raise Rejected(
            Status.BAD_REQUEST,
            f"{shown(start)} is no place to start: use earliest, latest, or ms since 1970",
        ) from None
    return min(max(log.index.offset_by_time(incarnation, queue, time_ms), low), high)
