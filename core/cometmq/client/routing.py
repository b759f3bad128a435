"""What a producer or consumer knows of topics: which life of it, and how many queues."""

from __future__ import annotations

from functools import partial

import msgspec

from cometmq.client.engine import Engine
from cometmq.client.flows import Task
from cometmq.client.validation import check_name
from cometmq.errors import CometError, Refused
from cometmq.protocol import Operation, TopicDescribe, TopicDescription

REFRESH_S = 30.0


class Route(msgspec.Struct):
    """One topic as the broker described it last."""

    topic: str
    incarnation: int
    queues: int
    known_at_s: float
    """When the broker said so, on the monotonic clock."""


class Routes:
    """Routes by topic: asked for when first needed, and again when they are 30 s old."""

    def __init__(self, engine: Engine, *, create: bool) -> None:
        self._engine = engine
        self._create = create
        self._routes: dict[str, Route] = {}
        self._asked: dict[str, Task[Route]] = {}
        self._known: set[str] = set()
        """Topics that had an incarnation: such a topic is never created by accident again."""

    async def resolve(self, topic: str, deadline_s: float) -> Route:
        """The route, from the broker if need be; creates the topic if that is allowed.

        Raises Refused, Retryable.
        """
        route = self._routes.get(topic)
        if route is not None:
            return route
        check_name("topic", topic)
        return await self._ask(topic, deadline_s)

    def known(self, topic: str) -> Route | None:
        """What is known now, without asking."""
        return self._routes.get(topic)

    def refresh(self, topic: str) -> None:
        """Ask again in the background if what is known is old; until then the old one holds."""
        route = self._routes.get(topic)
        now_s = self._engine.now_s()
        if route is not None and now_s - route.known_at_s >= REFRESH_S:
            self._ask(topic, now_s + REFRESH_S)

    def forget(self, topic: str, incarnation: int) -> None:
        """The broker said that this life of the topic is over."""
        route = self._routes.get(topic)
        if route is not None and route.incarnation == incarnation:
            del self._routes[topic]

    def _ask(self, topic: str, deadline_s: float) -> Task[Route]:
        """One question at a time for each topic, whoever waits for it."""
        task = self._asked.get(topic)
        if task is None:
            task = self._engine.spawn(self._describe(topic, deadline_s))
            if not task.done:
                self._asked[topic] = task
                task.add_waiter(partial(self._answered, topic))
        return task

    def _answered(self, topic: str) -> None:
        del self._asked[topic]

    async def _describe(self, topic: str, deadline_s: float) -> Route:
        request = TopicDescribe(topic, create=self._create and topic not in self._known)
        try:
            reply = await self._engine.ask(
                Operation.TOPIC_DESCRIBE, request, TopicDescription, deadline_s
            )
        except Refused as error:
            if error.code in ("TOPIC_GONE", "TOPIC_NOT_FOUND"):
                self._routes.pop(topic, None)
            raise
        info = reply.info
        route = self._routes.get(topic)
        now_s = self._engine.now_s()
        if route is None or route.incarnation != info.incarnation:
            route = Route(topic, info.incarnation, info.queues, now_s)
            self._routes[topic] = route
        route.queues, route.known_at_s = info.queues, now_s
        self._known.add(topic)
        return route


def gone(error: CometError) -> bool:
    """Whether it says that the topic's known life is over."""
    return isinstance(error, Refused) and error.code in (
        "TOPIC_GONE",
        "TOPIC_NOT_FOUND",
        "QUEUE_NOT_FOUND",
    )
