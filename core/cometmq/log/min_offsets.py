"""State view `min-offsets`: up to where queues were given up although their bytes may be there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from cometmq.batch import Batch, Kind
from cometmq.log.records import TopicChange, read_records

_SHARD = 2000


class MinOffset(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A record of the kind `min-offset`: the first offset of a queue that still counts."""

    incarnation: int
    queue: int
    offset: int


_decoder = msgspec.msgpack.Decoder(list[MinOffset])


class MinOffsets:
    """(incarnation, queue) -> min offset, a maximum. A deleted topic's are forgotten."""

    name = "min-offsets"
    kinds: Sequence[str] = ("min-offset", "topic-change")

    def __init__(self) -> None:
        self._topics: dict[int, dict[int, int]] = {}

    def get(self, incarnation: int, queue: int) -> int:
        """The first offset that still counts; 0 if none was given up."""
        queues = self._topics.get(incarnation)
        return 0 if queues is None else queues.get(queue, 0)

    def apply(self, batch: Batch) -> None:
        """Take raised offsets, or forget a topic that was deleted."""
        if batch.kind == Kind.MIN_OFFSET:
            self._join(_decoder.decode(batch.records))
            return
        for change in read_records(TopicChange, batch):
            if change.deleted:
                self._topics.pop(change.incarnation, None)

    def slices(self) -> Iterator[bytes]:
        """Shards of one topic each."""
        for incarnation in list(self._topics):
            queues = iter(list(self._topics.get(incarnation, {}).items()))
            while shard := list(islice(queues, _SHARD)):
                yield msgspec.msgpack.encode([MinOffset(incarnation, *item) for item in shard])

    def load(self, data: bytes) -> None:
        """Join a shard."""
        self._join(_decoder.decode(data))

    def reset(self) -> None:
        """Nothing was given up."""
        self._topics.clear()

    def _join(self, records: Iterable[MinOffset]) -> None:
        for record in records:
            queues = self._topics.setdefault(record.incarnation, {})
            queues[record.queue] = max(queues.get(record.queue, 0), record.offset)
