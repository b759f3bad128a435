"""Moving a group's offsets, and back: one batch that also voids the claims it goes over."""

from __future__ import annotations

from typing import NamedTuple

from cometmq.broker.catalog import Catalog
from cometmq.broker.claims import ClaimChange, ClaimKey
from cometmq.broker.names import shown
from cometmq.broker.offsets import CommittedOffsets, Place
from cometmq.broker.places import EARLIEST, LATEST, place_at
from cometmq.broker.refusals import Rejected
from cometmq.broker.tenures import Tenures
from cometmq.log import Log
from cometmq.log.records import RECORDS_MAX, TopicChange
from cometmq.protocol import GroupReset, GroupResetPart, Status

UNDO = "undo"
GOALS = (EARLIEST, LATEST, "time", "offset", UNDO)


class Move(NamedTuple):
    """One queue of a reset."""

    key: ClaimKey
    topic: str
    old: Place
    new: Place


class Resets:
    """Works out what a reset would do."""

    def __init__(
        self, log: Log, catalog: Catalog, offsets: CommittedOffsets, tenures: Tenures
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._offsets = offsets
        self._tenures = tenures

    def moves(self, header: GroupReset, topics: list[TopicChange]) -> list[Move]:
        """What the request asks for. Raises Rejected, NotLoaded."""
        if header.to not in GOALS:
            raise Rejected(
                Status.BAD_REQUEST,
                f"{shown(header.to)} is no place to reset to: use one of {', '.join(GOALS)}",
            )
        if header.to == "offset" and header.value < 0:
            raise Rejected(Status.BAD_REQUEST, f"offset {header.value}: give 0 or more")
        if header.to == UNDO:
            moves = self._undo(header, topics)
        else:
            moves = [
                self._move(header, topic, queue)
                for topic in topics
                for queue in self._queues(header, topic)
            ]
        if len(moves) > RECORDS_MAX:
            raise Rejected(
                Status.LIMIT_REACHED,
                f"a reset of {len(moves)} queues, {RECORDS_MAX} can be moved in one step: name "
                "one topic at a time",
            )
        return moves

    def can_undo(self, group: str, topics: list[TopicChange]) -> bool:
        """Whether there is a reset that can be undone."""
        return self._last(group, topics) > 0

    def _queues(self, header: GroupReset, topic: TopicChange) -> list[int]:
        for queue in header.queues:
            self._catalog.find_queue(topic.name, queue)
        return sorted(set(header.queues)) or list(range(topic.queues))

    def _move(self, header: GroupReset, topic: TopicChange, queue: int) -> Move:
        incarnation = topic.incarnation
        start = str(header.value) if header.to == "time" else header.to
        if header.to == "offset":
            low = self._log.min_offset(incarnation, queue)
            high = self._log.max_offset(incarnation, queue)
            offset = min(max(header.value, low), high)
        else:
            offset = place_at(self._log, incarnation, queue, start)
        return self._to(header.group, topic, queue, Place(offset, self._log.epoch))

    def _undo(self, header: GroupReset, topics: list[TopicChange]) -> list[Move]:
        last = self._last(header.group, topics)
        if not last:
            raise Rejected(
                Status.REFUSED,
                f"group {shown(header.group)} has no reset that could be undone: reset it to a "
                "place of your choice",
            )
        moves = []
        for topic in topics:
            for queue in self._queues(header, topic):
                undo = self._tenures.claims.undo((header.group, topic.incarnation, queue))
                if undo is not None and undo.position == last:
                    place = Place(undo.offset, undo.epoch)
                    moves.append(self._to(header.group, topic, queue, place))
        return moves

    def _last(self, group: str, topics: list[TopicChange]) -> int:
        """Position of the last reset in these topics; 0: there was none."""
        undos = (
            self._tenures.claims.undo((group, topic.incarnation, queue))
            for topic in topics
            for queue in range(topic.queues)
        )
        return max((undo.position for undo in undos if undo is not None), default=0)

    def _to(self, group: str, topic: TopicChange, queue: int, new: Place) -> Move:
        key = group, topic.incarnation, queue
        old = self._offsets.get(*key)
        if old is None:
            # Where it would have begun.
            low = self._log.min_offset(topic.incarnation, queue)
            old = Place(low, self._log.epoch)
        return Move(key, topic.name, old, new)


def changes_of(moves: list[Move]) -> list[ClaimChange]:
    """The records of a reset: nobody holds these queues any more, so no late commit undoes it."""
    return [
        ClaimChange(
            *move.key,
            member="",
            offset=move.new.offset,
            epoch=move.new.epoch,
            undo_offset=move.old.offset,
            undo_epoch=move.old.epoch,
        )
        for move in moves
    ]


def parts_of(moves: list[Move]) -> list[GroupResetPart]:
    """The moves as the protocol tells them."""
    return [
        GroupResetPart(move.topic, move.key[2], move.old.offset, move.new.offset) for move in moves
    ]
