"""Handing out messages: the queues that a consumer has now, to the listeners that want them.

Whoever has time pulls a run (`take`), handles it, and reports it when it asks for the next one.
Everything here needs the driver's lock, once for a run and never for a message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cometmq.client.backoff import pause_s
from cometmq.client.cursor import Place
from cometmq.client.engine import Engine
from cometmq.client.fetcher import Fetcher, FetchOptions
from cometmq.client.flows import Waitable, log
from cometmq.client.group_options import GroupOptions, Lease
from cometmq.client.lane import Lane
from cometmq.client.listeners import RUN_MAX, Listener, Topic
from cometmq.client.routing import gone
from cometmq.client.runs import Run
from cometmq.errors import CometError, Expired, Fenced, Refused, Truncated

RUN_S = 0.02
"""What a handler has not begun after so long is left to others."""

Key = tuple[str, int]


class Dispatch:
    """See the module."""

    def __init__(self, engine: Engine, options: GroupOptions, lease: Lease) -> None:
        self.topics: dict[str, Topic] = {}
        self.lanes: dict[Key, Lane] = {}
        self.stopping = False
        self.empty: Waitable[None] = Waitable()
        """Ends when the last lane is gone, while stopping."""
        self.on_signal: Callable[[Listener], None] = lambda listener: None
        """For a face whose handlers wait in their own way."""
        self.on_fenced: Callable[[Lane], None] = lambda lane: None
        self.on_progress: Callable[[Lane], None] = lambda lane: None
        """Something was reported of a lane that is about to go."""
        self.on_error: Callable[[CometError], object] | None = None
        self._engine = engine
        self._options = options
        self._lease = lease
        self._passed = (Truncated,) if options.on_expired == "stop" else (Truncated, Expired)

    # --- what there is ------------------------------------------------------------------------

    def subscribe(self, listener: Listener) -> Topic:
        """Add a listener. Raises Refused when it does not fit the others of its topic."""
        topic = self.topics.get(listener.topic) or self._new_topic(listener.topic)
        topic.add(listener)
        self.topics[topic.name] = topic
        self.use(topic, topic.expression)
        return topic

    def use(self, topic: Topic, expression: str) -> None:
        """Read these tags of a topic from now on."""
        if topic.use(expression):
            for lane in self._lanes_of(topic):
                lane.refetch()
            topic.fetcher.hurry()

    def add(self, lane: Lane) -> None:
        """Begin to hand out messages of a queue."""
        self.lanes[lane.key] = lane
        lane.cursor.idle = lane.topic.paused
        lane.topic.fetcher.cursors.append(lane.cursor)
        self._engine.soon(lane.topic.fetcher.hurry)  # the queues of a step are one fetch

    def remove(self, lane: Lane) -> None:
        """A queue is no longer ours; who still has messages of it finishes for himself."""
        lane.lost = True
        self.silence(lane)
        if self.lanes.get(lane.key) is lane:
            del self.lanes[lane.key]
            lane.topic.fetcher.cursors.remove(lane.cursor)
        if self.stopping and not self.lanes:
            self.empty.resolve(None)

    def silence(self, lane: Lane) -> None:
        """Read no more of a queue; an answer that is on its way is not looked at."""
        lane.cursor.idle = True
        lane.cursor.call = None

    def pause(self, topics: list[Topic], paused: bool) -> None:
        """Hand out nothing more of these topics, or go on. Their queues stay ours."""
        for topic in topics:
            topic.paused = paused
            for lane in self._lanes_of(topic):
                lane.cursor.idle = paused or lane.draining or lane.lost
            topic.fetcher.hurry()
            self._signal(topic)

    def wake(self) -> None:
        """Something may have changed for everybody."""
        for topic in self.topics.values():
            topic.fetcher.pump()
            self._signal(topic)

    # --- handing out --------------------------------------------------------------------------

    def take(self, listener: Listener) -> Run | None:
        """The next run for a listener; None when there is none now."""
        now_s = self._engine.now_s()
        if now_s >= self._lease.until_s:
            return None
        lanes = self._lanes_of(self.topics[listener.topic])
        for step in range(len(lanes)):
            lane = lanes[(listener.turn + step) % len(lanes)]
            run = lane.take(listener, now_s)
            self._look_at(lane)
            if run is not None:
                run.until_s = now_s + RUN_S
                listener.turn += step + 1
                lane.topic.fetcher.pump()
                return run
        self.topics[listener.topic].fetcher.pump()
        return None

    def report(self, run: Run, failure: Exception | None = None) -> None:
        """A run is over, whole or in part; `failure` is what its next message raised."""
        lane, listener = run.lane, run.listener
        handled, wanted = run.done, len(run.messages)
        took_s = self._engine.now_s() + RUN_S - run.until_s
        retry_at_s = None
        if failure is not None:
            retry_at_s = self._later(run, failure)
        lane.put_back(run, retry_at_s)
        if took_s > RUN_S:
            listener.run_size = max(1, min(listener.run_size, handled))
        elif took_s < RUN_S / 4 and handled >= wanted:
            listener.run_size = min(RUN_MAX, max(listener.run_size, 2 * wanted))
        if lane.draining or lane.lost:
            self.on_progress(lane)
        if len(lane.topic.listeners) > 1 or lane.topic.orderly:
            self._signal(lane.topic)

    def ready(self, listener: Listener) -> bool:
        """Whether another worker of this listener may find something to do."""
        if self._engine.now_s() >= self._lease.until_s:
            return False
        topic = self.topics[listener.topic]
        return any(lane.ready for lane in self._lanes_of(topic))

    # --- inside -------------------------------------------------------------------------------

    def _new_topic(self, name: str) -> Topic:
        options = self._options
        settings = FetchOptions(
            options.group if options.mode == "clustering" else "",
            options.fetch_bytes,
            options.prefetch_bytes,
            int(options.fetch_wait_s * 1000),
            options.on_expired,
        )
        return Topic(name, Fetcher(self._engine, settings, partial(self._arrived, name)))

    def _lanes_of(self, topic: Topic) -> list[Lane]:
        return [lane for lane in self.lanes.values() if lane.topic is topic]

    def _arrived(self, name: str) -> None:
        """A fetch of a topic brought something."""
        topic = self.topics[name]
        error, topic.fetcher.error = topic.fetcher.error, None
        if isinstance(error, Refused) and topic.fetcher.filter:
            log.info("%s is filtered by this consumer alone: %s", name, error)
            topic.fetcher.use_filter("")
        elif error is not None and self._engine.closed is None:
            self.tell(error, f"reading {name}")
        found = False
        for lane in self._lanes_of(topic):
            lane.pass_marks()
            self._look_at(lane)
            found |= not lane.cursor.empty
        if found:
            self._signal(topic)

    def _signal(self, topic: Topic) -> None:
        for listener in topic.listeners:
            listener.signals += 1
            self.on_signal(listener)

    def _later(self, run: Run, failure: Exception) -> float:
        """When the message that failed is handled again."""
        tries = 0 if run.done else run.attempts
        retry_at_s = self._engine.now_s() + pause_s(tries, self._engine.environment.random)
        message = run.messages[run.done]
        log.warning(
            "the handler failed with offset %d of queue %d of %s, which is handled again: %r",
            message.offset,
            message.queue,
            message.topic,
            failure,
        )
        self._engine.at(retry_at_s, partial(self._signal, run.lane.topic))
        return retry_at_s

    def _look_at(self, lane: Lane) -> None:
        """Do what the error asks for that a queue stands at."""
        cursor = lane.cursor
        error = cursor.error
        if error is None or cursor.raised or lane.lost:
            return
        if isinstance(error, Fenced) or gone(error):
            cursor.raised = True
            self.on_fenced(lane)
        elif cursor.empty:
            cursor.raised = True
            self.tell(error, f"queue {cursor.queue} of {cursor.topic}")
            if isinstance(error, self._passed):
                lane.restart(Place(error.next_offset, cursor.fetch.epoch))
                lane.topic.fetcher.pump()

    def tell(self, error: CometError, what: str) -> None:
        """Report an error that no call can raise."""
        log.warning("%s: %s", what, error)
        if self.on_error is not None:
            self._engine.deferred.append(partial(self.on_error, error))
