"""Clustering: the members of a group share the queues of its topics, each queue one member's."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.client.claiming import Claiming
from cometmq.client.connection import READY
from cometmq.client.dispatch import Dispatch
from cometmq.client.engine import Engine
from cometmq.client.flows import log
from cometmq.client.group_options import GroupOptions, Lease
from cometmq.client.listeners import Topic
from cometmq.client.membership import Membership
from cometmq.client.taking import Taker
from cometmq.client.told import sentence
from cometmq.errors import CometError, Refused
from cometmq.protocol import RECONNECT_MS, GroupAdvice, Subscription
from cometmq.tags import tag_expression

AWAY_SHARE = 0.75
"""Of the time that the broker gives us to come back; the rest is for noticing later than it."""
GOODBYE_S = 2.0
"""How long a broker that does not answer can hold up a good-bye: one that restarts meanwhile still
gets the last commits, and need not keep our queues for us."""


class Clustering:
    """Membership and claims of one consumer. Everything needs the driver's lock."""

    def __init__(
        self,
        engine: Engine,
        options: GroupOptions,
        dispatch: Dispatch,
        taker: Taker,
        lease: Lease,
        on_failure: Callable[[CometError], None],
    ) -> None:
        self._engine = engine
        self._dispatch = dispatch
        self._claiming = Claiming(engine, options, dispatch, taker)
        self._membership = Membership(
            engine, options, lease, self._claiming.held, self._advised, on_failure
        )
        self._claiming.on_change = self._membership.nudge
        self._membership.on_lapse = self._claiming.doubt
        engine.connection.on_ready = self._claiming.rebind
        engine.connection.on_lost = self._disconnected
        self._lease = lease
        self._unknown: dict[str, str] = {}
        """Filters that were told of, by topic."""

    def start(self) -> None:
        """Join the group."""
        self._membership.start()

    def subscribed(self) -> None:
        """The topics or their tags have changed."""
        self._membership.subscribe(
            [Subscription(topic.name, topic.expression) for topic in self._dispatch.topics.values()]
        )

    def check(self) -> None:
        """Hand over queues whose handler hangs."""
        self._claiming.look_for_stuck()

    async def leave(self, deadline_s: float) -> None:
        """Finish what is handed out until `deadline_s`, release with the last commits, leave."""
        engine, dispatch = self._engine, self._dispatch
        for lane in list(dispatch.lanes.values()):
            lane.wait_for_acks = False  # who iterated has come to close; nobody is left to ack
            self._claiming.let_go(lane)
        while not all(lane.lost for lane in dispatch.lanes.values()):
            if engine.now_s() >= deadline_s:
                break
            await engine.until(dispatch.empty, min(deadline_s, engine.now_s() + 0.05))
        for lane in list(dispatch.lanes.values()):
            self._claiming.force(lane)
        goodbye_s = engine.now_s() + GOODBYE_S
        if dispatch.lanes:
            await engine.until(dispatch.empty, goodbye_s)
        elif engine.connection.state is not READY:
            return  # a broker that is away has nothing of ours, and may know no member when back
        try:
            await self._membership.leave(goodbye_s)
        except CometError as error:
            log.debug("the broker did not hear the good-bye: %s", error)

    def _disconnected(self) -> None:
        """The broker keeps our queues for a moment only: stop before it is over, by any clock."""
        away_s = self._engine.now_s() + AWAY_SHARE * RECONNECT_MS / 1000
        self._lease.until_s = min(self._lease.until_s, away_s)

    def _advised(self, advice: GroupAdvice) -> None:
        topics = self._dispatch.topics
        for subscription in advice.subscriptions:
            topic = topics.get(subscription.topic)
            if topic is not None:
                self._use(topic, subscription.filter)
        self._claiming.advise(
            [(queue.topic, queue.queue) for queue in advice.queues if queue.topic in topics]
        )
        self._dispatch.wake()

    def _use(self, topic: Topic, expression: str) -> None:
        """Read what the group's newest member wants, if we know its language."""
        try:
            self._dispatch.use(topic, expression)
        except Refused as error:
            if expression != self._unknown.get(topic.name):
                log.warning(
                    "the group reads %s by a filter that this consumer does not know; it handles "
                    "all messages, for none may be passed over: %s",
                    topic.name,
                    sentence(str(error)),
                )
            self._unknown[topic.name] = expression
            self._dispatch.use(topic, tag_expression(None))
        else:
            self._unknown.pop(topic.name, None)
