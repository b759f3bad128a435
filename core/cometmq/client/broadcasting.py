"""Broadcasting: every member reads all queues by itself, without claims.

A member with a name (`client_id`) keeps its offsets at the broker, under the group's name and its
own; one without begins anew each time.
"""

from __future__ import annotations

from cometmq.client.commits import Commits
from cometmq.client.cursor import Cursor
from cometmq.client.dispatch import Dispatch
from cometmq.client.engine import Engine
from cometmq.client.flows import log, report_failure
from cometmq.client.group_options import GroupOptions, Lease
from cometmq.client.lane import Lane
from cometmq.client.listeners import Topic
from cometmq.client.placing import place
from cometmq.client.routing import gone
from cometmq.client.taking import Taker
from cometmq.errors import Closed, CometError
from cometmq.protocol import Operation, TopicDescribe, TopicDescription

LOOK_S = 30.0
"""How often topics are looked at for queues that they got."""
MISSING_S = 1.0


class Broadcasting:
    """See the module. Everything needs the driver's lock."""

    def __init__(
        self,
        engine: Engine,
        options: GroupOptions,
        dispatch: Dispatch,
        taker: Taker,
        lease: Lease,
        commits: Commits | None,
        member_group: str,
    ) -> None:
        lease.until_s = float("inf")
        self._engine = engine
        self._options = options
        self._dispatch = dispatch
        self._taker = taker
        self._commits = commits
        self._group = member_group
        self._seen: set[str] = set()
        """Topics that were looked at: what they get later is read from its beginning."""
        self._running: set[str] = set()
        self._started = False
        dispatch.on_fenced = self._gone

    def start(self) -> None:
        """Begin to read."""
        self._started = True
        self.subscribed()

    def subscribed(self) -> None:
        """The topics or their tags have changed."""
        if not self._started:
            return
        for name in self._dispatch.topics:
            if name not in self._running:
                self._running.add(name)
                report_failure(self._engine.spawn(self._follow(name)), f"reading {name}")

    def check(self) -> None:
        """Nothing of a queue that nobody else may read can be handed over."""

    async def leave(self, deadline_s: float) -> None:
        """Finish what is handed out, and commit."""
        for lane in self._dispatch.lanes.values():
            lane.wait_for_acks = False
            lane.drain()
            self._dispatch.silence(lane)
        while any(not lane.drained for lane in self._dispatch.lanes.values()):
            if self._engine.now_s() >= deadline_s:
                break
            await self._engine.sleep(0.02)
        if self._commits is not None:
            await self._commits.commit_quietly()

    # --- inside -------------------------------------------------------------------------------

    def _gone(self, lane: Lane) -> None:
        """The topic was deleted; what comes under its name is looked for from now on."""
        self._dispatch.remove(lane)

    async def _follow(self, name: str) -> None:
        told = False
        while not self._dispatch.stopping:
            try:
                await self._look(self._dispatch.topics[name])
            except Closed:
                return
            except CometError as error:
                if not told:
                    log.warning("%s can't be read yet: %s", name, error)
                told = True
                if gone(error):
                    self._seen.add(name)
                await self._engine.sleep(MISSING_S)
            else:
                told = False
                complete = any(lane.topic.name == name for lane in self._dispatch.lanes.values())
                await self._engine.sleep(LOOK_S if complete else MISSING_S)

    async def _look(self, topic: Topic) -> None:
        """Read the queues that are not read yet."""
        deadline_s = self._engine.now_s() + self._options.timeout_s
        asked = TopicDescribe(topic.name)
        reply = await self._engine.ask(
            Operation.TOPIC_DESCRIBE, asked, TopicDescription, deadline_s
        )
        start = "earliest" if topic.name in self._seen else self._options.start
        lanes = self._dispatch.lanes
        cursors = []
        for queue in range(reply.info.queues):
            lane = lanes.get((topic.name, queue))
            if lane is not None and lane.cursor.incarnation != reply.info.incarnation:
                self._dispatch.remove(lane)
                lane = None
            if lane is None:
                cursors.append(Cursor(topic.name, queue, reply.info.incarnation))
        if cursors:
            await place(self._engine, cursors, self._group, start, deadline_s)
            for cursor in cursors:
                lane = Lane(topic, cursor, self._taker, self._options.prefetch_messages)
                self._dispatch.add(lane)
        self._seen.add(topic.name)
