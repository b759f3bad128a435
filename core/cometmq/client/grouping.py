"""What both faces of the group consumer share: one consumer of one group, without its threads."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.client.arguments import check_timeout
from cometmq.client.broadcasting import Broadcasting
from cometmq.client.clustering import Clustering
from cometmq.client.commits import Commits
from cometmq.client.dispatch import Dispatch, Key
from cometmq.client.engine import Engine
from cometmq.client.flows import Task, Waitable
from cometmq.client.group_options import GroupOptions, Lease
from cometmq.client.handout import Handout
from cometmq.client.listeners import Handler, Listener, Topic
from cometmq.client.runs import Run
from cometmq.client.taking import Taker, UnreadablePolicy
from cometmq.client.validation import check_name
from cometmq.errors import CometError, Refused
from cometmq.message import ReceivedMessage

ITERATED_RUN = 256
"""So many messages an iteration takes at once."""


class Grouping:
    """See the module. Everything needs the driver's lock."""

    def __init__(
        self,
        engine: Engine,
        options: GroupOptions,
        unreadable: UnreadablePolicy,
        on_error: Callable[[CometError], object] | None,
        on_ack: Callable[[Run], None],
        named: bool,
    ) -> None:
        options.check()
        self.engine = engine
        self.over: Waitable[None] = Waitable()
        """Ends when the consumer is stopped, or with what makes it impossible."""
        self.started = False
        self.listeners: list[Listener] = []
        self.lease = Lease()
        self.dispatch = Dispatch(engine, options, self.lease)
        self.dispatch.on_error = on_error
        self.dispatch.on_signal = self._signal
        self.on_signal: Callable[[Listener], None] = lambda listener: None
        """Called when there may be something for a listener with a handler."""
        self.handout = Handout(engine, self.dispatch, self.lease, on_ack)
        self._options = options
        self._committing: Task[None] | None = None
        self._leaving: Waitable[None] | None = None
        """Ends when nobody is at leaving any more."""
        self._left = False
        taker = Taker(engine, unreadable, options.timeout_s)
        self.commits: Commits | None = None
        self._members: Clustering | Broadcasting
        if options.mode == "clustering":
            self.commits = Commits(engine, options.group, self.dispatch, options.timeout_s)
            self._members = Clustering(engine, options, self.dispatch, taker, self.lease, self.end)
        else:
            own = f"{options.group}.{engine.connection.client_id}" if named else ""
            if own:
                check_name("group and member", own)
                self.commits = Commits(engine, own, self.dispatch, options.timeout_s)
            self._members = Broadcasting(
                engine, options, self.dispatch, taker, self.lease, self.commits, own
            )

    def subscribe(
        self, topic: str, tags: str, handler: Handler | None, workers: int, orderly: bool
    ) -> Listener:
        """See `Consumer.subscribe`."""
        check_name("topic", topic)
        listener = Listener(topic, tags, handler, workers, orderly)
        self.dispatch.subscribe(listener)
        self.listeners.append(listener)
        if handler is None:
            listener.run_size = ITERATED_RUN
            self.handout.listeners.append(listener)
        self._members.subscribed()
        return listener

    def start(self) -> None:
        """Join the group. Raises Refused when nothing is subscribed."""
        if self.started:
            return
        if not self.listeners:
            raise Refused("nothing is subscribed: call subscribe(topic, ...) first")
        self.started = True
        self._members.start()
        self._commit_later()
        self._check_later()

    def end(self, error: BaseException | None = None) -> None:
        """Have `run` and the iteration end, with an error if there is one."""
        if error is None:
            self.over.resolve(None)
        else:
            self.over.fail(error)
        self.handout.news.resolve(None)

    def next(
        self, listener: Listener, run: Run | None = None, failure: Exception | None = None
    ) -> Run | None:
        """Report a run, if any, and take the next one; None when there is none now."""
        if run is not None:
            self.dispatch.report(run, failure)
        return self.dispatch.take(listener)

    def acked(self, run: Run) -> None:
        """A message of a queue that is about to be released was finished."""
        self.dispatch.on_progress(run.lane)

    def pause(self, name: str | None, paused: bool) -> None:
        """See `Consumer.pause`. Raises Refused for a topic that is not subscribed."""
        self.dispatch.pause(self._topics(name), paused)

    def queues(self) -> list[Key]:
        """The queues that are ours now."""
        return sorted(key for key, lane in self.dispatch.lanes.items() if not lane.lost)

    async def commit(self) -> None:
        """See `Consumer.commit`."""
        if self.commits is None:
            raise Refused(
                "a broadcasting consumer without client_id=... has no name to keep offsets under"
            )
        await self.commits.commit()

    async def finish(self, timeout_s: float) -> None:
        """Finish what is handed out, for at most so long; release, leave. Or wait as long for
        whoever does that already."""
        check_timeout(timeout_s)
        self.end()
        until_s = self.engine.now_s() + timeout_s
        if self._leaving is not None:
            await self.engine.until(self._leaving, until_s)
        elif self.started and not self._left:
            if self.dispatch.stopping:  # who was interrupted at it has no more patience
                until_s = self.engine.now_s()
            self.dispatch.stopping = True
            self._leaving = leaving = Waitable[None]()
            try:
                await self._members.leave(until_s)
                self._left = True
            finally:
                self._leaving = None
                leaving.resolve(None)

    # --- inside -------------------------------------------------------------------------------

    def _signal(self, listener: Listener) -> None:
        if listener.handler is None:
            self.handout.news.resolve(None)
        else:
            self.on_signal(listener)

    def _topics(self, name: str | None) -> list[Topic]:
        topics = self.dispatch.topics
        if name is None:
            return list(topics.values())
        if name not in topics:
            raise Refused(f"{name} is not subscribed by this consumer")
        return [topics[name]]

    def _commit_later(self) -> None:
        at_s = self.engine.now_s() + self._options.commit_interval_s
        self.engine.at(at_s, self._commit_now)

    def _commit_now(self) -> None:
        if self.dispatch.stopping:
            return
        if self.commits is not None and (self._committing is None or self._committing.done):
            self._committing = self.engine.spawn(self.commits.commit_quietly())
        self._commit_later()

    def _check_later(self) -> None:
        pause_s = min(1.0, self._options.max_poll_s / 4)
        self.engine.at(self.engine.now_s() + pause_s, self._check)

    def _check(self) -> None:
        self._members.check()
        self._check_later()


def handle(
    run: Run, handler: Callable[[ReceivedMessage], object], now_s: Callable[[], float], lease: Lease
) -> Exception | None:
    """Hand the messages of a run to a handler, until its time is over or its queue is not ours.

    Returns what the handler raised, if it did; `run.done` says how far it came.
    """
    lane = run.lane
    messages = run.messages
    until_s = run.until_s
    try:
        for place in range(run.done, len(messages)):
            began_s = now_s()
            if began_s >= lease.until_s or lane.lost or lane.halted:
                break
            if (place and began_s >= until_s) or (lane.draining and lane.is_last(run)):
                break
            run.since_s = began_s
            handler(messages[place])
            run.done = place + 1
    except Exception as error:
        return error
    return None
