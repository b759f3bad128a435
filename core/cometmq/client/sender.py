"""Closed batches on their way to the broker, packed into requests.

Each (topic, queue) is a *lane*: its batches go one after the other, so a repeat can't overtake, or
a few at a time where the broker knows them by their numbers. A request takes the heads of several
lanes; a few requests are out at a time, and what closes meanwhile travels together in the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from cometmq.batch import ProducerTuple
from cometmq.client.backoff import pause_s
from cometmq.client.batching import Batch, Stored
from cometmq.client.calls import Call
from cometmq.client.connection import NEVER
from cometmq.client.engine import Engine, Timer
from cometmq.client.lone import Lone
from cometmq.client.numbering import Numbering
from cometmq.client.outcomes import ConnectionLost, after_unknown, failure
from cometmq.client.routing import Route
from cometmq.client.send_lane import SendLane
from cometmq.errors import CometError, OutcomeUnknown, ProtocolError, Refused, Retryable
from cometmq.protocol import Operation, Send, SendReply, SendResultPart, Status
from cometmq.protocol.sends import SEQUENCES

WINDOW = 4
"""Send requests in flight: more only makes them smaller."""
REQUEST_BYTES = 512 << 10
REQUEST_BATCHES = 256

_OK, _SEND = Status.OK, Operation.SEND
_OUT_OF_ROW = ("OUT_OF_SEQUENCE", "UNKNOWN_PRODUCER")


class Sender:
    """See the module. `on_done` hears of every batch that ended."""

    def __init__(self, engine: Engine, on_done: Callable[[Batch], None]) -> None:
        self.before_request: Callable[[bool, bool], None] = lambda line_free, others_wait: None
        """It may submit what is to go with the next request. It is told whether none is out and
        nothing waits to go, and whether anything does."""
        self.requests = 0
        """Send requests in flight."""
        self._unfinished: dict[Batch, None] = {}
        self._engine = engine
        self._on_done = on_done
        self._numbering = Numbering(engine.environment.random)
        self._lanes: dict[tuple[str, int], SendLane] = {}
        self._ready: deque[SendLane] = deque()
        self._lone: Lone | None = None
        """All there is, as long as it has no company: then it is not among the unfinished."""
        self._in_call: dict[Call[SendReply], list[Batch]] = {}
        self._sweep: Timer | None = None
        self._closed = False
        self._submitted = 0

    # --- in -----------------------------------------------------------------------------------

    def number(self, route: Route, queue: int) -> ProducerTuple | None:
        """What a batch that closes now has to be encoded with, if the broker looks at it."""
        if not self._keeps_sequences():
            return None
        return self._numbering.next(route.topic, route.incarnation, queue)

    def submit(self, batch: Batch) -> None:
        """Take a closed and encoded batch."""
        self.join_lone()
        if batch.number is not None:
            self._numbering.took(batch.topic.route.topic, batch.queue, batch.count)
        self._count_in(batch)
        key = batch.topic.route.topic, batch.queue
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = SendLane(*key)
        lane.waiting.append(batch)
        self._offer(lane)

    def submit_lone(self, lone: Lone) -> None:
        """Take one while `is_idle`; its request is made already."""
        if lone.number is not None:
            self._numbering.took(lone.topic.route.topic, lone.queue, 1)
        self._lone = lone
        self.requests += 1
        if self._sweep is None:
            self._sweep = self._engine.at(lone.deadline_s, self._expire)

    def lone_stored(self) -> None:
        """It ended as it came."""
        self._lone = None
        self.requests -= 1

    def lone_told(self, lone: Lone, reply: SendReply | None, error: BaseException | None) -> None:
        """How its request ended."""
        self.join_lone()
        self._told(lone, reply, error)

    def join_lone(self) -> None:
        """If there is one, it goes on as all others do."""
        lone, self._lone = self._lone, None
        if lone is None:
            return
        batch = lone.become_batch()
        self._count_in(batch)
        key = batch.topic.route.topic, batch.queue
        lane = self._lanes[key] = SendLane(*key)
        lane.out[batch] = lone
        self._in_call[lone] = [batch]

    def gather(self) -> list[Batch]:
        """All that is closed and not done, in the order of closing; one that was alone goes on as
        all others do."""
        self.join_lone()
        return list(self._unfinished)

    @property
    def messages(self) -> int:
        """How many are on their way."""
        return sum(batch.count for batch in self._unfinished) + (self._lone is not None)

    def is_idle(self) -> bool:
        """Whether nothing is here, on its way or waiting."""
        return not (self._unfinished or self._lanes or self.requests or self._closed)

    def pump(self) -> None:
        """Make requests of what may go."""
        while self.requests < WINDOW and not self._closed:
            others_wait = bool(self._ready)
            self.before_request(not (others_wait or self.requests), others_wait)
            if not self._ready:
                return
            self._request()

    def _count_in(self, batch: Batch) -> None:
        self._submitted += 1
        batch.order = self._submitted
        self._unfinished[batch] = None
        if self._sweep is None:
            self._sweep = self._engine.at(batch.deadline_s, self._expire)

    def close(self, error: CometError) -> None:
        """Give up all that is not done: unknown what was sent, the rest ends with `error`."""
        self._closed = True
        for batch in self.gather():
            call = self._lane(batch).out.get(batch)
            if batch.maybe_stored or (call is not None and call.sent):
                self._end(batch, self._unknown(batch, "the producer was closed"))
            else:
                self._end(batch, error)
        for call in self._in_call:
            if not call.sent:  # as was told, it will not be
                self._engine.connection.abandon(call)
        self._ready.clear()

    # --- out ----------------------------------------------------------------------------------

    def _request(self) -> None:
        batches: list[Batch] = []
        buffers: list[bytearray] = []
        lanes: list[SendLane] = []
        size_bytes = 0
        while self._ready and len(batches) < REQUEST_BATCHES:
            lane = self._ready[0]
            batch = lane.waiting[0]
            assert batch.buffer is not None
            size_bytes += len(batch.buffer)
            if batches and (size_bytes > REQUEST_BYTES or batch.level != batches[0].level):
                break
            self._ready.popleft()
            lane.listed = False
            lane.goes()
            self._offer(lane)
            lanes.append(lane)
            batches.append(batch)
            buffers.append(batch.buffer)
        call = self._call(batches, buffers)
        for lane, batch in zip(lanes, batches, strict=True):
            lane.out[batch] = call

    def _call(self, batches: list[Batch], buffers: list[bytearray]) -> Call[SendReply]:
        header = Send(
            list(map(len, buffers)),
            [batch.topic.route.incarnation for batch in batches],
            batches[0].level,
        )
        call = self._engine.call(_SEND, header, SendReply, NEVER, buffers)
        call.repeat = False  # it is put together anew, without what expired
        self.requests += 1
        self._in_call[call] = batches
        call.add_waiter(partial(self._answered, call))
        return call

    def _answered(self, call: Call[SendReply]) -> None:
        error = call.error
        self._told(call, call.result() if error is None else None, error)

    def _told(
        self, call: Call[SendReply], reply: SendReply | None, error: BaseException | None
    ) -> None:
        """How a request ended."""
        batches = self._in_call.pop(call, None)
        if batches is None:
            return
        self.requests -= 1
        if reply is not None:
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
        assert error is not None
        for batch in batches:
            if not batch.done:
                self._failed(batch, error)
        self.pump()

    def _settle(self, batch: Batch, part: SendResultPart, level: str) -> None:
        if part.status != _OK:
            self._failed(batch, failure(part.status, part.detail, part.retry_after_ms))
            return
        lane = self._lane(batch)
        lane.stored(batch)
        self._released(batch, lane)
        batch.resolve(self.stored(batch.topic.route, part, level))
        self._on_done(batch)

    def stored(self, route: Route, part: SendResultPart, level: str) -> Stored:
        """What a yes says."""
        server = self._engine.connection.server
        return Stored(
            route.topic,
            part.queue,
            level,
            part.base_offset,
            part.store_time,
            part.epoch,
            part.incarnation or route.incarnation,
            server.log_id if server is not None else "",
        )

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
        elif isinstance(error, Refused) and error.code in _OUT_OF_ROW and batch.number is not None:
            self._out_of_row(batch, error)
        elif isinstance(error, CometError):
            self._end(batch, error)
        else:
            self._end(batch, Refused(f"the batch could not be sent: {error}"))

    def _pause_s(self, batch: Batch) -> float:
        batch.tries += 1
        return pause_s(batch.tries - 1, self._engine.environment.random)

    def _out_of_row(self, batch: Batch, error: Refused) -> None:
        """The broker misses what comes before this batch, so it is not stored. If that is still on
        its way, the row is whole again once it has arrived; else a new one begins."""
        lane = self._lane(batch)
        batch.last_error = error
        if lane.is_first(batch):
            if error.code == "UNKNOWN_PRODUCER" and batch.maybe_stored:
                # Who is forgotten altogether may have stored it long ago.
                self._end(batch, error)
                return
            batch.maybe_stored = False
            lane.broken = True
        self._again(batch, 0.0)

    def _again(self, batch: Batch, pause_s: float) -> None:
        """Back to its place in its lane, to go now or after a pause."""
        lane = self._lane(batch)
        lane.comes_back(batch)
        if pause_s:
            lane.pauses += 1
            self._engine.at(self._engine.now_s() + pause_s, partial(self._resume, lane))
        self._offer(lane)

    def _resume(self, lane: SendLane) -> None:
        lane.pauses -= 1
        self._offer(lane)
        self._forget_if_empty(lane)
        self.pump()

    # --- lanes --------------------------------------------------------------------------------

    def _lane(self, batch: Batch) -> SendLane:
        return self._lanes[batch.topic.route.topic, batch.queue]

    def _offer(self, lane: SendLane) -> None:
        """Put the lane among those that may send, if it may."""
        if lane.broken:
            lane.mend(self._numbering)
        if not lane.listed and lane.may_send() and (not lane.out or self._keeps_sequences()):
            lane.listed = True
            self._ready.append(lane)

    def _released(self, batch: Batch, lane: SendLane) -> None:
        """A batch left its lane for good: the next one may go."""
        if lane.listed and not lane.waiting:
            lane.listed = False
            self._ready.remove(lane)
        if lane.waiting or lane.broken:
            self._offer(lane)
        self._forget_if_empty(lane)
        del self._unfinished[batch]

    def _forget_if_empty(self, lane: SendLane) -> None:
        if not (lane.waiting or lane.out or lane.pauses) and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    def _keeps_sequences(self) -> bool:
        server = self._engine.connection.server
        return server is not None and SEQUENCES in server.features

    # --- the end of a batch -------------------------------------------------------------------

    def _end(self, batch: Batch, error: CometError) -> None:
        """Without success. What an earlier try may have stored can't be refused any more."""
        if batch.maybe_stored and not isinstance(error, OutcomeUnknown):
            error = after_unknown(error, f"a batch for {batch.topic.route.topic}")
        lane = self._lane(batch)
        lane.lost(batch)
        self._released(batch, lane)
        batch.fail(error)
        self._on_done(batch)

    def _expire(self) -> None:
        """End the batches whose time is over, and come back for the next."""
        now_s = self._engine.now_s()
        self._sweep = None
        for batch in self.gather():
            if batch.deadline_s > now_s:
                self._sweep = self._engine.at(batch.deadline_s, self._expire)
                break
            self._too_late(batch)
        self.pump()

    def _too_late(self, batch: Batch) -> None:
        call = self._lane(batch).out.get(batch)
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
