"""The client without its way to wait: connection, channel, timers and flows, one step at a time.

A driver (`driver.py` for threads, `aio_driver.py` for a loop) calls `pump` whenever something may
have come or is due, and waits in between. Everything here happens in whichever thread holds the
driver's lock, and nothing here blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

import msgspec

from cometmq.client.backoff import Backoff
from cometmq.client.calls import Call
from cometmq.client.connection import DOWN, GREETING, NEVER, READY, Connection
from cometmq.client.flows import Flow, Task, Waitable
from cometmq.client.presence import Presence
from cometmq.client.transports import find_connect
from cometmq.environment import Buffer, Environment
from cometmq.errors import Closed, ConfigError, Retryable
from cometmq.heap import Heap
from cometmq.interfaces import Channel, Connect

S = TypeVar("S", bound=msgspec.Struct)
H = TypeVar("H", bound=msgspec.Struct)
T = TypeVar("T")

_EPOCH_SHIFT = 16
"""A client whose id was chosen begins at the time, with room for many reconnects: so of two that
call themselves the same, the newer one wins for good, and one made after a crash is the newer."""
RECEIVED_AT_ONCE = 256
"""Messages of one call to the channel: when fewer came, its descriptor tells of more."""
ROUNDS_MAX = 16
"""Rounds of one `pump`, so that a broker that never stops talking keeps nobody from deadlines."""
BLOCKED_RETRY_S = 0.002
"""A transport says when something came, not when it could take more: so ask again."""


def _come_again() -> None:
    """For a timer that is there for its time alone."""


class Timer:
    """A callback that waits for its time; `cancel` forgets it."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """No effect once the callback was called."""
        self.callback = None


class Engine:
    """Connection, channel, timers and flows of one client."""

    def __init__(
        self,
        address: str,
        environment: Environment,
        *,
        client_id: str | None = None,
        credentials: dict[str, str] | None = None,
        connect: Connect | None = None,
    ) -> None:
        self.environment = environment
        self.clock = environment.clock
        self.now_s = environment.clock.monotonic_s
        """Seconds on the monotonic clock."""
        self.address = address
        self._connect = connect or find_connect(address)
        self.connection = Connection(
            address,
            client_id or f"client-{environment.random.bytes(8).hex()}",
            environment.random,
            credentials or {},
            first_epoch=environment.clock.wall_ms() << _EPOCH_SHIFT if client_id else 0,
        )
        self.channel: Channel | None = None
        self.closed: Closed | None = None
        """Why nothing works any more, once it is closed."""
        self.deferred: deque[Callable[[], object]] = deque()
        """Callbacks of users, for the driver to run without its lock."""
        self._timers: Heap[tuple[float, int, Timer]] = Heap()
        self._timer_ids = count()
        self._once: dict[Callable[[], None], tuple[float, Timer]] = {}
        self._blocked = False
        self._presence = Presence(self.connection, self.at)
        self.connection.on_met = self._presence.met

    # --- for flows ----------------------------------------------------------------------------

    def spawn(self, flow: Flow[T]) -> Task[T]:
        """Run a flow until it has to wait; the rest follows from `pump`."""
        return Task(flow)

    def at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """Have `callback` called by the first `pump` at or after `when_s`."""
        timer = Timer(callback)
        heappush(self._timers, (when_s, next(self._timer_ids), timer))
        if len(self._timers) > self._timers.most:
            self._timers.weed(lambda each: each[2].callback is not None)
        return timer

    def soon(self, callback: Callable[[], None], after_s: float = 0.0) -> None:
        """Have `callback` called once for all who ask for it until then: at the end of this step,
        or `after_s` later if nobody wants it sooner."""
        at_s = self.now_s() + after_s
        asked = self._once.get(callback)
        if asked is not None:
            if asked[0] <= at_s:
                return
            asked[1].cancel()
        self._once[callback] = at_s, self.at(at_s, partial(self._call_once, callback))

    def sleep(self, seconds: float) -> Waitable[None]:
        """Something that ends after a while."""
        pause: Waitable[None] = Waitable()
        self.at(self.now_s() + seconds, lambda: pause.resolve(None))
        return pause

    async def until(self, waitable: Waitable[Any], deadline_s: float | None) -> bool:
        """Wait until it is done or the time is over; returns whether it is done."""
        either: Waitable[None] = Waitable()
        waitable.add_waiter(lambda: either.resolve(None))
        timer = None
        if deadline_s is not None:
            timer = self.at(deadline_s, lambda: either.resolve(None))
        try:
            await either
        finally:
            if timer is not None:
                timer.cancel()
        return waitable.done

    def call(
        self,
        operation: int,
        header: msgspec.Struct,
        reply_type: type[S],
        deadline_s: float,
        body: Sequence[Buffer] = (),
    ) -> Call[S]:
        """One request, tried until answered or `deadline_s`. Raises Closed."""
        self.check()
        return self.connection.request(operation, header, reply_type, deadline_s, body)

    def start(self, call: Call[Any]) -> None:
        """Make a request of one that was made with a `new_id` and has no deadline there, and send
        it at once if that is possible."""
        channel = self.channel
        self.connection.start(call, None if channel is None else channel.send)

    async def ask(
        self, operation: int, header: msgspec.Struct, reply_type: type[S], deadline_s: float
    ) -> S:
        """The reply to a request; a broker that says "later" is asked again until `deadline_s`.

        Raises Refused, Retryable and OutcomeUnknown.
        """
        _, reply = await self.ask_anew(operation, lambda: header, reply_type, deadline_s)
        return reply

    async def ask_anew(
        self, operation: int, make: Callable[[], H], reply_type: type[S], deadline_s: float
    ) -> tuple[H, S]:
        """As `ask`, with a header that is made for each try; the last one comes with the reply."""
        backoff = Backoff(self.environment.random)
        while True:
            header = make()
            try:
                return header, await self.call(operation, header, reply_type, deadline_s)
            except Retryable as error:
                pause_s = max(error.after_ms / 1000, backoff.next_s())
                if self.now_s() + pause_s >= deadline_s:
                    raise
            await self.sleep(pause_s)

    def check(self) -> None:
        """Raises Closed once the client is closed."""
        if self.closed is not None:
            raise Closed(str(self.closed))

    # --- for drivers --------------------------------------------------------------------------

    def pump(self, look: bool = True) -> None:
        """Do what can be done now: due timers, send, receive. Never blocks; of very much it does
        a part, and `next_s` says now. Without `look` it does not try to receive before it sends:
        for whoever waits in the channel right after."""
        if self.closed is not None:
            return
        for _ in range(ROUNDS_MAX):
            if not self._step(look):
                return
            look = True
        if self.closed is None:
            self.at(self.now_s(), _come_again)

    def send_now(self) -> None:
        """Of `pump` only the sending; whatever else is due waits for it."""
        if self.channel is not None:
            self._blocked = False
            self.connection.flush(self._send)

    def take(self, now_s: float) -> int:
        """Of `pump` only the receiving of answers; how many came."""
        return 0 if self.channel is None else self._take(self.channel, now_s)

    def next_s(self) -> float:
        """When `pump` has to be called though nothing came."""
        while self._timers and self._timers[0][2].callback is None:
            heappop(self._timers)
        next_s = min(self._timers[0][0] if self._timers else NEVER, self.connection.next_s())
        return min(next_s, self.now_s() + BLOCKED_RETRY_S) if self._blocked else next_s

    def close(self, error: Closed) -> None:
        """End the session and fail what is still waiting."""
        if self.closed is not None:
            return
        goodbye = self.connection.goodbye()
        if goodbye and self.channel is not None:
            self.channel.send(goodbye)
        self.closed = error
        self.connection.close(error)
        self._timers.clear()
        self._once.clear()
        self._drop_channel()

    # --- inside -------------------------------------------------------------------------------

    def _step(self, look: bool) -> bool:
        """One round; returns whether another one may be needed: there was more to receive, or
        what was done (a channel's `send`, above all) may have brought something."""
        now_s = self.now_s()
        connection = self.connection
        went = False
        if self.channel is not None and (look or connection.state is not READY):
            went = self._receive(self.channel, now_s)
        connection.tick(now_s)
        if connection.state is DOWN:
            self._drop_channel()
            if connection.wants_channel(now_s):
                self._open(now_s)
        if self.channel is not None:
            self._blocked = False
            went |= connection.flush(self._send)
        if self._run_timers(now_s):
            went = True
            if connection.unsent and not self._blocked:
                self.send_now()  # the next round would, but looks for answers first
        return went

    def _send(self, frames: Sequence[Buffer]) -> bool:
        assert self.channel is not None
        self._blocked = not self.channel.send(frames)
        return not self._blocked

    def _receive(self, channel: Channel, now_s: float) -> bool:
        """Returns whether there may be more."""
        went = False
        for event, detail in channel.events():
            went = True
            # What arrived before the connection broke still counts.
            self._take(channel, now_s)
            self.connection.happened(now_s, event, detail)
        return self._take(channel, now_s) >= RECEIVED_AT_ONCE or went

    def _take(self, channel: Channel, now_s: float) -> int:
        """How many messages came."""
        connection = self.connection
        if connection.state is not READY and connection.state is not GREETING:
            return 0
        messages = channel.receive(RECEIVED_AT_ONCE)
        for frames in messages:
            connection.received(now_s, frames)
        return len(messages)

    def _run_timers(self, now_s: float) -> bool:
        went = False
        while self._timers and self._timers[0][0] <= now_s:
            _, _, timer = heappop(self._timers)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                went = True
                callback()
        return went

    def _call_once(self, callback: Callable[[], None]) -> None:
        del self._once[callback]
        callback()

    def _open(self, now_s: float) -> None:
        self._presence.trying(now_s)
        try:
            self.channel = self._connect(self.address, self.connection.limits)
        except ConfigError as error:  # the address can't be used: waiting would not help
            self.connection.fail_all(error)
        else:
            self.connection.opened(now_s)

    def _drop_channel(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None
