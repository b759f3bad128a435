"""Closed batches on their way to the broker: one in flight for each queue, packed into requests.

Each (topic, queue) is a *lane*: its batches go one after the other, so a repeat can't overtake.
A request takes the heads of several lanes; a few requests are out at a time, and what closes
meanwhile travels together in the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from cometmq.client.backoff import BASE_S, CAP_S
from cometmq.client.batching import Batch, Stored
from cometmq.client.calls import Call
from cometmq.client.connection import NEVER
from cometmq.client.engine import Engine, Timer
from cometmq.client.outcomes import ConnectionLost, after_unknown, failure
from cometmq.errors import CometError, OutcomeUnknown, ProtocolError, Refused, Retryable
from cometmq.protocol import Operation, Send, SendReply, SendResultPart, Status

WINDOW = 4
"""Send requests in flight: more only makes them smaller."""
REQUEST_BYTES = 512 << 10
REQUEST_BATCHES = 256


class Lane:
    """The batches of one queue of one topic, in their order."""

    __slots__ = ("call", "current", "paused", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Batch] = deque()
        self.current: Batch | None = None
        self.call: Call[SendReply] | None = None
        """What `current` is in."""
        self.paused = False


class Sender:
    """See the module. `on_done` hears of every batch that ended, `on_idle` when nothing is out
    or waits to go."""

    def __init__(
        self, engine: Engine, on_done: Callable[[Batch], None], on_idle: Callable[[], None]
    ) -> None:
        self.requests = 0
        """Send requests in flight."""
        self.unfinished: dict[Batch, None] = {}
        """Closed and not done, in the order of closing."""
        self._engine = engine
        self._on_done = on_done
        self._on_idle = on_idle
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._ready: deque[Lane] = deque()
        self._in_call: dict[Call[SendReply], list[Batch]] = {}
        self._sweep: Timer | None = None
        self._closed = False

    # --- in -----------------------------------------------------------------------------------

    def submit(self, batch: Batch) -> None:
        """Take a closed and encoded batch."""
        key = (batch.topic.route.topic, batch.queue)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane()
        lane.waiting.append(batch)
        self.unfinished[batch] = None
        if self._sweep is None:
            self._sweep = self._engine.at(batch.deadline_s, self._expire)
        if len(lane.waiting) == 1 and lane.current is None and not lane.paused:
            self._ready.append(lane)

    def pump(self) -> None:
        """Make requests of what may go."""
        while self.requests < WINDOW and not self._closed:
            if not self._ready:
                if self.requests:
                    return
                self._on_idle()  # partial batches go when the line is free
                if not self._ready:
                    return
            self._request()

    def close(self, error: CometError) -> None:
        """Give up all that is not done: unknown what was sent, the rest ends with `error`."""
        self._closed = True
        for batch in list(self.unfinished):
            lane = self._lane(batch)
            out = lane.current is batch and lane.call is not None and lane.call.sent
            if out or batch.maybe_stored:
                self._end(batch, self._unknown(batch, "the producer was closed"))
            else:
                self._end(batch, error)
        self._ready.clear()

    # --- out ----------------------------------------------------------------------------------

    def _request(self) -> None:
        batches: list[Batch] = []
        buffers: list[bytearray] = []
        size_bytes = 0
        lanes = []
        while self._ready and len(batches) < REQUEST_BATCHES:
            lane = self._ready[0]
            batch = lane.waiting[0]
            assert batch.buffer is not None
            size_bytes += len(batch.buffer)
            if batches and (size_bytes > REQUEST_BYTES or batch.level != batches[0].level):
                break
            self._ready.popleft()
            lane.current = lane.waiting.popleft()
            lanes.append(lane)
            batches.append(batch)
            buffers.append(batch.buffer)
        header = Send(
            [len(buffer) for buffer in buffers],
            [batch.topic.route.incarnation for batch in batches],
            batches[0].level,
        )
        call = self._engine.call(Operation.SEND, header, SendReply, NEVER, buffers)
        call.repeat = False  # it is put together anew, without what expired
        self.requests += 1
        self._in_call[call] = batches
        for lane in lanes:
            lane.call = call
        call.add_waiter(partial(self._answered, call))

    def _answered(self, call: Call[SendReply]) -> None:
        batches = self._in_call.pop(call, None)
        if batches is None:
            return
        self.requests -= 1
        error = call.error
        if error is None:
            reply = call.result()
            if len(reply.results) == len(batches):
                for batch, part in zip(batches, reply.results, strict=True):
                    if not batch.done:
                        self._settle(batch, part, reply.level)
                self.pump()
                return
            error = ProtocolError(
                f"{len(reply.results)} results for {len(batches)} batches; the broker may be of "
                "another version"
            )
        for batch in batches:
            if not batch.done:
                self._failed(batch, error)
        self.pump()

    def _settle(self, batch: Batch, part: SendResultPart, level: str) -> None:
        if part.status != Status.OK:
            self._failed(batch, failure(part.status, part.detail, part.retry_after_ms))
            return
        server = self._engine.connection.server
        stored = Stored(
            batch.topic.route.topic,
            part.queue,
            level,
            part.base_offset,
            part.store_time,
            part.epoch,
            part.incarnation or batch.topic.route.incarnation,
            server.log_id if server is not None else "",
        )
        self._release(batch)
        batch.resolve(stored)
        self._on_done(batch)

    def _failed(self, batch: Batch, error: BaseException) -> None:
        """One try failed: again later, or the end of it."""
        if isinstance(error, ConnectionLost | ProtocolError):
            batch.maybe_stored = True
            batch.last_error = error
            # The connection itself waits before its next try.
            lost = isinstance(error, ConnectionLost)
            self._again(batch, 0.0 if lost else self._pause_s(batch))
        elif isinstance(error, Retryable):
            batch.last_error = error
            pause_s = max(error.after_ms / 1000, self._pause_s(batch))
            if self._engine.now_s() + pause_s >= batch.deadline_s:
                self._end(batch, error)
            else:
                self._again(batch, pause_s)
        elif isinstance(error, CometError):
            self._end(batch, error)
        else:
            self._end(batch, Refused(f"the batch could not be sent: {error}"))

    def _pause_s(self, batch: Batch) -> float:
        batch.tries += 1
        whole = min(CAP_S, BASE_S * (1 << min(batch.tries - 1, 10)))
        return whole * self._engine.environment.random.uniform(0.5, 1.0)

    def _again(self, batch: Batch, pause_s: float) -> None:
        """Back to the head of its lane, now or after a pause."""
        lane = self._lane(batch)
        lane.current = lane.call = None
        lane.waiting.appendleft(batch)
        if pause_s:
            lane.paused = True
            self._engine.at(self._engine.now_s() + pause_s, partial(self._resume, lane))
        else:
            self._ready.append(lane)

    def _resume(self, lane: Lane) -> None:
        lane.paused = False
        if lane.waiting and lane.current is None and lane not in self._ready:
            self._ready.append(lane)
        self.pump()

    # --- the end of a batch -------------------------------------------------------------------

    def _lane(self, batch: Batch) -> Lane:
        return self._lanes[batch.topic.route.topic, batch.queue]

    def _release(self, batch: Batch) -> None:
        """The lane's next batch may go."""
        lane = self._lane(batch)
        if lane.current is batch:
            lane.current = lane.call = None
        else:
            lane.waiting.remove(batch)
            if lane in self._ready:
                self._ready.remove(lane)
        if lane.waiting:
            if not lane.paused and lane.current is None:
                self._ready.append(lane)
        elif lane.current is None and not lane.paused:
            del self._lanes[batch.topic.route.topic, batch.queue]
        del self.unfinished[batch]

    def _end(self, batch: Batch, error: CometError) -> None:
        """Without success. What an earlier try may have stored can't be refused any more."""
        if batch.maybe_stored and not isinstance(error, OutcomeUnknown):
            error = after_unknown(error, f"a batch for {batch.topic.route.topic}")
        self._release(batch)
        batch.fail(error)
        self._on_done(batch)

    def _expire(self) -> None:
        """End the batches whose time is over, and come back for the next."""
        now_s = self._engine.now_s()
        self._sweep = None
        for batch in list(self.unfinished):
            if batch.deadline_s > now_s:
                self._sweep = self._engine.at(batch.deadline_s, self._expire)
                break
            self._too_late(batch)
        self.pump()

    def _too_late(self, batch: Batch) -> None:
        lane = self._lane(batch)
        call = lane.call if lane.current is batch else None
        if batch.maybe_stored or (call is not None and call.sent):
            self._end(batch, self._unknown(batch, "its time ran out"))
        else:
            reason = batch.last_error or self._engine.connection.reason or "others went first"
            self._end(
                batch,
                Retryable(
                    f"messages for {batch.topic.route.topic} could not be sent to "
                    f"{self._engine.address} in time: {reason}",
                    code=getattr(batch.last_error, "code", "TIMEOUT"),
                ),
            )
        if call is not None:
            self._part_with(call)

    def _part_with(self, call: Call[SendReply]) -> None:
        """One of its batches has ended: a request that is not out yet is put together anew
        without it, or what was reported as not stored would be stored after all."""
        left = [batch for batch in self._in_call.get(call, ()) if not batch.done]
        if left and call.sent:
            return
        if self._in_call.pop(call, None) is not None:
            self._engine.connection.abandon(call)
            self.requests -= 1
        for batch in left:
            self._again(batch, 0.0)

    def _unknown(self, batch: Batch, why: str) -> OutcomeUnknown:
        reason = batch.last_error or self._engine.connection.reason
        return OutcomeUnknown(
            f"no answer from {self._engine.address} for messages to {batch.topic.route.topic} "
            f"before {why}; they may be stored or not" + (f" ({reason})" if reason else "")
        )
