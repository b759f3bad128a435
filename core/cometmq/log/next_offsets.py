"""State view `next-offsets`: the offset that the next message of each queue gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from cometmq.batch import Batch, Kind
from cometmq.log.records import TopicChange, read_records

_SHARD = 2000
"""About how many queues a slice holds: some 20 kB, 0.1 ms."""
_decoder = msgspec.msgpack.Decoder(list[tuple[int, list[tuple[int, int]]]])


class NextOffsets:
    """(incarnation, queue) -> next offset, a maximum: it never falls but by a cut of the log.

    A deleted topic's queues are forgotten; no other topic will ever have its incarnation.
    """

    name = "next-offsets"
    kinds: Sequence[str] = ("messages", "topic-change")

    def __init__(self) -> None:
        self._topics: dict[int, dict[int, int]] = {}

    def apply(self, batch: Batch) -> None:
        """Take a batch of messages; one of no topic (incarnation 0) has no place in a queue. Or
        forget a topic that was deleted."""
        if batch.kind == Kind.TOPIC_CHANGE:
            for change in read_records(TopicChange, batch):
                if change.deleted:
                    self._topics.pop(change.incarnation, None)
        elif batch.incarnation:
            self.advance(batch.incarnation, batch.queue, batch.next_offset)

    def advance(self, incarnation: int, queue: int, next_offset: int) -> None:
        """The queue holds messages up to `next_offset` (exclusive)."""
        queues = self._topics.get(incarnation)
        if queues is None:
            queues = self._topics[incarnation] = {}
        if next_offset > queues.get(queue, 0):
            queues[queue] = next_offset

    def take(self, incarnation: int, queue: int, count: int) -> int:
        """Give out the next so many offsets of the queue; returns the first of them."""
        queues = self._topics.get(incarnation)
        if queues is None:
            queues = self._topics[incarnation] = {}
        first = queues.get(queue, 0)
        queues[queue] = first + count
        return first

    def get(self, incarnation: int, queue: int) -> int:
        """The next offset; 0 for a queue that holds nothing yet."""
        queues = self._topics.get(incarnation)
        return 0 if queues is None else queues.get(queue, 0)

    def items(self) -> Iterator[tuple[tuple[int, int], int]]:
        """((incarnation, queue), next offset) of all queues; the state may change meanwhile."""
        for incarnation in list(self._topics):
            for queue, offset in list(self._topics.get(incarnation, {}).items()):
                yield (incarnation, queue), offset

    def slices(self) -> Iterator[bytes]:
        """Shards of whole topics."""
        shard: list[tuple[int, list[tuple[int, int]]]] = []
        size = 0
        for incarnation in list(self._topics):
            queues = list(self._topics.get(incarnation, {}).items())
            shard.append((incarnation, queues))
            size += len(queues)
            if size >= _SHARD:
                yield msgspec.msgpack.encode(shard)
                shard, size = [], 0
        if shard:
            yield msgspec.msgpack.encode(shard)

    def load(self, data: bytes) -> None:
        """Join a shard."""
        for incarnation, queues in _decoder.decode(data):
            for queue, offset in queues:
                self.advance(incarnation, queue, offset)

    def reset(self) -> None:
        """No queue holds anything."""
        self._topics.clear()
