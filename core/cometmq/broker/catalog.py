"""Deciding about topics: find, make, change and delete them. The state is in `topics`."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.names import shown
from cometmq.broker.park import Park
from cometmq.broker.refusals import Rejected
from cometmq.broker.topics import KIND, Topics
from cometmq.environment import Clock
from cometmq.log import Appended, Log
from cometmq.log.records import TopicChange
from cometmq.names import NAME_RULE, QUEUES_MAX, is_name
from cometmq.protocol import Retention, Status

TOPICS_MAX = 100_000
"""Memory is bounded, and a client with a bug can name a new topic in every message."""


class Catalog:
    """The topics, and the only place that appends changes of them."""

    def __init__(
        self,
        log: Log,
        topics: Topics,
        park: Park,
        clock: Clock,
        *,
        auto_create: bool,
        default_queues: int,
        before_delete: Callable[[], None],
    ) -> None:
        """`before_delete` appends what waits to be appended, so that the deletion is the last."""
        self._log = log
        self.topics = topics
        self._park = park
        self._clock = clock
        self._auto_create = auto_create
        self._default_queues = default_queues
        self._before_delete = before_delete
        self.on_change: Callable[[str], None] = lambda name: None
        """Told the name of each topic that was made, changed or deleted."""

    def find(self, name: str, incarnation: int = 0) -> TopicChange:
        """The living topic of this name; `incarnation` is the one that the client knows (0: none).
        Raises Rejected: TOPIC_GONE for who knew another one, else TOPIC_NOT_FOUND."""
        topic = self.topics.get(name)
        if topic is not None and (not incarnation or incarnation == topic.incarnation):
            return topic
        if incarnation:
            raise Rejected(
                Status.TOPIC_GONE,
                f"topic {shown(name)} as this client knows it (incarnation {incarnation}) was "
                "deleted: create it again if it is missing (`mq topic create`), then send, or seek "
                "in a consumer; its offsets begin anew",
            )
        raise Rejected(
            Status.TOPIC_NOT_FOUND,
            f"there is no topic {shown(name)} here: `mq topic list` shows those that there are, "
            "`mq topic create` makes one",
        )

    def find_queue(self, name: str, queue: int, incarnation: int = 0) -> TopicChange:
        """The same, for a queue that it has. Raises Rejected."""
        topic = self.find(name, incarnation)
        if queue >= topic.queues:
            raise Rejected(
                Status.QUEUE_NOT_FOUND,
                f"topic {shown(name)} has no queue {queue}, only 0 to {topic.queues - 1}: "
                "name one of these, or give it more by `mq topic alter --queues`",
            )
        return topic

    def creatable(self, name: str, incarnation: int) -> bool:
        """True if this name may be made into a topic because somebody used it. Who knew an
        incarnation never makes a new one by accident."""
        return self._auto_create and not incarnation and self.topics.get(name) is None

    def create(
        self,
        name: str,
        queues: int | None = None,
        *,
        readable: bool = True,
        writable: bool = True,
    ) -> tuple[TopicChange, Appended]:
        """A new topic. Raises Rejected, LogError."""
        if not is_name(name):
            raise Rejected(Status.BAD_NAME, f"{shown(name)} is no topic name: use {NAME_RULE}")
        if self.topics.get(name) is not None:
            raise Rejected(
                Status.TOPIC_EXISTS,
                f"topic {shown(name)} is there already: use it, or change it by `mq topic alter`",
            )
        if len(self.topics) >= TOPICS_MAX:
            raise Rejected(
                Status.LIMIT_REACHED,
                f"there are {len(self.topics)} topics, the most that one broker holds: delete "
                f"some before creating {shown(name)}",
            )
        queues = self._default_queues if queues is None else queues
        _check_queues(name, queues)
        return self._append(
            TopicChange(
                incarnation=self.topics.next_incarnation,
                name=name,
                queues=queues,
                readable=readable,
                writable=writable,
                created_ms=self._clock.wall_ms(),
            )
        )

    def alter(
        self,
        topic: TopicChange,
        queues: int | None,
        readable: bool | None,
        writable: bool | None,
        retention: Retention | None = None,
    ) -> tuple[TopicChange, Appended]:
        """Change what is not None. Raises Rejected, LogError."""
        if retention is not None:
            _check_retention(topic.name, retention)
        if queues is not None:
            _check_queues(topic.name, queues)
            if queues < topic.queues:
                raise Rejected(
                    Status.REFUSED,
                    f"topic {shown(topic.name)} has {topic.queues} queues and can't shrink to "
                    f"{queues}: their messages would be lost",
                )
        changed = self._append(
            TopicChange(
                incarnation=topic.incarnation,
                name=topic.name,
                queues=topic.queues if queues is None else queues,
                readable=topic.readable if readable is None else readable,
                writable=topic.writable if writable is None else writable,
                created_ms=topic.created_ms,
                retention=topic.retention if retention is None else retention,
            )
        )
        self._wake(topic)
        return changed

    def delete(self, topic: TopicChange) -> Appended:
        """Delete a topic and, by the same record, every group's offsets in it. Raises LogError."""
        self._before_delete()
        gone = TopicChange(incarnation=topic.incarnation, name=topic.name, deleted=True)
        appended = self._log.append_control(KIND, [gone])
        self._wake(topic)
        self.on_change(topic.name)
        return appended

    def _append(self, change: TopicChange) -> tuple[TopicChange, Appended]:
        appended = self._log.append_control(KIND, [change])
        self.on_change(change.name)
        return change, appended

    def _wake(self, topic: TopicChange) -> None:
        """Whoever waits for this topic's queues has to hear of it now."""
        for queue in range(topic.queues):
            self._park.release((topic.incarnation, queue))


def _check_queues(name: str, queues: int) -> None:
    if not 1 <= queues <= QUEUES_MAX:
        raise Rejected(
            Status.BAD_REQUEST,
            f"topic {shown(name)} can't have {queues} queues: give 1 to {QUEUES_MAX}",
        )


def _check_retention(name: str, retention: Retention) -> None:
    capped = bool(retention.cap_ms or retention.cap_bytes)
    if retention.group and not is_name(retention.group):
        raise Rejected(
            Status.BAD_NAME, f"{shown(retention.group)} is no group name: use {NAME_RULE}"
        )
    if capped != bool(retention.group):
        raise Rejected(
            Status.BAD_REQUEST,
            f"topic {shown(name)}: a group whose messages are kept needs a cap in time or bytes "
            "(it may never come back), and a cap needs a group: give both or neither",
        )
