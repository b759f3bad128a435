"""Which queues a consumer reads, and where it begins in each."""

from __future__ import annotations

from collections.abc import Iterable

from cometmq.client.cursor import Cursor
from cometmq.client.engine import Engine
from cometmq.client.fetcher import Fetcher
from cometmq.client.flows import Task, report_failure
from cometmq.client.offsets import Start, ask_offsets, check_start
from cometmq.client.placing import place, refs
from cometmq.client.routing import Routes, gone
from cometmq.client.validation import check_name
from cometmq.errors import CometError, Refused

TopicQueue = tuple[str, int]


class Assignment:
    """The cursors of a consumer: made and placed when first needed, more when a topic grows."""

    def __init__(
        self, engine: Engine, fetcher: Fetcher, group: str, start: Start, timeout_s: float
    ) -> None:
        check_start(start)
        self.cursors: dict[TopicQueue, Cursor] = {}
        self._engine = engine
        self._fetcher = fetcher
        self._group = group
        self._start = start
        self._timeout_s = timeout_s
        self._routes = Routes(engine, create=False)
        self._topics: list[str] = []
        """Read as a whole, queues that they get later included."""
        self._queues: list[TopicQueue] = []
        """Read by number instead."""
        self._task: Task[None] | None = None

    def assign_topics(self, topics: Iterable[str]) -> None:
        """Read all queues of these topics, from now on instead of what was read before."""
        self._assign([*topics], [])

    def assign_queues(self, queues: Iterable[TopicQueue]) -> None:
        """Read exactly these queues, from now on instead of what was read before."""
        self._assign([], [*queues])

    async def ready(self) -> None:
        """Until it is known where each queue is read from. Raises Refused, Retryable."""
        if not self._topics and not self._queues:
            raise Refused("nothing to read: give topic=..., or call assign(...) first")
        self._look_for_new_queues()
        task = self._task
        if task is None or task.done:
            # One that nobody waits for any more goes on: two of them would place all queues twice.
            self._task = task = None
            if not self.cursors:
                self._task = task = self._engine.spawn(self._place_all())
        if task is not None:
            await task

    def some(self, queue: int | None, topic: str | None) -> list[Cursor]:
        """The cursors of a queue, a topic, both, or all. Raises Refused when there are none."""
        found = [
            cursor
            for cursor in self.cursors.values()
            if queue in (None, cursor.queue) and topic in (None, cursor.topic)
        ]
        if not found:
            raise Refused(f"queue {queue} of {topic or 'the topic'} is not read by this consumer")
        return found

    def one(self, queue: int | None, topic: str | None) -> Cursor:
        """The cursor meant; without a queue the only one, or the only one that stands still."""
        found = self.some(queue, topic)
        if len(found) > 1:
            found = [cursor for cursor in found if cursor.raised] or found
        if len(found) > 1:
            raise Refused(f"{len(found)} queues could be meant; name queue (and topic)")
        return found[0]

    async def renew(self, cursors: Iterable[Cursor], deadline_s: float) -> None:
        """Take cursors whose topic was deleted to the life that it has now. Raises Refused when it
        has none, Retryable."""
        for cursor in cursors:
            if cursor.error is not None and gone(cursor.error):
                self._routes.forget(cursor.topic, cursor.incarnation)
                route = await self._routes.resolve(cursor.topic, deadline_s)
                cursor.incarnation = route.incarnation

    def _assign(self, topics: list[str], queues: list[TopicQueue]) -> None:
        for topic in {*topics, *(topic for topic, _ in queues)}:
            check_name("topic", topic)
        self._topics, self._queues = topics, queues
        # Asked for anew: a topic may have been deleted and made again.
        self._routes = Routes(self._engine, create=False)
        self._task = None
        self._use({})

    def _use(self, cursors: dict[TopicQueue, Cursor]) -> None:
        self.cursors = cursors
        self._fetcher.cursors = list(cursors.values())

    async def _place_all(self) -> None:
        """Make a cursor for each queue and place it."""
        deadline_s = self._engine.now_s() + self._timeout_s
        topics, queues, routes = self._topics, self._queues, self._routes
        cursors = {}
        for topic in topics or sorted({topic for topic, _ in queues}):
            route = await routes.resolve(topic, deadline_s)
            numbers = [queue for name, queue in queues if name == topic] or range(route.queues)
            for queue in numbers:
                if not 0 <= queue < route.queues:
                    text = f"{topic} has queues 0 to {route.queues - 1}, not {queue}"
                    raise Refused(text, "QUEUE_NOT_FOUND")
                cursors[topic, queue] = Cursor(topic, queue, route.incarnation)
        placed = list(cursors.values())
        await place(self._engine, placed, self._group, self._start, deadline_s)
        if routes is self._routes:  # not assigned anew meanwhile
            self._use(cursors)
            self._fetcher.hurry()

    def _look_for_new_queues(self) -> None:
        """A topic that grew is read as a whole all the same; a new queue from its beginning."""
        for topic in self._topics:
            self._routes.refresh(topic)
            route = self._routes.known(topic)
            if route is None or not self.cursors:
                continue
            for queue in range(route.queues):
                if (topic, queue) not in self.cursors:
                    cursor = Cursor(topic, queue, route.incarnation)
                    self.cursors[topic, queue] = cursor
                    task = self._engine.spawn(self._begin(cursor))
                    report_failure(task, f"queue {queue} of {topic} can't be read yet")

    async def _begin(self, cursor: Cursor) -> None:
        deadline_s = self._engine.now_s() + self._timeout_s
        try:
            (part,) = await ask_offsets(self._engine, refs([cursor]), deadline_s)
        except CometError:
            key = cursor.topic, cursor.queue
            if self.cursors.get(key) is cursor:
                del self.cursors[key]  # the next poll tries again
            raise
        if cursor.place is None:
            cursor.move(part.min_offset, part.epoch)
        self._use(self.cursors)
        self._fetcher.hurry()
