"""The consumer of a group, sync face: handlers in threads of their own, or iteration."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

from cometmq.client.arguments import check_timeout
from cometmq.client.assignment import TopicQueue
from cometmq.client.driver import Driver
from cometmq.client.faces import Face, make_engine
from cometmq.client.fetcher import ExpiredPolicy
from cometmq.client.flows import Waitable
from cometmq.client.group_options import GroupOptions, Mode
from cometmq.client.grouping import Grouping, handle
from cometmq.client.handout import HeldMessage
from cometmq.client.listeners import Handler, Listener
from cometmq.client.runs import Run
from cometmq.client.taking import UnreadablePolicy
from cometmq.environment import Environment
from cometmq.errors import Closed, CometError, Refused
from cometmq.interfaces import Connect

SLICE_S = 0.5
"""No wait is longer in one piece; what nobody signals is noticed by then."""
EXIT_TIMEOUT_S = 10.0


class Consumer(Face):
    """A member of a group: the group's members share the queues of the topics they subscribe.

    Delivery is *at least once*: what was not finished when a member died comes again, to another
    one. Give each subscription a handler and call `run`, or give none and iterate:

        consumer.subscribe("orders", tags="paid || refunded", handler=handle, workers=8)
        consumer.run()

        consumer.subscribe("orders")
        for message in consumer:
            ...
            message.ack()

    A handler that returns has finished its message; one that raises gets it again, after a pause
    that grows to 5 s, and its queue waits. `mode="broadcasting"`: every member gets everything,
    and keeps its offsets under `client_id` if it has one. `start` (earliest, latest, a datetime)
    is where a group begins that never subscribed the topic; the broker remembers it.

    A member that is silent for `session_timeout` seconds loses its queues, and stops handing out
    messages by itself. A handler (or an iteration that owes an ack) that is at one message for
    more than `max_poll` seconds loses that queue. Offsets are stored every `commit_interval`
    seconds, and when a queue is given up. At most `prefetch_messages` a queue are handed out
    behind the first unfinished one, at most `prefetch_bytes` a topic are read ahead. `strategy`
    and `room` are for the group's rebalancing; `strict` refuses to join members with other
    subscriptions. `on_error` is called with what stops a queue (Damaged, Unreadable) or was
    passed over (Truncated, Expired).
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        group: str,
        mode: Mode = "clustering",
        start: str | datetime = "earliest",
        session_timeout: float = 10.0,
        heartbeat: float = 3.0,
        max_poll: float = 300.0,
        commit_interval: float = 1.0,
        prefetch_messages: int = 10_000,
        prefetch_bytes: int = 8 << 20,
        fetch_bytes: int = 1 << 20,
        fetch_wait: float = 20.0,
        strategy: str = "",
        room: str = "",
        strict: bool = False,
        unreadable: UnreadablePolicy = "skip",
        on_expired: ExpiredPolicy = "earliest",
        on_error: Callable[[CometError], object] | None = None,
        timeout: float = 30.0,
        client_id: str | None = None,
        credentials: dict[str, str] | None = None,
        environment: Environment | None = None,
        connect: Connect | None = None,
    ) -> None:
        engine = make_engine(address, client_id, credentials, environment, connect)
        options = GroupOptions(
            group,
            mode,
            start,
            on_expired,
            session_timeout,
            heartbeat,
            max_poll,
            commit_interval,
            prefetch_messages,
            prefetch_bytes,
            fetch_bytes,
            fetch_wait,
            strategy,
            room,
            strict,
            timeout,
        )
        self._grouping = Grouping(
            engine, options, unreadable, on_error, self._acked, client_id is not None
        )
        self._driver = Driver(engine, partial(self.close, EXIT_TIMEOUT_S))
        self._idle: dict[int, threading.Condition] = {}
        self._workers: list[Any] = []
        self._ended = False
        self._grouping.on_signal = self._signal

    def subscribe(
        self,
        topic: str,
        tags: str = "*",
        handler: Handler | None = None,
        workers: int = 8,
        orderly: bool = False,
    ) -> None:
        """Get the messages of a topic that carry one of `tags` (`a || b`; `*`: all).

        `handler(message)` is called by `workers` threads; with `orderly` one message of a queue at
        a time, in order. Without a handler the messages come by iteration. A topic may be
        subscribed several times, with tags of their own: a message goes to the first one that
        wants it. Raises Refused.
        """
        if inspect.iscoroutinefunction(handler):
            raise Refused(
                f"handler {handler!r} is a coroutine function, which nobody would await "
                "here: use cometmq.aio.Consumer",
                "BAD_REQUEST",
            )
        listener = self._driver.do(
            lambda: self._grouping.subscribe(topic, tags, handler, workers, orderly)
        )
        if self._grouping.started:
            self._employ(listener)

    def start(self) -> None:
        """Join the group and begin to call handlers, in the background. Raises Refused when
        nothing is subscribed, Closed."""
        if self._grouping.started:
            return
        self._driver.do(self._grouping.start)
        for listener in list(self._grouping.listeners):
            self._employ(listener)

    def run(self) -> None:
        """Call handlers until `stop`.

        Raises KeyboardInterrupt at ctrl-C (closing leaves the group as ever), and what makes the
        group impossible: Refused (also with `strict`), NotAvailable; Closed.
        """
        self.start()
        over = self._grouping.over
        while not over.done:
            self._driver.wait(over, SLICE_S)
        over.result()

    def stop(self) -> None:
        """Have `run`, or the iteration, end. May be called from anywhere, also from a handler or
        a signal handler."""
        start = self._grouping.engine.environment.threads.start
        start("mq-stop", self._stop)

    def receive(self, timeout: float | None = None) -> HeldMessage | None:
        """The next message for an iteration; None after `timeout` seconds, or once stopped.

        Raises as `run` does.
        """
        handout, over = self._grouping.handout, self._grouping.over
        if not over.done and (message := handout.next()) is not None:
            return message
        check_timeout(timeout)
        self.start()
        engine = self._grouping.engine
        deadline_s = float("inf") if timeout is None else engine.now_s() + timeout
        while not over.done:
            news = self._driver.do(self._turn)
            message = handout.next()
            if message is not None:
                return message
            left_s = deadline_s - engine.now_s()
            if left_s <= 0:
                return None
            self._driver.wait(news, min(SLICE_S, left_s))
        over.result()
        return None

    def __iter__(self) -> Iterator[HeldMessage]:
        """Messages of the subscriptions without a handler, until `stop`; `ack` each."""
        while (message := self.receive()) is not None:
            yield message

    def pause(self, topic: str | None = None) -> None:
        """Hand out nothing more, of one topic or of all, until `resume`; the queues stay ours."""
        self._driver.do(lambda: self._grouping.pause(topic, True))

    def resume(self, topic: str | None = None) -> None:
        """Go on after `pause`."""
        self._driver.do(lambda: self._grouping.pause(topic, False))

    def commit(self) -> None:
        """Store now how far each queue is finished. Raises Refused, Retryable, OutcomeUnknown."""
        self._driver.run(self._grouping.commit())

    @property
    def queues(self) -> list[TopicQueue]:
        """The queues that are this member's now, as (topic, number)."""
        return self._driver.do(self._grouping.queues)

    @property
    def member(self) -> str:
        """The name of this member in its group."""
        return self._grouping.engine.connection.client_id

    def close(self, timeout: float = 30.0) -> None:
        """Finish what is handed out, for at most `timeout` seconds, store how far each queue is,
        and leave the group. Not for handlers, which it would wait for: they call `stop`."""
        if self._driver.is_over():
            return
        try:
            self._driver.run(self._grouping.finish(timeout))
        except Closed:
            pass  # by another thread, which did the same
        self._ended = True
        for condition in self._idle.values():
            with condition:
                condition.notify_all()
        self._driver.close()

    # --- inside -------------------------------------------------------------------------------

    def _turn(self) -> Waitable[None]:
        """With the lock: take the next run for the iteration; returns what to wait for if there
        is none."""
        handout = self._grouping.handout
        handout.news = Waitable()
        handout.turn()
        return handout.news

    def _stop(self) -> None:
        if not self._driver.is_over():
            self._driver.do(lambda: self._grouping.end())

    def _acked(self, run: Run) -> None:
        self._driver.do(lambda: self._grouping.acked(run))

    def _employ(self, listener: Listener) -> None:
        """Start the threads of a listener."""
        if listener.handler is None:
            return
        self._idle[id(listener)] = threading.Condition(self._driver.lock)
        threads = self._grouping.engine.environment.threads
        for number in range(listener.workers):
            name = f"mq-{listener.topic}-{number}"
            self._workers.append(threads.start(name, partial(self._serve, listener)))

    def _signal(self, listener: Listener) -> None:
        """With the lock: one idle worker looks; it calls the next one if there is more."""
        condition = self._idle.get(id(listener))
        if condition is not None:
            condition.notify()

    def _serve(self, listener: Listener) -> None:
        """A worker's life."""
        try:
            self._work(listener)
        except Closed:
            pass  # while it worked
        except BaseException as error:  # an exit from within a handler ends the consumer
            failure = error
            if not self._driver.is_over():
                self._driver.do(lambda: self._grouping.end(failure))

    def _work(self, listener: Listener) -> None:
        grouping, condition = self._grouping, self._idle[id(listener)]
        handler, now_s = listener.handler, grouping.engine.now_s
        assert handler is not None
        run: Run | None = None
        failure: Exception | None = None
        while not self._ended:
            seen = listener.signals
            run = self._driver.do(partial(self._next, listener, run, failure), stays=False)
            if run is not None:
                failure = handle(run, handler, now_s, grouping.lease)
                continue
            with condition:
                if listener.signals == seen and not self._ended:
                    condition.wait(SLICE_S)

    def _next(self, listener: Listener, run: Run | None, failure: Exception | None) -> Run | None:
        """With the lock: report a run, take the next one, and call a colleague if there is more."""
        run = self._grouping.next(listener, run, failure)
        if run is not None and self._grouping.dispatch.ready(listener):
            self._idle[id(listener)].notify()
        return run
