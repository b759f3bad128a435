"""The operations on topics: create, alter, delete, list, describe."""

from __future__ import annotations

from cometmq.broker.catalog import Catalog
from cometmq.broker.gate import Gate
from cometmq.broker.names import shown
from cometmq.broker.refusals import Rejected
from cometmq.broker.requests import Body, Request
from cometmq.broker.topics import info_of
from cometmq.broker.waits import Waits
from cometmq.interfaces import Limits
from cometmq.log import Log
from cometmq.log.records import TopicChange
from cometmq.protocol import (
    Empty,
    QueueInfo,
    Status,
    TopicAlter,
    TopicCreate,
    TopicDelete,
    TopicDescribe,
    TopicDescription,
    TopicList,
    TopicListing,
)

INFO_BYTES = 80
"""Of a topic in a listing besides its names, at most."""


class TopicOperations:
    """Handlers; each change is answered when it has the broker's default level."""

    def __init__(
        self, log: Log, catalog: Catalog, gate: Gate, waits: Waits, limits: Limits
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._gate = gate
        self._waits = waits
        self._frame_bytes = limits.frame_bytes

    def create(self, request: Request, header: TopicCreate, body: Body) -> None:
        self._gate.check(request.session, "TOPIC_CREATE", header.topic)
        topic, appended = self._catalog.create(
            header.topic, header.queues, readable=header.readable, writable=header.writable
        )
        self._waits.answer(request, appended.end, lambda: self._describe(topic))

    def alter(self, request: Request, header: TopicAlter, body: Body) -> None:
        self._gate.check(request.session, "TOPIC_ALTER", header.topic)
        topic = self._catalog.find(header.topic, header.incarnation)
        topic, appended = self._catalog.alter(
            topic, header.queues, header.readable, header.writable, header.retention
        )
        self._waits.answer(request, appended.end, lambda: self._describe(topic))

    def delete(self, request: Request, header: TopicDelete, body: Body) -> None:
        self._gate.check(request.session, "TOPIC_DELETE", header.topic)
        topic = self._catalog.find(header.topic, header.incarnation)
        appended = self._catalog.delete(topic)
        self._waits.answer(request, appended.end, Empty)

    def list(self, request: Request, header: TopicList, body: Body) -> None:
        self._gate.check(request.session, "TOPIC_LIST", "")
        prefix, known = header.prefix, self._catalog.topics
        if header.most:
            found = known.some(prefix, header.most)
        else:
            found = [topic for topic in known if topic.name.startswith(prefix)]
        topics = list(map(info_of, found))
        size = sum(len(topic.topic) + len(topic.retention.group) + INFO_BYTES for topic in topics)
        if size > self._frame_bytes:
            raise Rejected(
                Status.LIMIT_REACHED,
                f"the {len(topics)} topics that begin with {shown(header.prefix)} don't fit into "
                "one reply: ask with a longer prefix",
            )
        request.answer(TopicListing(topics))

    def describe(self, request: Request, header: TopicDescribe, body: Body) -> None:
        self._gate.check(request.session, "TOPIC_DESCRIBE", header.topic)
        if header.create and self._catalog.creatable(header.topic, header.incarnation):
            self._gate.check(request.session, "TOPIC_CREATE", header.topic)
            topic, appended = self._catalog.create(header.topic)
            self._waits.answer(request, appended.end, lambda: self._describe(topic))
            return
        topic = self._catalog.find(header.topic, header.incarnation)
        description = self._describe(topic)
        if header.usage:
            self._add_usage(description)
        request.answer(description)

    def _add_usage(self, description: TopicDescription) -> None:
        """May raise NotLoaded: then it is tried again, and what was added up is remembered."""
        index, incarnation = self._log.index, description.info.incarnation
        description.size_bytes = sum(
            index.bytes_from(incarnation, each.queue, each.min_offset)
            for each in description.queues
        )
        times = [
            index.time_at(incarnation, each.queue, each.min_offset) for each in description.queues
        ]
        description.oldest_ms = min((time for time in times if time is not None), default=None)

    def _describe(self, topic: TopicChange) -> TopicDescription:
        queues = [
            QueueInfo(
                queue=queue,
                min_offset=self._log.min_offset(topic.incarnation, queue),
                max_offset=self._log.max_offset(topic.incarnation, queue),
                next_offset=self._log.next_offset(topic.incarnation, queue),
            )
            for queue in range(topic.queues)
        ]
        return TopicDescription(
            info_of(topic),
            queues,
            self._log.log_id.hex(),
            self._log.epoch,
            in_doubt=self._log.in_doubt,
        )
