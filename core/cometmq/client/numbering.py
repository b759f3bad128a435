"""The sequence numbers that make a producer's batches known again when they are repeated.

They count the messages of one producer in one queue, within an *epoch*. Whatever breaks the row
(a batch that is refused or given up) ends the epoch: what was not sent yet is numbered anew from 0.
"""

from __future__ import annotations

from cometmq.batch import ProducerTuple
from cometmq.environment import Random

IN_FLIGHT = 5
"""Numbered batches on their way to one queue: so many a broker remembers."""


class _Row:
    """Where one queue's numbers stand."""

    __slots__ = ("epoch", "incarnation", "sequence")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.epoch = 0
        self.sequence = 0


class Numbering:
    """The numbers of one producer, by topic and queue."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._rows: dict[tuple[str, int], _Row] = {}
        self._producer = -1
        """Its id, drawn when it is needed first."""

    def next(self, topic: str, incarnation: int, queue: int) -> ProducerTuple:
        """What the next batch gets. Another life of the topic begins another row."""
        if self._producer < 0:
            self._producer = int.from_bytes(self._random.bytes(8), "little")
        row = self._rows.get((topic, queue))
        if row is None:
            row = self._rows[topic, queue] = _Row(incarnation)
        elif row.incarnation != incarnation:
            row.incarnation = incarnation
            row.epoch, row.sequence = row.epoch + 1, 0
        return self._producer, row.epoch, row.sequence

    def took(self, topic: str, queue: int, count: int) -> None:
        """A batch of so many messages has its number."""
        self._rows[topic, queue].sequence += count

    def end_epoch(self, topic: str, queue: int) -> None:
        """The row is broken: what is numbered from now on begins at 0."""
        row = self._rows[topic, queue]
        row.epoch, row.sequence = row.epoch + 1, 0
