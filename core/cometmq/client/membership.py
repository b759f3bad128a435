"""Being a member of a group: heartbeats that wait at the coordinator, advice that comes back."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from cometmq.client.backoff import Backoff, Pace
from cometmq.client.calls import Call
from cometmq.client.connection import State
from cometmq.client.engine import Engine
from cometmq.client.flows import Task, log
from cometmq.client.group_options import GroupOptions, Lease
from cometmq.client.told import sentence
from cometmq.errors import Closed, CometError, Retryable
from cometmq.protocol import (
    Empty,
    GroupAdvice,
    GroupHeartbeat,
    GroupLeave,
    HeldQueue,
    Operation,
    Subscription,
)

ANSWER_TIMEOUT_S = 2.0
"""How much longer than it may be parked a heartbeat may take."""
WARNINGS_MAX = 10
"""Of one advice are told."""
WARNED_MAX = 1000


class Renewed(Retryable):
    """This heartbeat is out of date, a newer one follows; never leaves this module."""


class Membership:
    """See the module."""

    def __init__(
        self,
        engine: Engine,
        options: GroupOptions,
        lease: Lease,
        held: Callable[[], list[HeldQueue]],
        on_advice: Callable[[GroupAdvice], None],
        on_failure: Callable[[CometError], None],
    ) -> None:
        self.member = engine.connection.client_id
        self.on_lapse: Callable[[], None] = lambda: None
        """Called when our session was over by our own clock, before it is taken up again."""
        self.subscriptions: list[Subscription] = []
        self.version = 0
        self._engine = engine
        self._options = options
        self._lease = lease
        self._held = held
        self._on_advice = on_advice
        self._on_failure = on_failure
        self._call: Call[GroupAdvice] | None = None
        self._task: Task[None] | None = None
        self._leaving = False
        self._known = 0
        self._warned: set[str] = set()

    def start(self) -> None:
        """Join, and stay a member."""
        if self._task is None:
            self._task = self._engine.spawn(self._live())

    def subscribe(self, subscriptions: list[Subscription]) -> None:
        """Tell the group what this member wants from now on."""
        self.subscriptions = subscriptions
        self.version = max(self._engine.clock.wall_ms(), self.version + 1)
        self.nudge()

    def nudge(self) -> None:
        """What a heartbeat says has changed: send a new one, once for all changes of a step."""
        if self._task is not None:
            self._engine.soon(self._renew)

    async def leave(self, deadline_s: float) -> None:
        """Say good-bye. Raises Refused, Retryable."""
        self._leaving = True
        if self._task is None:
            return
        self._renew()
        leave = GroupLeave(self._options.group, self.member)
        await self._engine.call(Operation.GROUP_LEAVE, leave, Empty, deadline_s)

    # --- inside -------------------------------------------------------------------------------

    async def _live(self) -> None:
        backoff = Backoff(self._engine.environment.random)
        pace = Pace()
        told = False
        while not self._leaving:
            try:
                advice = await self._beat()
            except Renewed:
                continue
            except Retryable as error:
                # Once for each time that it is away; who waits would hear nothing for ever.
                news = not told and self._engine.connection.state is not State.READY
                log.log(
                    logging.WARNING if news else logging.DEBUG,
                    "group %s waits for its broker at %s, and tries on: %s",
                    self._options.group,
                    self._engine.address,
                    error,
                )
                told |= news
                await self._engine.sleep(max(error.after_ms / 1000, backoff.next_s()))
            except Closed:
                return
            except CometError as error:
                if not self._leaving:
                    self._on_failure(error)
                return
            else:
                backoff.reset()
                told = False
                self._take(advice)
                # Not every broker parks it, and one may change its mind all the time.
                pause_s = pace.pause_s(self._engine.now_s())
                if pause_s:
                    await self._engine.sleep(pause_s)

    async def _beat(self) -> GroupAdvice:
        options = self._options
        engine = self._engine
        sent_s = engine.now_s()
        # A session that may be over soon is renewed at once, not after a wait.
        healthy = self._lease.until_s - sent_s > options.session_timeout_s / 2
        wait_s = options.heartbeat_s if healthy else 0.0
        header = GroupHeartbeat(
            options.group,
            self.member,
            self.subscriptions,
            self.version,
            self._known,
            self._held(),
            int(wait_s * 1000),
            int(options.session_timeout_s * 1000),
            options.strategy,
            options.room,
            socket.gethostname(),
            options.strict,
        )
        deadline_s = sent_s + wait_s + ANSWER_TIMEOUT_S
        call = engine.call(Operation.GROUP_HEARTBEAT, header, GroupAdvice, deadline_s)
        call.repeat = False
        self._call = call
        advice = await call
        if engine.now_s() >= self._lease.until_s:
            self.on_lapse()
        self._lease.until_s = max(self._lease.until_s, sent_s + options.session_timeout_s)
        return advice

    def _renew(self) -> None:
        call = self._call
        if call is not None and not call.done:
            self._engine.connection.abandon(call)
            call.fail(Renewed("a newer heartbeat follows"))

    def _take(self, advice: GroupAdvice) -> None:
        if self._leaving:
            return
        self._known = advice.generation
        if len(self._warned) >= WARNED_MAX:
            self._warned.clear()
        for warning in map(sentence, advice.warnings[:WARNINGS_MAX]):
            if warning not in self._warned:
                self._warned.add(warning)
                log.warning("group %s: %s", self._options.group, warning)
        self._on_advice(advice)
