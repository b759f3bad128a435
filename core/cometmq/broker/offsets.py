"""Where the groups are: a view of the offset commits in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from cometmq.batch import Batch, Kind
from cometmq.broker.claims import GROUP_KIND, read_claims, read_groups
from cometmq.broker.claims import KIND as CLAIM_KIND
from cometmq.broker.topics import KIND as TOPIC_KIND
from cometmq.log.records import TopicChange, read_records

KIND = "offset-commit"
_SHARD = 1000


class OffsetCommit(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A record of the kind `offset-commit`: the next offset that a group will read."""

    group: str
    incarnation: int
    queue: int
    offset: int
    epoch: int


class Place(NamedTuple):
    """A committed offset and the epoch that was valid for it."""

    offset: int
    epoch: int


_commits = msgspec.msgpack.Decoder(list[OffsetCommit])
_encoder = msgspec.msgpack.Encoder()


class CommittedOffsets:
    """The last commit of every (group, topic incarnation, queue). Changed by `apply` only.

    Deleting a topic is one control batch for the topic and for all offsets in it; claims, releases
    and resets commit in their own batches.
    """

    name = "committed-offsets"
    kinds: Sequence[str] = (KIND, TOPIC_KIND, CLAIM_KIND, GROUP_KIND)

    def __init__(self) -> None:
        self._places: dict[int, dict[tuple[str, int], Place]] = {}
        self._by_group: dict[str, dict[int, int]] = {}
        """How many places each group has in each topic; none has none."""
        self.count = 0
        """How many places there are."""

    @property
    def groups(self) -> int:
        """How many groups have committed something that is still there."""
        return len(self._by_group)

    def knows(self, group: str) -> bool:
        """Whether the group has committed something that is still there."""
        return group in self._by_group

    def names(self) -> list[str]:
        """The groups that have committed something that is still there."""
        return list(self._by_group)

    def topics_of(self, group: str) -> list[int]:
        """The incarnations that the group has committed something in."""
        return list(self._by_group.get(group, ()))

    def get(self, group: str, incarnation: int, queue: int) -> Place | None:
        """What the group committed there last."""
        return self._places.get(incarnation, {}).get((group, queue))

    def apply(self, batch: Batch) -> None:
        if batch.kind == Kind.OFFSET_COMMIT:
            for commit in _commits.decode(batch.records):
                self._set(commit)
        elif batch.kind == Kind.CLAIM:
            for claim in read_claims(batch):
                if claim.offset is not None:
                    place = claim.offset, claim.epoch
                    self._set(OffsetCommit(claim.group, claim.incarnation, claim.queue, *place))
        elif batch.kind == Kind.GROUP_CHANGE:
            for change in read_groups(batch):
                if change.deleted:
                    self._forget_group(change.group)
        else:
            for topic in read_records(TopicChange, batch):
                if topic.deleted:
                    self._forget(topic.incarnation)

    def slices(self) -> Iterator[bytes]:
        for incarnation in list(self._places):
            keys = iter(list(self._places.get(incarnation, ())))
            while shard := list(islice(keys, _SHARD)):
                yield _encoder.encode(self._commits(incarnation, shard))

    def load(self, data: bytes) -> None:
        for commit in _commits.decode(data):
            self._set(commit)

    def reset(self) -> None:
        self._places.clear()
        self._by_group.clear()
        self.count = 0

    def _set(self, commit: OffsetCommit) -> None:
        places = self._places.setdefault(commit.incarnation, {})
        key = commit.group, commit.queue
        if key not in places:
            topics = self._by_group.setdefault(commit.group, {})
            topics[commit.incarnation] = topics.get(commit.incarnation, 0) + 1
            self.count += 1
        places[key] = Place(commit.offset, commit.epoch)

    def _forget(self, incarnation: int) -> None:
        places = self._places.pop(incarnation, {})
        self.count -= len(places)
        for group in {group for group, _ in places}:
            self._drop_topic(group, incarnation)

    def _forget_group(self, group: str) -> None:
        for incarnation in self.topics_of(group):
            places = self._places[incarnation]
            for key in [key for key in places if key[0] == group]:
                del places[key]
                self.count -= 1
            self._drop_topic(group, incarnation)

    def _drop_topic(self, group: str, incarnation: int) -> None:
        topics = self._by_group[group]
        del topics[incarnation]
        if not topics:
            del self._by_group[group]

    def _commits(self, incarnation: int, keys: Sequence[tuple[str, int]]) -> list[OffsetCommit]:
        places = self._places.get(incarnation, {})
        return [
            OffsetCommit(group, incarnation, queue, *places[group, queue])
            for group, queue in keys
            if (group, queue) in places
        ]
