"""State view `clock-ahead`: how far the wall clock went ahead in steps that nobody confirmed.

The log's store times follow the clock, wherever it goes. So that a step can be doubted also after
a restart, and by whoever goes on with the log, it is told before the first batch that it stamps:
by a batch of its own, or at a start by the segment-start batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from cometmq.batch import Batch, Kind
from cometmq.environment import Clock
from cometmq.log.records import ClockAhead, SegmentStart, read_records

STEP_MS = 60_000
"""A wall clock that moved by no more against the machine's own was corrected, not stepped."""
_decoder = msgspec.msgpack.Decoder(ClockAhead)


class ClockAheadView:
    """The last word about the clock."""

    name = "clock-ahead"
    kinds: Sequence[str] = ("clock-ahead", "segment-start")

    def __init__(self) -> None:
        self.now = ClockAhead()

    def apply(self, batch: Batch) -> None:
        """Take what a batch says."""
        if batch.kind == Kind.SEGMENT_START:
            for start in read_records(SegmentStart, batch):
                self.now = ClockAhead(start.ahead_ms, start.even_ms)
        else:
            for record in read_records(ClockAhead, batch):
                self.now = record

    def slices(self) -> Iterator[bytes]:
        """One record, if there is a doubt."""
        if self.now != ClockAhead():
            yield msgspec.msgpack.encode(self.now)

    def load(self, data: bytes) -> None:
        """Take a shard."""
        self.now = _decoder.decode(data)

    def reset(self) -> None:
        """Nothing is in doubt."""
        self.now = ClockAhead()


class StepWatch:
    """Notices steps of the wall clock against the time that the machine is on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = self._offset(clock.wall_ms())

    def expect(self, wall_ms: int) -> None:
        """Count steps from this time on, which is told, or is all that is known."""
        self._offset_ms = self._offset(wall_ms)

    def look(self, wall_ms: int, known: ClockAhead) -> ClockAhead:
        """What is to be told instead of `known`, now that the wall clock says `wall_ms`; then
        `expect` that."""
        moved_ms = self._offset(wall_ms) - self._offset_ms
        if abs(moved_ms) <= STEP_MS:
            return known
        ahead_ms = max(0, round(known.ahead_ms + moved_ms))
        return known if ahead_ms == known.ahead_ms else ClockAhead(ahead_ms)

    def _offset(self, wall_ms: int) -> float:
        return wall_ms - self._clock.uptime_s() * 1000
