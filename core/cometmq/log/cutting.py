"""Truncation: what the log's end, its state and its segments are after a cut."""

from __future__ import annotations

from cometmq.errors import LogError
from cometmq.interfaces import Storage
from cometmq.log.replay import Replay, load, newest_checkpoint, walk_for
from cometmq.log.scan import Problem, scan_segment
from cometmq.log.spans import find_spans
from cometmq.log.state import State


def check_border(storage: Storage, position: int, seed: int) -> None:
    """Raises ValueError unless a batch ends, or the log begins, exactly at `position`."""
    bases = [segment.base for segment in storage.segments() if segment.base <= position]
    if not bases:
        raise ValueError(f"position {position} lies before the first segment")
    base = bases[-1]
    for _, found in scan_segment(storage.read, base, position - base, seed, bodies=False):
        if isinstance(found, Problem):
            raise ValueError(f"no batch ends at position {position}: {found.reason}")


def reload_state(storage: Storage, state: State, node: str, seed: int) -> Replay | None:
    """Make the state that of the log as it lies in the storage, cut before. None: nothing is left.
    Raises LogError if the log can't be replayed to its end."""
    _, spans = find_spans(storage.read, storage.segments())
    if not spans:
        state.reset()
        return None
    newest = newest_checkpoint(storage.read, spans, seed)
    at, checkpoint = newest if newest is not None else (0, None)
    if checkpoint is None and spans[0].base:
        raise LogError(
            "no segment before the cut has a whole head checkpoint, so the state there can't be"
            " told; start the broker again, it will say what is left"
        )
    load(state, checkpoint)
    replay = Replay(state, None, node, spans[at:])
    problem = replay.run(walk_for(state)(storage.read, spans[at:], seed))
    if problem is not None and problem.kind != "zeros":
        raise LogError(
            f"the log can't be replayed behind position {problem.position}: {problem.reason};"
            " start the broker again, it will say what is left"
        )
    return replay
