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

from cometmq.batch import Kind, seed
from cometmq.interfaces import Storage
from cometmq.log.quick_scan import quick_scan
from cometmq.log.records import ClockAhead, EpochStart, read_records
from cometmq.log.replay import Index, Replay, load, newest_checkpoint, walk_for
from cometmq.log.scan import Problem, Read, scan_segment
from cometmq.log.settings import Damage
from cometmq.log.spans import Span, find_spans, tail_damage, walk_behind
from cometmq.log.state import State

Verdict = Literal["torn", "damage", "foreign"]

NEXT_STEP = "ask `mq doctor` (`mq log inspect` shows the batches), put the file right, start again"

NEWER_STEP = "start the broker of the newer release that wrote it"


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
    clock: ClockAhead = ClockAhead()
    last_kind: int = -1
    epoch: int = 0
    """The newest one."""
    open_base: int | None = None
    """The segment whose index is open."""
    torn: str = ""
    """Why what lies behind `end` is cut, if it is more than prepared space."""
    damage: list[Damage] = []
    in_doubt: str = ""


def recover(
    storage: Storage,
    state: State,
    make_index: Callable[[int], Index],
    node: str,
) -> Recovered:
    """Read the log into `state` and the index that `make_index(seed)` gives (made anew when what
    was read first turns out to be cut). `node`: our id, in hex."""
    log_id, spans = find_spans(storage.read, storage.segments())
    if not spans:
        return Recovered()
    recovery = _Recovery(storage.read, spans, state, make_index, node)
    if log_id is None:
        return recovery.nameless()
    return recovery.run(log_id)


