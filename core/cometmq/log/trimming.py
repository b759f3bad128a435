"""Where a trim may cut: only at a segment that has all small state in its head."""

from __future__ import annotations

from cometmq.interfaces import Segment, Storage
from cometmq.log.checkpoint import read_checkpoint


def trim_target(
    storage: Storage, position: int, settled: int, seed: int, known: dict[int, int]
) -> int | None:
    """Base of the newest segment at or below `position` whose head checkpoint is whole and ends
    at or below `settled`. Reads segments that are not in `known` (base -> end of checkpoint);
    may block. None: there is none."""
    segments: list[Segment] = [s for s in storage.segments() if s.base <= position]
    for segment in reversed(segments):
        end = known.get(segment.base)
        if end is None:
            found = read_checkpoint(storage.read, segment, segment.size, seed, limit=settled)
            end = None if found is None else found.end
        if end is not None and end <= settled:
            return segment.base
    return None
