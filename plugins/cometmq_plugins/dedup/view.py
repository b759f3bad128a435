"""State view `dedup`: the last batches of every producer in every queue that it sends to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from cometmq.batch import ORIGIN_DIVERTED, Batch, Kind
from cometmq.log.records import TopicChange, read_records

WINDOW = 5
"""Batches remembered of a producer in a queue: so many it may have in flight."""
_SHARD = 200


class Sent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One batch in the log, and what its sender was told."""

    position: int
    end: int
    """Position behind it."""
    epoch: int
    """The producer's."""
    sequence: int
    """Of its first record."""
    count: int
    base_offset: int
    store_time: int
    incarnation: int
    log_epoch: int

    @property
    def next_sequence(self) -> int:
        return self.sequence + self.count


Key = tuple[str, int, int]
"""Topic and queue as the producer named them, and its id."""


class _Shard(msgspec.Struct, array_like=True):
    """A slice of the view: the newest batch that it knew of, and some places."""

    position: int
    store_time: int
    places: list[tuple[Key, list[Sent]]]


_shards = msgspec.msgpack.Decoder(_Shard)
_encoder = msgspec.msgpack.Encoder()


class Producers:
    """(topic, queue, producer) -> its last batches there, the highest positions that were seen.

    Time is the store time of the newest batch, so a replay forgets whom the broker forgot. It is
    that at the highest position and not the highest time: a clock that once stood far ahead and
    was corrected must not make everybody look idle until that day.
    """

    name = "dedup"
    kinds: Sequence[str] = ("messages", "topic-change")

    def __init__(self, idle_ms: int) -> None:
        """`idle_ms`: a producer that sent nothing to a queue for longer is forgotten there."""
        self._idle_ms = idle_ms
        self._places: OrderedDict[Key, list[Sent]] = OrderedDict()
        self._position = -1
        self._store_time = 0

    def __len__(self) -> int:
        return len(self._places)

    def last(self, key: Key) -> Sent | None:
        """The last batch there; None for nobody we know."""
        sent = self._places.get(key)
        if sent is None:
            return None
        last = sent[-1]
        return last if self._store_time - last.store_time <= self._idle_ms else None

    def follows(self, key: Key, epoch: int, sequence: int) -> bool:
        """Whether this is what comes next there, as nearly always."""
        sent = self._places.get(key)
        if sent is None:
            return False
        last = sent[-1]
        return (
            sequence == last.sequence + last.count
            and epoch == last.epoch
            and self._store_time - last.store_time <= self._idle_ms
        )

    def window(self, key: Key) -> list[Sent]:
        """The batches that may be repeated, newest first: those that lead up to the last one
        without a gap. What lies before is of another life of the producer."""
        window: list[Sent] = []
        for sent in reversed(self._places.get(key, ())):
            if window and not self._leads_to(sent, window[-1]):
                break
            window.append(sent)
        return window if self.last(key) is not None else []

    def keys(self) -> list[Key]:
        """All places that are not forgotten."""
        return [key for key, sent in self._places.items() if not self._is_idle(sent)]

    def forget_idle(self, count: int) -> None:
        """Give up to `count` places back that are forgotten anyway, of those unused for longest."""
        for key in list(islice(self._places, count)):
            if self._is_idle(self._places[key]):
                del self._places[key]

    # --- as a state view ----------------------------------------------------------------------

    def apply(self, batch: Batch) -> None:
        position, store_time = batch.position, batch.store_time
        if position > self._position:
            self._position, self._store_time = position, store_time
        producer = batch.producer
        if producer is None or batch.origin_kind > ORIGIN_DIVERTED:
            if batch.kind == Kind.TOPIC_CHANGE:
                self._take_changes(batch)
            return
        number, epoch, sequence = producer
        sent = Sent(
            position,
            position + batch.length,
            epoch,
            sequence,
            batch.count,
            batch.base_offset,
            store_time,
            batch.incarnation,
            batch.epoch,
        )
        places, key = self._places, (batch.topic, batch.queue_claim, number)
        known = places.get(key)
        if known is None:
            places[key] = [sent]
            # Two may go for one that comes, so memory follows those who send.
            self.forget_idle(2)
        elif known[-1].position < position:
            known.append(sent)
            if len(known) > WINDOW:
                del known[0]
            places.move_to_end(key)
        else:
            places[key] = _joined(known, [sent])

    def slices(self) -> Iterator[bytes]:
        keys = iter(self.keys())
        while some := list(islice(keys, _SHARD)):
            places = [(key, self._places[key]) for key in some if key in self._places]
            yield _encoder.encode(_Shard(self._position, self._store_time, places))

    def load(self, data: bytes) -> None:
        shard = _shards.decode(data)
        if shard.position > self._position:
            self._position, self._store_time = shard.position, shard.store_time
        for key, sent in shard.places:
            self._places[key] = _joined(self._places.get(key, []), sent)

    def reset(self) -> None:
        self._places.clear()
        self._position, self._store_time = -1, 0

    # --- inside -------------------------------------------------------------------------------

    def _is_idle(self, sent: list[Sent]) -> bool:
        return self._store_time - sent[-1].store_time > self._idle_ms

    def _leads_to(self, sent: Sent, following: Sent) -> bool:
        return (
            sent.epoch == following.epoch
            and sent.next_sequence == following.sequence
            and following.store_time - sent.store_time <= self._idle_ms
        )

    def _take_changes(self, batch: Batch) -> None:
        """Another topic of that name starts afresh. A replay may know what came after already."""
        for change in read_records(TopicChange, batch):
            if change.deleted:
                for key in [key for key in self._places if key[0] == change.name]:
                    left = [it for it in self._places[key] if it.position > batch.position]
                    if left:
                        self._places[key] = left
                    else:
                        del self._places[key]


def _joined(some: Sequence[Sent], more: Sequence[Sent]) -> list[Sent]:
    """The highest positions of both, each once."""
    by_position = {sent.position: sent for sent in (*some, *more)}
    return [by_position[position] for position in sorted(by_position)][-WINDOW:]
