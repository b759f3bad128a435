"""A history of what producers and consumers saw, and a checker that says where it is wrong.

Every operation is recorded with its outcome; nothing else is believed. The checker knows the
promise of the broker, not its code: what was acknowledged is there, at its place, once (unless a
producer repeated it), in order per producer and queue, and no reader goes back or skips. It is
set and order algebra, so a million operations take seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

Outcome = Literal["ok", "failed", "unknown"]
Place = tuple[int, int]
"""(queue, offset)."""

AnomalyKind = Literal[
    "lost-first",
    "lost-middle",
    "lost-last",
    "duplicate",
    "unexpected",
    "inconsistent-offset",
    "order",
    "poll-backwards",
    "poll-skipped",
]


class Send(msgspec.Struct, frozen=True):
    """One message of one producer; `value` is unique in the history."""

    producer: str
    number: int
    """Which one of this producer, in the order of the calls."""
    value: bytes
    outcome: Outcome
    """`ok`: acknowledged; `failed`: the broker said that nothing is stored; `unknown`: neither."""
    queue: int = -1
    """Where an acknowledged one is stored."""
    offset: int = -1
    level: str = ""
    """The ack level that was reached."""
    life: int = 0
    """Which life of the broker it was acknowledged in."""
    store_time: int = 0
    """When the broker appended an acknowledged one, in ms since 1970."""

    @property
    def place(self) -> Place:
        """(queue, offset) of an acknowledged one."""
        return self.queue, self.offset


class Seen(msgspec.Struct, frozen=True):
    """One message that a consumer was given."""

    queue: int
    offset: int
    value: bytes


class Jump(msgspec.Struct, frozen=True):
    """A consumer was told, or told the broker, to go on elsewhere in a queue: a seek, Truncated,
    Expired, Damaged. Neither going back nor skipping is then an anomaly."""

    queue: int
    offset: int


class History(msgspec.Struct):
    """All operations on one topic."""

    sends: list[Send] = []
    polls: dict[str, list[Seen | Jump]] = {}
    """What each consumer saw, in its order."""
    final: list[Seen] = []
    """What one reader found from first to last, after everything: what is there."""


class Anomaly(msgspec.Struct, frozen=True):
    """Something that must not be."""

    kind: AnomalyKind
    queue: int
    offset: int
    text: str
    """A clause for people."""


def check_history(
    history: History,
    *,
    sure: Collection[str] = ("memory", "disk", "quorum"),
    repeats: bool = True,
) -> list[Anomaly]:
    """Everything that is wrong, empty when nothing is.

    `sure` are the levels whose acknowledged messages must be there; of other levels each life of
    the broker may have lost its last ones, but never one before another that is there. `repeats`:
    a producer without `dedup` may have stored a message twice.
    """
    checker = _Checker(history, frozenset(sure), repeats)
    return [
        *checker.lost(),
        *checker.places(),
        *checker.strangers(),
        *checker.order(),
        *checker.polls(),
    ]


def describe(anomalies: Sequence[Anomaly], most: int = 10) -> str:
    """The first ones, a line each, for an assertion's message."""
    lines = [
        f"{one.kind} at queue {one.queue} offset {one.offset}: {one.text}" for one in anomalies
    ]
    more = [f"… and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join([f"{len(lines)} anomalies", *lines[:most], *more])


class _Checker:
    def __init__(self, history: History, sure: frozenset[str], repeats: bool) -> None:
        self._history = history
        self._repeats = repeats
        self._by_value = {send.value: send for send in history.sends}
        if len(self._by_value) != len(history.sends):
            raise ValueError("two sends of the history have one value; give each its own")
        self._at: dict[Place, bytes] = {}
        self._copies: defaultdict[bytes, list[Place]] = defaultdict(list)
        for seen in history.final:
            self._at.setdefault((seen.queue, seen.offset), seen.value)
            self._copies[seen.value].append((seen.queue, seen.offset))
        self._acked = [send for send in history.sends if send.outcome == "ok"]
        self._taken_back = {
            send.value for send in self._acked if send.level not in sure and not self._stands(send)
        }

    def _stands(self, send: Send) -> bool:
        return self._at.get(send.place) == send.value

    # --- what is not there --------------------------------------------------------------------

    def lost(self) -> Iterable[Anomaly]:
        """Acknowledged, and not there: is it the beginning, the middle or the end of the queue?"""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for queue, offset in self._at:
            found[queue].append(offset)
        last_of_life: defaultdict[tuple[int, int], int] = defaultdict(lambda: -1)
        for send in self._acked:
            if self._stands(send):
                key = send.life, send.queue
                last_of_life[key] = max(last_of_life[key], send.offset)
        for send in self._acked:
            if send.value in self._taken_back:
                if send.offset < last_of_life[send.life, send.queue]:
                    yield self._lost(send, "middle", "although what came after it is there")
            elif not self._copies[send.value]:
                offsets = found[send.queue]
                if not offsets or send.offset > max(offsets):
                    yield self._lost(send, "last", "and nothing behind it is there")
                elif send.offset < min(offsets):
                    yield self._lost(send, "first", "and nothing before it is there")
                else:
                    yield self._lost(send, "middle", "although others around it are there")

    @staticmethod
    def _lost(send: Send, which: Literal["first", "middle", "last"], text: str) -> Anomaly:
        kinds: dict[str, AnomalyKind] = {
            "first": "lost-first",
            "middle": "lost-middle",
            "last": "lost-last",
        }
        said = f"{send.value!r} was acknowledged at level {send.level or 'unknown'} and is gone,"
        return Anomaly(kinds[which], send.queue, send.offset, f"{said} {text}")

    # --- what is elsewhere, twice, or from nobody ---------------------------------------------

    def places(self) -> Iterable[Anomaly]:
        """One offset has one value, whoever says so; one value one offset, unless repeated."""
        said: dict[Place, bytes] = {}
        claims = [
            *((seen.queue, seen.offset, seen.value) for seen in self._history.final),
            *((s.queue, s.offset, s.value) for s in self._acked if s.value not in self._taken_back),
            *(
                (seen.queue, seen.offset, seen.value)
                for polls in self._history.polls.values()
                for seen in polls
                if isinstance(seen, Seen) and seen.value not in self._taken_back
            ),
        ]
        for queue, offset, value in claims:
            other = said.setdefault((queue, offset), value)
            if other != value:
                text = f"both {other!r} and {value!r} are said to be there"
                yield Anomaly("inconsistent-offset", queue, offset, text)
        for send in self._acked:
            copies = self._copies[send.value]
            if copies and send.place not in copies and send.value not in self._taken_back:
                if send.place not in self._at:
                    text = f"{send.value!r} was acknowledged there, but is only at {copies[0]}"
                    yield Anomaly("inconsistent-offset", *send.place, text)
        if not self._repeats:
            for value, copies in self._copies.items():
                for queue, offset in copies[1:]:
                    text = f"{value!r} is also at {copies[0]}, and nobody repeated it"
                    yield Anomaly("duplicate", queue, offset, text)

    def strangers(self) -> Iterable[Anomaly]:
        """Only what was sent may be there, and nothing of which the broker said that it is not."""
        polled = (
            seen
            for polls in self._history.polls.values()
            for seen in polls
            if isinstance(seen, Seen)
        )
        told: set[bytes] = set()
        for seen in (*self._history.final, *polled):
            send = self._by_value.get(seen.value)
            if seen.value in told or (send is not None and send.outcome != "failed"):
                continue
            told.add(seen.value)
            why = "nobody sent it" if send is None else "the broker said that it was not stored"
            yield Anomaly("unexpected", seen.queue, seen.offset, f"{seen.value!r}: {why}")

    # --- order --------------------------------------------------------------------------------

    def order(self) -> Iterable[Anomaly]:
        """In a queue the first copies of one producer's messages lie in the order of its calls."""
        last: dict[tuple[int, str], int] = {}
        done: set[bytes] = set()
        for queue, offset in sorted(self._at):
            value = self._at[queue, offset]
            send = self._by_value.get(value)
            if send is None or value in done:
                continue
            done.add(value)
            before = last.get((queue, send.producer), -1)
            if send.number < before:
                text = f"number {send.number} of {send.producer} lies behind its number {before}"
                yield Anomaly("order", queue, offset, text)
            last[queue, send.producer] = max(before, send.number)

    def polls(self) -> Iterable[Anomaly]:
        """No reader goes back or leaves out, and the last one leaves out nothing either."""
        for name, polls in self._history.polls.items():
            yield from _steps(name, polls)
        by_queue = sorted(self._history.final, key=lambda seen: seen.queue)
        yield from _steps("the last reader", by_queue)


def _steps(consumer: str, polls: Iterable[Seen | Jump]) -> Iterable[Anomaly]:
    following: dict[int, int] = {}
    for one in polls:
        expected = following.get(one.queue)
        if isinstance(one, Jump):
            following[one.queue] = one.offset
            continue
        following[one.queue] = one.offset + 1
        if expected is None or one.offset == expected:
            continue
        if one.offset < expected:
            text = f"{consumer} was at {expected} and got {one.offset} again"
            yield Anomaly("poll-backwards", one.queue, one.offset, text)
        else:
            text = f"{consumer} never got {expected} to {one.offset - 1}"
            yield Anomaly("poll-skipped", one.queue, one.offset, text)
