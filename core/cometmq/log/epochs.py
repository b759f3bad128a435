"""State view `epochs`: where each master's reign began, and whose it was."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

from cometmq.batch import Batch, Kind
from cometmq.log.records import EpochStart, Trim, read_records

_decoder = msgspec.msgpack.Decoder(list[EpochStart])
_SHARD = 500
"""Epochs per slice."""


class Epochs:
    """Epoch -> start. What ended before the log's start is forgotten."""

    name = "epochs"
    kinds: Sequence[str] = ("epoch-start", "trim")

    def __init__(self) -> None:
        self._starts: dict[int, EpochStart] = {}
        self._order: list[EpochStart] = []

    def apply(self, batch: Batch) -> None:
        """Take a new reign, or forget those that a trim made unreachable."""
        if batch.kind == Kind.TRIM:
            for record in read_records(Trim, batch):
                self._forget(record.position)
        else:
            self._join(read_records(EpochStart, batch))

    def slices(self) -> Iterator[bytes]:
        """Shards of some hundred epochs."""
        starts = list(self._order)
        for at in range(0, len(starts), _SHARD):
            yield msgspec.msgpack.encode(starts[at : at + _SHARD])

    def load(self, data: bytes) -> None:
        """Join a shard."""
        self._join(_decoder.decode(data))

    def reset(self) -> None:
        """No reign is known."""
        self._starts.clear()
        self._order.clear()

    @property
    def last(self) -> int:
        """The newest epoch; 0 in a log that has none yet."""
        return self._order[-1].epoch if self._order else 0

    def start_of(self, epoch: int) -> int | None:
        """Position where an epoch began; None if it isn't known."""
        found = self._starts.get(epoch)
        return None if found is None else found.position

    def end_of(self, epoch: int) -> int | None:
        """Position where an epoch had ended; None while it lasts."""
        at = bisect_right(self._order, epoch, key=lambda start: start.epoch)
        return self._order[at].position if at < len(self._order) else None

    def node_of(self, epoch: int) -> str:
        """Who reigned, in hex; empty if it isn't known."""
        found = self._starts.get(epoch)
        return "" if found is None else found.node

    def _join(self, records: Iterable[EpochStart]) -> None:
        for record in records:
            self._starts[record.epoch] = record
        self._order = sorted(self._starts.values(), key=lambda start: start.epoch)

    def _forget(self, position: int) -> None:
        """Drop the epochs that ended at or before `position`: what a reader kept of them is judged
        by the end of the oldest one left, which is at or before the log's start."""
        gone = [
            start for start, following in pairwise(self._order) if following.position <= position
        ]
        for start in gone:
            del self._starts[start.epoch]
        self._join(())
