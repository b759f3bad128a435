"""What both faces of the admin client share, as flows."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from cometmq.client.arguments import check_number
from cometmq.client.group_administration import GroupAdministration
from cometmq.client.offsets import (
    Start,
    ask_offsets,
    check_start,
    commit_failures,
    committed_offsets,
    offsets_at,
)
from cometmq.client.validation import check_name
from cometmq.errors import Refused
from cometmq.protocol import (
    BrokerInfo,
    BrokerInfoReply,
    Commit,
    CommitPart,
    CommitReply,
    Empty,
    OffsetsPart,
    Operation,
    QueueRef,
    Retention,
    TopicAlter,
    TopicCreate,
    TopicDelete,
    TopicDescribe,
    TopicDescription,
    TopicInfo,
    TopicList,
    TopicListing,
)

S = TypeVar("S", bound=msgspec.Struct)


class Administration(GroupAdministration):
    """Each method is one operation with its own deadline. They raise Refused, Retryable and,
    those that change something, OutcomeUnknown."""

    async def create_topic(
        self, name: str, queues: int, readable: bool, writable: bool
    ) -> TopicDescription:
        """See `Admin.create_topic`."""
        check_name("topic", name)
        header = TopicCreate(name, queues, readable, writable)
        return await self._ask(Operation.TOPIC_CREATE, header, TopicDescription)

    async def alter_topic(
        self,
        name: str,
        queues: int | None,
        readable: bool | None,
        writable: bool | None,
        retention: Retention | None,
    ) -> TopicDescription:
        """See `Admin.alter_topic`."""
        check_name("topic", name)
        if not isinstance(retention, Retention | None):
            raise Refused(
                f"retention={retention!r}: a Retention is wanted, as in Retention(time_ms=60_000)",
                "BAD_REQUEST",
            )
        header = TopicAlter(name, queues, readable, writable, retention=retention)
        return await self._ask(Operation.TOPIC_ALTER, header, TopicDescription)

    async def delete_topic(self, name: str) -> None:
        """See `Admin.delete_topic`."""
        check_name("topic", name)
        await self._ask(Operation.TOPIC_DELETE, TopicDelete(name), Empty)

    async def list_topics(self, prefix: str) -> list[TopicInfo]:
        """See `Admin.list_topics`."""
        reply = await self._ask(Operation.TOPIC_LIST, TopicList(prefix), TopicListing)
        return reply.topics

    async def describe_topic(self, name: str, usage: bool = False) -> TopicDescription:
        """See `Admin.describe_topic`."""
        check_name("topic", name)
        header = TopicDescribe(name, usage=usage)
        return await self._ask(Operation.TOPIC_DESCRIBE, header, TopicDescription)

    async def broker_info(self) -> BrokerInfoReply:
        """See `Admin.broker_info`."""
        return await self._ask(Operation.BROKER_INFO, BrokerInfo(), BrokerInfoReply)

    async def offsets(self, topic: str) -> dict[int, OffsetsPart]:
        """See `Admin.offsets`."""
        refs = await self._refs(topic, None)
        parts = await ask_offsets(self.engine, refs, self._deadline_s())
        return {ref.queue: part for ref, part in zip(refs, parts, strict=True)}

    async def committed(self, group: str, topic: str) -> dict[int, int | None]:
        """See `Admin.committed`."""
        check_name("group", group)
        refs = await self._refs(topic, None)
        parts = await committed_offsets(self.engine, group, refs, self._deadline_s())
        return {
            ref.queue: None if part is None else part.offset
            for ref, part in zip(refs, parts, strict=True)
        }

    async def reset_offsets(
        self, group: str, topic: str, to: Start, queue: int | None
    ) -> dict[int, int]:
        """See `Admin.reset_offsets`."""
        check_name("group", group)
        check_start(to)
        refs = await self._refs(topic, queue)
        deadline_s = self._deadline_s()
        places = await offsets_at(self.engine, refs, to, deadline_s)
        parts = [
            CommitPart(ref.topic, ref.queue, offset, epoch, ref.incarnation)
            for ref, (offset, epoch) in zip(refs, places, strict=True)
        ]
        header = Commit(group, parts)
        reply = await self.engine.ask(Operation.COMMIT, header, CommitReply, deadline_s)
        for error in commit_failures(reply, parts).values():
            raise error
        return {part.queue: part.offset for part in parts}

    async def call(self, operation: int, header: msgspec.Struct, reply_type: type[S]) -> S:
        """See `Admin.call`."""
        return await self.engine.ask(operation, header, reply_type, self._deadline_s())

    async def _refs(self, topic: str, queue: int | None) -> list[QueueRef]:
        """The queues of a topic, or the one named. Raises Refused when it has no such queue."""
        info = (await self.describe_topic(topic)).info
        queues = range(info.queues) if queue is None else [queue]
        if queue is not None:
            check_number("queue", queue, least=0, whole=True, error=Refused)
        if queue is not None and not 0 <= queue < info.queues:
            raise Refused(
                f"{topic} has queues 0 to {info.queues - 1}, not {queue}", "QUEUE_NOT_FOUND"
            )
        return [QueueRef(topic, number, info.incarnation) for number in queues]
