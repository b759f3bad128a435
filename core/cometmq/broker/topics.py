"""The topics of this log: a view of its topic changes.

Every topic has an *incarnation*: an id counted per log, so that a topic that was deleted and made
again is another one, whose offsets and data have nothing to do with the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec

from cometmq.batch import Batch
from cometmq.log.records import TopicChange, read_records
from cometmq.protocol import Retention, TopicInfo

KIND = "topic-change"
_SHARD = 100
_NO_RETENTION = Retention()


class _Shard(msgspec.Struct, array_like=True):
    """A slice of the view: the counter and some topics."""

    next_incarnation: int
    topics: list[TopicChange]


_shards = msgspec.msgpack.Decoder(_Shard)
_encoder = msgspec.msgpack.Encoder()


class Topics:
    """Topics by name and by incarnation. Changed by `apply` only."""

    name = "topics"
    kinds: Sequence[str] = (KIND,)

    def __init__(self) -> None:
        self._by_incarnation: dict[int, TopicChange] = {}
        self._by_name: dict[str, TopicChange] = {}
        self.get: Callable[[str], TopicChange | None] = self._by_name.get
        """The living topic of this name."""
        self._retained: dict[int, TopicChange] = {}
        self.next_incarnation = 1
        """What the next topic gets; everything below was once given out."""

    def __len__(self) -> int:
        return len(self._by_incarnation)

    def __iter__(self) -> Iterator[TopicChange]:
        return iter(sorted(self._by_name.values(), key=lambda topic: topic.name))

    def some(self, prefix: str, most: int) -> list[TopicChange]:
        """Up to `most` of those whose names begin so, in no order."""
        named = (topic for name, topic in self._by_name.items() if name.startswith(prefix))
        return list(islice(named, most))

    def of(self, incarnation: int) -> TopicChange | None:
        """The living topic with this incarnation id."""
        return self._by_incarnation.get(incarnation)

    def retained(self) -> list[TopicChange]:
        """The living topics that have a retention of their own, in no order."""
        return list(self._retained.values())

    def apply(self, batch: Batch) -> None:
        for change in read_records(TopicChange, batch):
            self._set(change)

    def slices(self) -> Iterator[bytes]:
        yield _encoder.encode(_Shard(self.next_incarnation, []))
        incarnations = iter(list(self._by_incarnation))
        while shard := list(islice(incarnations, _SHARD)):
            found = [self._by_incarnation.get(incarnation) for incarnation in shard]
            topics = [topic for topic in found if topic is not None]
            yield _encoder.encode(_Shard(self.next_incarnation, topics))

    def load(self, data: bytes) -> None:
        shard = _shards.decode(data)
        self.next_incarnation = max(self.next_incarnation, shard.next_incarnation)
        for topic in shard.topics:
            self._set(topic)

    def reset(self) -> None:
        self._by_incarnation.clear()
        self._by_name.clear()
        self._retained.clear()
        self.next_incarnation = 1

    def _set(self, change: TopicChange) -> None:
        self.next_incarnation = max(self.next_incarnation, change.incarnation + 1)
        named = self._by_name.get(change.name)
        # A replay begins before the checkpoint that it was loaded from, so changes of a topic
        # long gone may pass by while its successor is known already.
        newest = named is None or named.incarnation <= change.incarnation
        if change.deleted:
            self._by_incarnation.pop(change.incarnation, None)
            self._retained.pop(change.incarnation, None)
            if named is not None and named.incarnation == change.incarnation:
                del self._by_name[change.name]
            return
        self._by_incarnation[change.incarnation] = change
        self._retained.pop(change.incarnation, None)
        if change.retention != _NO_RETENTION:
            self._retained[change.incarnation] = change
        if newest:
            self._by_name[change.name] = change


def info_of(topic: TopicChange) -> TopicInfo:
    """A topic as the protocol tells it."""
    return TopicInfo(
        topic=topic.name,
        incarnation=topic.incarnation,
        queues=topic.queues,
        readable=topic.readable,
        writable=topic.writable,
        created_ms=topic.created_ms,
        retention=topic.retention,
    )
