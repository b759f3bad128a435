"""What a producer or consumer knows of topics: which life of it, and how many queues."""

from __future__ import annotations

import os.path
from functools import partial
from itertools import islice

import msgspec

from cometmq.client.engine import Engine
from cometmq.client.flows import Task
from cometmq.client.validation import check_name
from cometmq.errors import CometError, Refused
from cometmq.protocol import Operation, TopicDescribe, TopicDescription, TopicList, TopicListing

REFRESH_S = 30.0
MANY = 16
"""Who has asked for so many topics, each with its own wait, will ask for more."""
LEARN_MOST = 2000
"""So many are told at once then."""
LEARNED_S = 5.0
"""So long what was told unasked is believed; later the topic is asked for."""


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
        self._learned: dict[str, Route] = {}
        """Routes that nobody needed yet."""

    async def resolve(self, topic: str, deadline_s: float) -> Route:
        """The route, from the broker if need be; creates the topic if that is allowed.

        Raises Refused, Retryable.
        """
        route = self._routes.get(topic) or self._take_learned(topic)
        if route is not None:
            return route
        check_name("topic", topic)
        route = await self._ask(topic, deadline_s)
        if self._create and len(self._routes) == MANY:
            self._engine.spawn(self._learn(deadline_s))
        return route

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

    def _take_learned(self, topic: str) -> Route | None:
        route = self._learned.pop(topic, None)
        if route is None or self._engine.now_s() - route.known_at_s >= LEARNED_S:
            return None
        self._routes[topic] = route
        self._known.add(topic)
        return route

    async def _learn(self, deadline_s: float) -> None:
        """Ask for what is named as the topics that are known, before somebody waits for it."""
        request = TopicList(os.path.commonprefix(list(self._routes)), LEARN_MOST)
        try:
            reply = await self._engine.ask(Operation.TOPIC_LIST, request, TopicListing, deadline_s)
        except CometError:
            return  # not allowed, or too late: then each is asked for alone
        now_s = self._engine.now_s()
        for info in islice(reply.topics, LEARN_MOST):
            if info.topic not in self._known:
                self._learned[info.topic] = Route(info.topic, info.incarnation, info.queues, now_s)

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
        self._learned.pop(topic, None)
        return route


def gone(error: CometError) -> bool:
    """Whether it says that the topic's known life is over."""
    return isinstance(error, Refused) and error.code in (
        "TOPIC_GONE",
        "TOPIC_NOT_FOUND",
        "QUEUE_NOT_FOUND",
    )
