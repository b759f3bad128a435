"""How far groups are behind: in messages and in time."""

from __future__ import annotations

from collections.abc import Iterator

from cometmq.broker.offsets import CommittedOffsets
from cometmq.broker.tenures import Tenures
from cometmq.broker.topics import Topics
from cometmq.environment import Clock
from cometmq.interfaces import Metric
from cometmq.log import Log, NotLoaded
from cometmq.log.records import TopicChange
from cometmq.protocol import GroupQueueInfo

METRIC_QUEUES_MAX = 1000
"""So many queues have numbers of their own among the metrics; a reply has to fit into a frame."""


class GroupLag:
    """Looks at committed offsets and at the ends of queues."""

    def __init__(
        self, log: Log, topics: Topics, offsets: CommittedOffsets, tenures: Tenures, clock: Clock
    ) -> None:
        self._log = log
        self._topics = topics
        self._offsets = offsets
        self._tenures = tenures
        self._clock = clock

    def topics_of(self, group: str) -> list[TopicChange]:
        """The living topics that the group has a place in, by name."""
        found = [self._topics.of(each) for each in self._offsets.topics_of(group)]
        return sorted((each for each in found if each is not None), key=lambda each: each.name)

    def messages(self, group: str) -> int:
        """Messages that the group has not committed, of all its queues. May raise NotLoaded."""
        return sum(
            self._behind(group, topic, queue)[1]
            for topic in self.topics_of(group)
            for queue in range(topic.queues)
        )

    def queues(self, group: str) -> list[GroupQueueInfo]:
        """Every queue of the group's topics. May raise NotLoaded."""
        return [
            self._queue(group, topic, queue)
            for topic in self.topics_of(group)
            for queue in range(topic.queues)
        ]

    def metrics(self) -> Iterator[Metric]:
        """Lag by group, topic and queue; the age only where it can be had without the disk."""
        left = METRIC_QUEUES_MAX
        for group in self._offsets.names():
            for topic in self.topics_of(group):
                for queue in range(topic.queues):
                    left -= 1
                    if left >= 0:
                        yield from self._queue_metrics(group, topic, queue)
        help_text = "Queues of groups without lag metrics of their own: there are too many."
        yield Metric("group_lag_left_out", help_text, "gauge", max(-left, 0))

    def _queue_metrics(self, group: str, topic: TopicChange, queue: int) -> Iterator[Metric]:
        labels = {"group": group, "topic": topic.name, "queue": str(queue)}
        try:
            first, lag = self._behind(group, topic, queue)
            yield Metric("group_lag_messages", "Not yet committed.", "gauge", lag, labels)
            age_ms = self._age_ms(topic, queue, first) if lag else 0
        except NotLoaded:
            return
        help_text = "Age of the oldest message not yet committed."
        yield Metric("group_lag_age_ms", help_text, "gauge", age_ms, labels)

    def _queue(self, group: str, topic: TopicChange, queue: int) -> GroupQueueInfo:
        first, lag = self._behind(group, topic, queue)
        place = self._offsets.get(group, topic.incarnation, queue)
        holder = self._tenures.living((group, topic.incarnation, queue))
        return GroupQueueInfo(
            topic=topic.name,
            queue=queue,
            committed=first if place is None else place.offset,
            max_offset=self._log.max_offset(topic.incarnation, queue),
            lag=lag,
            lag_ms=self._age_ms(topic, queue, first) if lag else 0,
            owner="" if holder is None else holder.member,
            epoch=0 if place is None else place.epoch,
        )

    def _age_ms(self, topic: TopicChange, queue: int, offset: int) -> int:
        """How long ago a message was stored. May raise NotLoaded."""
        stored = self._log.index.time_at(topic.incarnation, queue, offset)
        return 0 if stored is None else max(self._clock.wall_ms() - stored, 0)

    def _behind(self, group: str, topic: TopicChange, queue: int) -> tuple[int, int]:
        """The first offset that the group has still to read, and how many there are from it on."""
        incarnation = topic.incarnation
        place = self._offsets.get(group, incarnation, queue)
        low = self._log.min_offset(incarnation, queue)
        first = low if place is None else max(place.offset, low)
        return first, max(self._log.max_offset(incarnation, queue) - first, 0)
