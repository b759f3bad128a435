"""A start: which segments are there, what state do they hold, and may this log be written to?

From the newest segment whose head checkpoint is whole, everything is replayed. Where an intact
batch should lie but doesn't, what follows decides:

- zeros up to the end of the last file are prepared space: the log ends there;
- if an intact batch behind the place, stamped in an epoch that this node opened itself, says that
  the place was already on disk, it is *damage*: the state after it can't be proven, the log is
  *in doubt* and nothing is written;
- if only another node's stamps say so, they prove nothing about this disk, but nothing may be
  thrown away either: in doubt as well;
- else it is a *torn tail*, which nobody was ever told to be safe: it is cut.

No clock is asked. Nothing is written here; `Log.open` acts on what is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from cometmq.batch import Batch, Kind, seed
from cometmq.interfaces import Segment, Storage
from cometmq.log.records import EpochStart, read_records
from cometmq.log.replay import Index, Replay, load, newest_checkpoint, walk_for
from cometmq.log.scan import Problem, Read, scan_segment
from cometmq.log.settings import Damage
from cometmq.log.spans import Span, find_spans, tail_damage, walk_behind
from cometmq.log.state import State

Verdict = Literal["torn", "damage", "foreign"]

NEXT_STEP = "look at it with `mq log inspect`, put the file right (a copy, a replica), start again"


class Recovered(msgspec.Struct):
    """What a start found."""

    log_id: bytes | None = None
    """None: there is no log yet."""
    seed: int = 0
    end: int = 0
    """Where the log goes on: behind the last batch that counts."""
    replayed_from: int = 0
    replayed_batches: int = 0
    proven: int = 0
    """What was provably on disk before this start."""
    store_time: int = 0
    last_kind: int = -1
    epoch: int = 0
    """The newest one."""
    open_base: int | None = None
    """The segment whose index is open."""
    torn: str = ""
    """Why what lies behind `end` is cut, if it is more than prepared space."""
    surplus: bool = False
    """Whether anything lies behind `end`, zeros included."""
    damage: list[Damage] = []
    in_doubt: str = ""
    checkpoints: list[int] = []
    """Bases of the segments whose head checkpoint was seen whole."""


def recover(
    storage: Storage,
    state: State,
    make_index: Callable[[int], Index],
    node: str,
) -> Recovered:
    """Read the log into `state` and the index that `make_index(seed)` gives. `node`: our id, in
    hex."""
    read = storage.read
    log_id, spans = find_spans(read, storage.segments())
    found = Recovered(log_id=log_id)
    if not spans:
        return found
    if log_id is None:
        return _nameless(read, spans, found)
    found.seed = seed(log_id)
    for span, reason in tail_damage(spans):
        place = span.base if span.flaw else span.base + span.size
        found.damage.append(Damage(place, span.segment.name, reason))
    first = _begin_state(read, spans, state, found)
    index = make_index(found.seed)
    for span in spans[:first]:
        index.known(span.base, span.end)
    replay = Replay(state, index, node, spans[first:])
    batches = walk_for(state)(read, spans[first:], found.seed)
    problem = replay.run(batches)
    if problem is not None and not _is_prepared(problem, spans):
        _judge(read, spans[first:], problem, found, state, node)
        while found.in_doubt and problem is not None:
            # Best effort for readers: nothing of this is ever written.
            _note(found, spans, problem)
            problem = replay.run(batches)
    _conclude(found, replay, spans[-1].segment)
    return found


def _begin_state(read: Read, spans: Sequence[Span], state: State, found: Recovered) -> int:
    """Load the newest whole checkpoint; returns where in `spans` the replay begins."""
    newest = newest_checkpoint(read, spans, found.seed)
    if newest is not None:
        at, checkpoint = newest
        load(state, checkpoint)
        found.checkpoints.append(checkpoint.base)
        found.replayed_from = checkpoint.base
        return at
    state.reset()
    found.replayed_from = spans[0].base
    if spans[0].base != 0:
        found.in_doubt = (
            f"no segment from {spans[0].segment.name} on has a whole head checkpoint, and what lay"
            f" before it is gone, so topics and offsets can't be told; {NEXT_STEP}"
        )
    return 0


def _nameless(read: Read, spans: Sequence[Span], found: Recovered) -> Recovered:
    """No segment begins with an intact batch. Zeros only: a start that never got to write."""
    for span in spans:
        first = next(scan_segment(read, span.base, span.size, 0), None)
        if first is not None and not _is_zeros(first[1]):
            found.in_doubt = (
                f"{span.segment.name} and every other segment lacks an intact first batch, so it"
                f" can't be told which log this is; {NEXT_STEP}"
            )
            found.end = spans[-1].base + spans[-1].size
            return found
    found.end = spans[0].base
    found.surplus = True
    return found


def _is_zeros(found: Batch | Problem) -> bool:
    return isinstance(found, Problem) and found.kind == "zeros"


def _is_prepared(problem: Problem, spans: Sequence[Span]) -> bool:
    return problem.kind == "zeros" and problem.position >= spans[-1].base


def _judge(
    read: Read,
    spans: Sequence[Span],
    problem: Problem,
    found: Recovered,
    state: State,
    node: str,
) -> None:
    """Torn or doubtful? Sets `torn` or `in_doubt`."""
    if found.in_doubt:
        return
    position = problem.position
    span = _span_of(spans, position)
    place = f"{span.segment.name} has no intact batch at position {position} ({problem.reason})"
    flawed = next((other for other in spans if other.flaw), None)
    if flawed is not None:
        # Whatever that file is, it is not a torn end of ours.
        found.in_doubt = f"{flawed.segment.name} is no part of this log: {flawed.flaw}; {NEXT_STEP}"
        return
    verdict, other = _verdict(read, spans[spans.index(span) :], problem, found.seed, state, node)
    if verdict == "damage":
        found.in_doubt = (
            f"{place}, although later batches say that this was on disk: it is damaged, and the"
            f" state behind it can't be proven; {NEXT_STEP}"
        )
    elif verdict == "foreign":
        found.in_doubt = (
            f"{place}; only stamps of node {other} say that this was on disk, and this is node"
            f" {node}, which has no note of its own (a copied folder, a lost `node` file), so it"
            f" can't be told a torn end from damage; {NEXT_STEP}"
        )
    else:
        found.torn = problem.reason


def _verdict(
    read: Read,
    spans: Sequence[Span],
    problem: Problem,
    log_seed: int,
    state: State,
    node: str,
) -> tuple[Verdict, str]:
    """What the intact batches behind a problem prove, and whose stamp it is."""
    nodes: dict[int, str] = {}
    verdict: Verdict = "torn"
    other = ""
    for batch in walk_behind(read, spans, log_seed, problem.resume):
        if batch.kind == Kind.EPOCH_START:
            nodes.update((r.epoch, r.node) for r in read_records(EpochStart, batch))
        if batch.synced_before <= problem.position:
            continue
        owner = nodes.get(batch.epoch) or state.epochs.node_of(batch.epoch)
        if owner == node:
            return "damage", owner
        verdict, other = "foreign", owner or "unknown"
    return verdict, other


def _conclude(found: Recovered, replay: Replay, last: Segment) -> None:
    found.end = replay.end
    found.surplus = found.end < last.base + last.size
    found.replayed_batches = replay.batches
    found.proven = min(replay.proven, found.end)
    found.store_time = replay.store_time
    found.last_kind = replay.last_kind
    found.open_base = replay.open_base
    found.epoch = replay.epoch


def _note(found: Recovered, spans: Sequence[Span], problem: Problem) -> None:
    if _is_prepared(problem, spans):
        return
    span = _span_of(spans, problem.position)
    damage = Damage(problem.position, span.segment.name, problem.reason)
    if damage not in found.damage:
        found.damage.append(damage)


def _span_of(spans: Sequence[Span], position: int) -> Span:
    """The span that a position lies in; the border between two belongs to the earlier one if the
    earlier file is too short."""
    for span in spans:
        if position < span.end:
            return span
    return spans[-1]
