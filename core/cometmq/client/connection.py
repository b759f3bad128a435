"""One client's connection to one broker, without a socket and without a clock.

What it is told: the time, that a channel was opened, what it received, what happened to it. What
it says: which frames to send, when to open a channel, when to call `tick`. Requests are kept
until they are answered, are sent again over the next channel, and end at their deadline.

A channel is one connection and gets one hello; whatever goes wrong with it, the answer is a new
channel after a while. Requests wait for the hello's answer, and for credit: at most so many
unanswered bytes as the broker's limits say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from heapq import heappop, heappush
from typing import Any, TypeVar

import msgspec

from cometmq.client.backoff import Backoff
from cometmq.client.calls import Call
from cometmq.client.outcomes import ConnectionLost, after_unknown, failure
from cometmq.client.signs_of_life import SignsOfLife
from cometmq.client.told import usable
from cometmq.environment import Buffer, Random
from cometmq.errors import CometError, OutcomeUnknown, ProtocolError, Retryable
from cometmq.heap import Heap
from cometmq.interfaces import ChannelEvent, Limits
from cometmq.protocol import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Empty,
    Failure,
    Goodbye,
    Heartbeat,
    Hello,
    HelloReply,
    Operation,
    Status,
    decode,
    pack,
    unpack,
)
from cometmq.version import __version__

S = TypeVar("S", bound=msgspec.Struct)
Send = Callable[[Sequence[Buffer]], bool]

GREETING_TIMEOUT_S = 5.0
HANDSHAKES_MAX = 3
"""So many failed ones in a row are no accident of a broker that just stops or starts."""
NEVER = float("inf")
_ADVICE = "start a broker there (`mq run`) or name another address"
_ADVICE_HOST = "mend the name, or ask who runs the name service"
_NOT_TRIED = "no connection was tried yet"


class State(Enum):
    """How far the connection is."""

    DOWN = "down"
    GREETING = "greeting"
    READY = "ready"
    CLOSED = "closed"


DOWN, GREETING, READY, CLOSED = State
"""For every step on the way of a message: members are looked up in an enum six times as long."""
_OK, _HELLO_REQUIRED = Status.OK, Status.HELLO_REQUIRED


class Connection:
    """See the module. All times are seconds on one monotonic clock."""

    def __init__(
        self,
        address: str,
        client_id: str,
        random: Random,
        credentials: dict[str, str],
        first_epoch: int = 0,
    ) -> None:
        self.address = address
        self.client_id = client_id
        self.state = DOWN
        self.server: HelloReply | None = None
        """What the broker said of itself; None until the first hello."""
        self.limits = Limits()
        self.reason = _NOT_TRIED
        """Why there is no connection, for messages to people."""
        self.epoch = first_epoch
        """Grows with each hello."""
        self.pending: dict[int, Call[Any]] = {}
        """All that is unanswered, in the order of the requests."""
        self.on_ready: Callable[[], None] = lambda: None
        """Called at each hello's answer: what is bound to a session has to be bound anew."""
        self.on_met: Callable[[], None] = lambda: None
        """Called before it, for whoever tells people whether there is a broker."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when a connection is over."""
        self._credentials = credentials
        self._queue: deque[Call[Any]] = deque()
        self._deadlines: Heap[tuple[float, int]] = Heap()
        self._backoff = Backoff(random)
        self._open_at_s = 0.0
        self._next_id = 1
        self._urgent: list[Buffer] | None = None
        self._hello_id = 0
        self._signs = SignsOfLife()
        self._used_bytes = 0
        self._handshakes_failed = 0
        self._advice = _ADVICE

    # --- requests -----------------------------------------------------------------------------

    def request(
        self,
        operation: int,
        header: msgspec.Struct,
        reply_type: type[S],
        deadline_s: float,
        body: Sequence[Buffer] = (),
    ) -> Call[S]:
        """Keep a request until it is answered; it fails at its deadline."""
        call = Call(self.new_id(), operation, header, body, reply_type, deadline_s)
        self.pending[call.id] = call
        self._queue.append(call)
        if deadline_s != NEVER:
            heappush(self._deadlines, (deadline_s, call.id))
            if len(self._deadlines) > self._deadlines.most:
                self._deadlines.weed(lambda each: each[1] in self.pending)
        return call

    def start(self, call: Call[Any], send: Send | None) -> None:
        """The same for one that was made with a `new_id` and has no deadline here; it goes at once
        if nothing is before it and `send` takes it."""
        self.pending[call.id] = call
        if (
            self.state is READY
            and not (self._queue or self._urgent or self._used_bytes)
            and send is not None
            and send(call.frames)
        ):
            call.sent = True
            self._signs.sent()
            self._used_bytes = call.size_bytes
        else:
            self._queue.append(call)

    @property
    def unsent(self) -> bool:
        """Whether a request waits to go."""
        return bool(self._queue)

    def new_id(self) -> int:
        """For the next request."""
        self._next_id += 1
        return self._next_id - 1

    def abandon(self, call: Call[Any]) -> None:
        """Nobody waits for this call any more: it is not sent again, its answer is dropped."""
        if self.pending.pop(call.id, None) is None:
            return
        if call.sent:
            self._used_bytes -= call.size_bytes
        else:
            self._queue.remove(call)

    def fail_all(self, error: CometError) -> None:
        """No channel can be had: all that is unanswered ends with `error`, or as unknown."""
        for call in self._take_all():
            what = f"the {call.name} request"
            call.fail(after_unknown(error, what) if call.changing and call.maybe_done else error)

    def goodbye(self) -> list[Buffer]:
        """The frames that end the session cleanly; empty when there is none."""
        if self.state is not READY:
            return []
        return pack(self.new_id(), Operation.GOODBYE, Goodbye())

    def close(self, error: CometError) -> None:
        """Fail all that is unanswered: sent changes are unknown, the rest gets `error`."""
        self.state = CLOSED
        for call in self._take_all():
            unknown = call.changing and (call.sent or call.maybe_done)
            call.fail(self._unknown(call, "the client was closed") if unknown else error)

    # --- the channel --------------------------------------------------------------------------

    def wants_channel(self, now_s: float) -> bool:
        """Whether a new channel should be opened now."""
        return self.state is DOWN and bool(self.pending) and now_s >= self._open_at_s

    def opened(self, now_s: float) -> None:
        """A new channel is there (connected or about to): say hello first."""
        self.state = GREETING
        self.epoch += 1
        self._hello_id = self.new_id()
        hello = Hello(
            PROTOCOL_MIN,
            PROTOCOL_MAX,
            self.client_id,
            self.epoch,
            f"cometmq-python/{__version__}",
            self._credentials,
        )
        self._urgent = pack(self._hello_id, Operation.HELLO, hello)
        self._signs.received(now_s)
        if self.reason == _NOT_TRIED:
            self.reason = f"{self.address} has not answered hello yet"

    def flush(self, send: Send) -> bool:
        """Hand over what may go, until `send` returns False. Returns whether anything went."""
        went = False
        if not (self._queue or self._urgent):
            return went
        if self._urgent is not None:
            if not send(self._urgent):
                return False
            self._urgent = None
            went = True
        while self._queue and self.state is READY:
            call = self._queue[0]
            used_bytes = self._used_bytes
            if used_bytes and used_bytes + call.size_bytes > self.limits.credit_bytes:
                break
            if not send(call.frames):
                break
            self._queue.popleft()
            went = True
            if call.one_way:
                del self.pending[call.id]
                call.resolve(Empty())
            else:
                call.sent = True
                self._used_bytes += call.size_bytes
        if went:
            self._signs.sent()
        return went

    def received(self, now_s: float, frames: Sequence[Buffer]) -> None:
        """Take one message from the broker."""
        if self.state is not READY and self.state is not GREETING:
            return  # the rest of a channel that was given up
        self._signs.received(now_s)
        try:
            request_id, status, header, body = unpack(frames)
            if request_id == self._hello_id:
                self._greeted(now_s, status, header)
            else:
                self._answered(now_s, request_id, status, header, body)
        except ProtocolError as error:
            self.lost(now_s, f"{self.address} does not speak this protocol: {error}")

    def happened(self, now_s: float, event: ChannelEvent, detail: str) -> None:
        """Take what the channel says of its connection."""
        if event == "connected":
            return
        self.lost(now_s, detail or f"{self.address}: {event}")
        self._advice = _ADVICE_HOST if event == "unknown_host" else _ADVICE
        if event != "handshake_failed":
            return
        self._handshakes_failed += 1
        if self._handshakes_failed >= HANDSHAKES_MAX:
            self._handshakes_failed = 0
            self.fail_all(Retryable(self.reason, code="HANDSHAKE_FAILED"))

    def lost(self, now_s: float, reason: str) -> None:
        """This channel is over: the next one is opened after a while, what was out goes again."""
        if self.state in (DOWN, CLOSED):
            return
        self.state = DOWN
        self.reason = reason
        self._urgent = None
        self._signs.end()
        self._open_at_s = now_s + self._backoff.next_s()
        self._used_bytes = 0
        broken = []
        for call in list(self.pending.values()):
            if not call.sent:
                continue
            call.sent, call.maybe_done = False, True
            if not call.repeat:
                broken.append(self.pending.pop(call.id))
        self._queue = deque(self.pending.values())
        self.on_lost()
        for call in broken:
            call.fail(ConnectionLost(reason))

    # --- time ---------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Do what is due: deadlines, heartbeats, giving up on a silent broker."""
        signs = self._signs
        signs.now_s = now_s
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, request_id = heappop(self._deadlines)
            if (call := self.pending.get(request_id)) is not None:
                self.abandon(call)
                call.fail(self._too_late(call))
        if self.state is GREETING and now_s >= signs.received_s + GREETING_TIMEOUT_S:
            self.lost(now_s, f"{self.address} did not answer hello in {GREETING_TIMEOUT_S:g} s")
        if self.state is READY and signs.wanted(now_s):
            self._beat(now_s)

    def next_s(self) -> float:
        """When `tick` or `wants_channel` has something to say, if nothing happens before."""
        while self._deadlines and self._deadlines[0][1] not in self.pending:
            heappop(self._deadlines)
        next_s = self._deadlines[0][0] if self._deadlines else NEVER
        if self.state is not READY:
            if self.state is DOWN and self.pending:
                return min(next_s, self._open_at_s)
            if self.state is GREETING:
                return min(next_s, self._signs.received_s + GREETING_TIMEOUT_S)
        return min(next_s, self._signs.due_s)

    # --- inside -------------------------------------------------------------------------------

    def _greeted(self, now_s: float, status: int, header: memoryview) -> None:
        if status != _OK:
            told = decode(Failure, header)
            error = failure(status, told.detail, told.retry_after_ms)
            self.lost(now_s, f"{self.address} refused the connection: {error}")
            if not isinstance(error, Retryable):
                self.fail_all(error)
            return
        server = decode(HelloReply, header)
        self.limits = usable(server.limits)
        self.server = server
        self.state = READY
        self.reason = ""
        self._handshakes_failed = 0
        self._signs.begin(now_s, server.heartbeat_ms / 1000)
        self.on_met()
        self.on_ready()

    def _answered(
        self, now_s: float, request_id: int, status: int, header: memoryview, body: list[memoryview]
    ) -> None:
        call = self.pending.get(request_id)
        if call is None:  # abandoned, or a heartbeat's
            if status == _HELLO_REQUIRED:
                self.lost(now_s, f"{self.address} ended the session")
            return
        if status == _HELLO_REQUIRED:
            # This one was not carried out; of the others nothing is known.
            call.sent = False
            self.lost(now_s, f"{self.address} ended the session")
            return
        result = decode(call.reply_type if status == _OK else Failure, header)
        del self.pending[request_id]
        self._used_bytes -= call.size_bytes
        self._backoff.reset()
        if status == _OK:
            call.body = body
            call.resolve(result)
            return
        error = failure(status, result.detail, result.retry_after_ms)
        unknown = call.changing and call.maybe_done
        call.fail(after_unknown(error, f"the {call.name} request") if unknown else error)

    def _beat(self, now_s: float) -> None:
        """Ask for a sign of life, or give up when none came for a session's time."""
        assert self.server is not None
        silent_s = now_s - self._signs.received_s
        if silent_s * 1000 >= self.server.session_timeout_ms:
            self.lost(now_s, f"{self.address} has been silent for {silent_s:.1f} s")
            return
        self._urgent = pack(self.new_id(), Operation.HEARTBEAT, Heartbeat())

    def _too_late(self, call: Call[Any]) -> CometError:
        if call.changing and (call.sent or call.maybe_done):
            return self._unknown(call, "its time ran out")
        if call.sent or call.maybe_done:
            why = f" ({self.reason})" if self.reason else ""
            text = f"{self.address} did not answer the {call.name} request in time{why}"
            return Retryable(text, code="TIMEOUT")
        late = f"the {call.name} request could not be sent in time"
        if not self.reason:
            return Retryable(
                f"{late}: too much is unanswered; send less at once, or wait longer", code="TIMEOUT"
            )
        return Retryable(f"{self.reason}, so {late}: {self._advice}", code="NOT_CONNECTED")

    def _unknown(self, call: Call[Any], why: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"no answer of {self.address} to the {call.name} request before {why}; "
            "it may have been carried out or not"
        )

    def _take_all(self) -> list[Call[Any]]:
        calls = list(self.pending.values())
        self.pending.clear()
        self._queue.clear()
        self._used_bytes = 0
        return calls
