"""The reply to a fetch, as it grows."""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.broker.names import shown
from cometmq.broker.refusals import Rejected
from cometmq.log import ReadResult
from cometmq.protocol import FetchPart, FetchResultPart, Status

SCAN_BYTES = 4 << 20
"""So much is looked through for one reply; who gets nothing of it asks again from behind it."""


class Reply:
    """Results of the parts of a fetch, in whatever order."""

    __slots__ = ("_parts", "most_bytes", "results", "room", "scan_room")

    def __init__(self, room: int) -> None:
        self.most_bytes = room
        """What it may come to, but for a single batch that is larger."""
        self.room = room
        """Bytes that may still be added."""
        self.scan_room = SCAN_BYTES
        """Bytes that may still be looked through in vain."""
        self.results: list[FetchResultPart] = []
        self._parts: dict[int, Sequence[memoryview]] = {}

    @property
    def has_batches(self) -> bool:
        """Whether it has any: the first one is added whatever its size, others must fit."""
        return bool(self._parts)

    def in_order(self) -> tuple[list[FetchResultPart], list[memoryview]]:
        """Results and batches in the order of the request's parts."""
        parts = self._parts
        if len(self.results) == 1:
            return self.results, [batch for batches in parts.values() for batch in batches]
        results = sorted(self.results, key=lambda result: result.part)
        return results, [batch for at in sorted(parts) for batch in parts[at]]

    def refuse(self, at: int, error: Rejected) -> None:
        """Part `at` can't be had."""
        self.results.append(FetchResultPart(part=at, status=error.status, detail=error.detail))

    def truncated(self, at: int, part: FetchPart, incarnation: int, go_on: int, epoch: int) -> None:
        """The log was cut below what this consumer has read."""
        detail = (
            f"offset {part.offset} of queue {part.queue} of topic {shown(part.topic)} lies beyond "
            f"what is left of it, which ends at {go_on}: go on from {go_on}"
        )
        self.results.append(
            FetchResultPart(
                part=at,
                status=Status.TRUNCATED,
                next_offset=go_on,
                epoch=epoch,
                incarnation=incarnation,
                detail=detail,
            )
        )

    def add(
        self, at: int, part: FetchPart, incarnation: int, result: ReadResult, epoch: int
    ) -> None:
        """What part `at` gave; what gave nothing is left out. `epoch` is the broker's when it was
        read: valid for all that was there then, and cheaper to judge next time than the last
        batch's own."""
        batches = result.batches
        if not batches and result.status == Status.OK:
            if result.max_offset > part.offset:  # there is one, which does not fit
                self.room = 0
            return
        size = sum(map(len, batches))
        if self._parts and size > self.room:
            self.room = 0
            return
        self.results.append(
            FetchResultPart(
                part=at,
                status=result.status,
                next_offset=result.next_offset,
                epoch=epoch,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
                batches=len(batches),
                incarnation=incarnation,
                detail=_detail(part, result),
            )
        )
        self.room -= size
        if size:
            self._parts[at] = batches

    def passed(self, at: int, part: FetchPart, incarnation: int) -> None:
        """Part `at` gave nothing that its filter wants, but reading goes on at a later place."""
        if all(result.part != at for result in self.results):
            self.results.append(
                FetchResultPart(
                    part=at,
                    status=Status.OK,
                    next_offset=part.offset,
                    epoch=part.epoch,
                    incarnation=incarnation,
                )
            )


def _detail(part: FetchPart, result: ReadResult) -> str:
    if result.status == Status.EXPIRED:
        return (
            f"offset {part.offset} of queue {part.queue} of topic {shown(part.topic)} was deleted "
            f"by retention: go on from {result.next_offset}"
        )
    return result.detail