class _Recovery:
    """One start's way through the log."""

    def __init__(
        self,
        read: Read,
        spans: Sequence[Span],
        state: State,
        make_index: Callable[[int], Index],
        node: str,
    ) -> None:
        self._read = read
        self._all = spans
        self._state = state
        self._make_index = make_index
        self._node = node
        self._found = Recovered()

    def nameless(self) -> Recovered:
        """No segment begins with an intact batch. Zeros only: a start that never got to write."""
        found = self._found
        found.end = self._all[0].base
        for span in self._all:
            first = next(scan_segment(self._read, span.base, span.size, 0), None)
            if first is None or (isinstance(first[1], Problem) and first[1].kind == "zeros"):
                continue
            found.end = span.end
            found.in_doubt = (
                f"{span.segment.name} and every other segment lacks an intact first batch, so it"
                f" can't be told which log this is; {NEXT_STEP}"
            )
            if isinstance(first[1], Problem) and first[1].kind == "newer":
                found.in_doubt = f"{span.segment.name} begins with {first[1].reason}; {NEWER_STEP}"
        return found

    def run(self, log_id: bytes) -> Recovered:
        """Replay; again with less if the end that was replayed hangs in the air."""
        spans, torn = self._all, ""
        while True:
            found = self._found = Recovered(log_id=log_id, seed=seed(log_id), torn=torn)
            first, replay = self._replay(spans)
            gap = None if found.in_doubt else self._unproven_gap(spans[: first + 1], replay)
            if gap is None:
                break
            at, problem = gap
            spans, torn = spans[: at + 1], problem.reason
        found.replayed_batches = replay.batches
        found.end = replay.end
        found.proven = min(replay.proven, found.end)
        found.store_time, found.last_kind = replay.store_time, replay.last_kind
        found.epoch, found.open_base = replay.epoch, replay.open_base
        for span, reason in tail_damage(spans[: first + 1]):
            place = span.base if span.flaw else span.base + span.size
            self._note(Damage(place, span.segment.name, reason))
        return found

    def _replay(self, spans: Sequence[Span]) -> tuple[int, Replay]:
        """From the newest whole checkpoint on; where in `spans` that was, and what it told."""
        first = self._load(spans)
        index = self._make_index(self._found.seed)
        for span in spans[:first]:
            index.known(span.base, span.end)
        replay = Replay(self._state, index, self._node, spans[first:])
        batches = walk_for(self._state)(self._read, spans[first:], self._found.seed)
        problem = replay.run(batches)
        if problem is not None and not _is_prepared(problem, spans):
            self._judge(problem)
        while self._found.in_doubt and problem is not None:
            # Best effort for readers: nothing of this is ever written.
            if not _is_prepared(problem, spans):
                span = self._span_of(problem.position)
                self._note(Damage(problem.position, span.segment.name, problem.reason))
            problem = replay.run(batches)
        return first, replay

    def _load(self, spans: Sequence[Span]) -> int:
        """Load the newest whole checkpoint; returns where in `spans` the replay begins."""
        newest = newest_checkpoint(self._read, spans, self._found.seed)
        if newest is not None:
            at, checkpoint = newest
            load(self._state, checkpoint)
            self._found.replayed_from = checkpoint.base
            return at
        self._state.reset()
        self._found.replayed_from = spans[0].base
        if spans[0].base != 0:
            self._found.in_doubt = (
                f"no segment from {spans[0].segment.name} on has a whole head checkpoint, and what"
                f" lay before it is gone, so topics and offsets can't be told; {NEXT_STEP}"
            )
        return 0

    def _unproven_gap(self, spans: Sequence[Span], replay: Replay) -> tuple[int, Problem] | None:
        """The first bad place before the last of `spans`, of which nobody ever said that it was on
        disk, and the number of its span.

        The disk writes in any order: of two segments that were never synced, a power cut may leave
        the second one with a whole checkpoint and take the end of the first.
        """
        for at, span in enumerate(spans[:-1]):
            if span.end <= replay.stamped or span.flaw:
                continue
            start = max(span.base, replay.stamped)
            if start >= span.base + span.size:
                return at, Problem(start, "short", "the file ends before the next begins", span.end)
            for found in quick_scan(
                self._read, span.base, span.size, self._found.seed, start=start
            ):
                if isinstance(found, Problem):
                    return at, found
            if span.base + span.size < span.end:
                place = span.base + span.size
                return at, Problem(place, "short", "the file ends before the next begins", span.end)
        return None

    def _judge(self, problem: Problem) -> None:
        """Torn or doubtful? Sets `torn` or `in_doubt`."""
        found, node = self._found, self._node
        if found.in_doubt:
            return
        position = problem.position
        name = self._span_of(position).segment.name
        place = f"{name} has no intact batch at position {position} ({problem.reason})"
        flawed = [span for span in self._all if span.flaw and span.end > position]
        verdict, other = self._verdict(problem)
        if problem.kind == "newer":
            # No crash leaves such bytes; to cut them would throw away what somebody acknowledged.
            found.in_doubt = f"{place}; {NEWER_STEP}"
        elif flawed:
            # Whatever that file is, it is not a torn end of ours.
            found.in_doubt = (
                f"{flawed[0].segment.name} is no part of this log: {flawed[0].flaw}; {NEXT_STEP}"
            )
        elif verdict == "damage":
            found.in_doubt = (
                f"{place}, although later batches say that this was on disk: it is damaged, and"
                f" the state behind it can't be proven; {NEXT_STEP}"
            )
        elif verdict == "foreign":
            found.in_doubt = (
                f"{place}; only stamps of node {other} say that this was on disk, and this is"
                f" node {node}, which has no note of its own (a copied folder, a lost `node`"
                f" file), so it can't be told a torn end from damage; {NEXT_STEP}"
            )
        else:
            found.torn = problem.reason

    def _verdict(self, problem: Problem) -> tuple[Verdict, str]:
        """What the intact batches behind a problem prove, and whose stamp it is."""
        nodes: dict[int, str] = {}
        other = ""
        spans = [span for span in self._all if span.end > problem.position and not span.flaw]
        for batch in walk_behind(self._read, spans, self._found.seed, problem.resume):
            if batch.kind == Kind.EPOCH_START:
                nodes.update((r.epoch, r.node) for r in read_records(EpochStart, batch))
            if batch.synced_before <= problem.position:
                continue
            owner = nodes.get(batch.epoch) or self._state.epochs.node_of(batch.epoch)
            if owner == self._node:
                return "damage", owner
            other = owner or "unknown"
        return ("foreign", other) if other else ("torn", "")

    def _note(self, damage: Damage) -> None:
        if damage.position not in [known.position for known in self._found.damage]:
            self._found.damage.append(damage)

    def _span_of(self, position: int) -> Span:
        """The span that a position lies in."""
        return next((span for span in self._all if position < span.end), self._all[-1])


def _is_prepared(problem: Problem, spans: Sequence[Span]) -> bool:
    return problem.kind == "zeros" and problem.position >= spans[-1].base
