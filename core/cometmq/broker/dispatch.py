"""From a drain of a transport to the handlers of operations, and one write at its end."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from cometmq import protocol
from cometmq.broker.gate import Gate
from cometmq.broker.held import GiveBack, Held
from cometmq.broker.refusals import (
    RETRY_AFTER_MS,
    Rejected,
    internal_refusal,
    log_refusal,
    told_refusal,
)
from cometmq.broker.requests import REQUEST_BYTES, Body, Request
from cometmq.broker.sessions import Session, Sessions, Stranger
from cometmq.broker.tasks import Tasks
from cometmq.environment import Buffer, Clock
from cometmq.errors import (
    FAILURES,
    CometError,
    LogError,
    PluginError,
    PluginFailure,
    ProtocolError,
    Refused,
    Retryable,
)
from cometmq.interfaces import Limits, Peer, PluginOperation
from cometmq.log import Log, NotLoaded
from cometmq.protocol import Failure, Hello, HelloReply, Operation, Status

logger = logging.getLogger(__name__)

Handler = Callable[[Request, Any, Body], None]
Blame = Callable[[BaseException], PluginFailure]
GARBAGE_MAX = 16
"""A connection that has sent so many things that are no messages is closed: to answer each of
thousands would take the time of everybody else."""
FREE_BYTES = 128 << 10
"""Of one connection's unanswered requests; those have room whatever others hold."""
FIRST_CONTRIBUTED = 1000
"""Numbers below are the core's own."""
_HELLO = int(Operation.HELLO)
_WHILE_UNREADY = frozenset({Operation.GOODBYE, Operation.HEARTBEAT, Operation.BROKER_INFO})


class Route(NamedTuple):
    """What belongs to an operation: its name, the struct of its header, who handles it."""

    name: str
    kind: type[msgspec.Struct]
    decode: Callable[[memoryview], msgspec.Struct]
    handle: Handler


class Dispatcher:
    """The broker as transports see it (`interfaces.Receiver`).

    Each message is decided and applied before the next one of the drain; what all of them wrote
    goes to the log in one write at the end. Whatever is wrong with a message is answered to its
    sender, with a status and one sentence, and is nothing to anybody else.
    """

    def __init__(
        self,
        log: Log,
        sessions: Sessions,
        gate: Gate,
        clock: Clock,
        limits: Limits,
        held: Held,
        welcome: Callable[[Session], HelloReply],
        before_write: Callable[[], None],
    ) -> None:
        """`welcome` makes the reply to a hello; `before_write` appends what a drain collected."""
        self._log = log
        self._sessions = sessions
        self._total = sessions.total
        self._gate = gate
        self._clock = clock
        self._limits = limits
        self._free_bytes = min(FREE_BYTES, limits.credit_bytes)
        self._welcome = welcome
        self._before_write = before_write
        self._routes: dict[int, Route] = {}
        self._tasks = Tasks()
        self._held = held
        self.unready = ""
        """Why requests are refused: the broker has not begun, or is about to stop."""
        self.requests = 0
        self.refused = 0
        self.garbage = 0

    def add(self, operation: Operation, handle: Handler) -> None:
        """Let `handle(request, header, body)` do this operation."""
        kind = protocol.REQUESTS[operation]
        self._add(int(operation), operation.name, kind, handle)

    def add_contributed(self, operation: PluginOperation, blame: Blame) -> None:
        """Let a plugin do this operation; `blame` names it for what it does wrong. Raises
        PluginError for a number or a header that it can't have."""
        number = operation.number
        taken = self._routes.get(number)
        if number < FIRST_CONTRIBUTED or taken is not None:
            why = f"is {taken.name}'s" if taken else f"is below {FIRST_CONTRIBUTED}"
            raise PluginError(
                f"operation {operation.name} can't have the number {number}, which {why}; choose "
                "another one"
            )

        def handle(request: Request, header: Any, body: Body) -> None:
            self._gate.check(request.session, operation.name, "")
            try:
                result = operation.handle(request.session, header)
                if inspect.isawaitable(result):
                    self._tasks.spawn(self._answer_later(request, result, blame))
                else:
                    _answer(request, result)
            except (CometError, NotLoaded):
                raise  # what the sender is to hear, or what it takes to try again
            except FAILURES as error:
                raise blame(error) from error

        try:
            self._add(number, operation.name, operation.header, handle)
        except TypeError as error:
            raise PluginError(
                f"operation {operation.name} can't have the header {operation.header.__name__}, "
                f"which msgspec does not decode: {error}"
            ) from error

    def _add(self, number: int, name: str, kind: type[msgspec.Struct], handle: Handler) -> None:
        self._routes[number] = Route(name, kind, protocol.decoder_of(kind).decode, handle)

    def received(self, drain: Sequence[tuple[Peer, Sequence[Buffer]]]) -> None:
        self.requests += len(drain)
        now_s, take = self._sessions.now_s(), self._take
        try:
            for peer, frames in drain:
                take(peer, frames, now_s)
        finally:
            self._before_write()
            self._log.write()

    def lost(self, peer: Peer) -> None:
        self._sessions.lost(peer)

    async def stop(self) -> None:
        """Let nothing go on that waits for the disk."""
        await self._tasks.stop()

    def _take(self, peer: Peer, frames: Sequence[Buffer], now_s: float) -> None:
        session = self._sessions.of(peer)
        speaker = self._sessions.stranger(peer) if session is None else session
        try:
            request_id, operation, header, body = protocol.unpack(frames)
        except ProtocolError as error:
            self._not_a_message(peer, speaker, error)
            return
        if operation == _HELLO:
            self._hello(peer, request_id, header)
            return
        if session is None:
            detail = "say hello first: this connection has no session, or its session has ended"
            peer.send(protocol.pack(request_id, Status.HELLO_REQUIRED, Failure(detail)))
            return
        session.seen_s = now_s
        size_bytes = REQUEST_BYTES
        size_bytes += len(frames[0]) if len(frames) == 1 else sum(map(len, frames))
        session.unanswered_bytes += size_bytes
        self._total.unanswered_bytes += size_bytes
        request = Request(session, peer, request_id, operation, size_bytes)
        try:
            self._begin(request, header, body)
        except Exception as error:
            self._refuse(request, error)

    def _not_a_message(self, peer: Peer, speaker: Session | Stranger, error: ProtocolError) -> None:
        """No request id can be trusted here: at most one answer, to the event id."""
        self.garbage += 1
        speaker.garbage += 1
        if speaker.garbage > GARBAGE_MAX:
            return  # said before it was closed
        logger.debug("%s sent what is no message: %s", peer.name, error)
        detail = f"this is not CometMQ's protocol: {error}"
        last = speaker.garbage == GARBAGE_MAX
        if last:
            detail += f"; it is the {GARBAGE_MAX}th such message, so this connection is closed"
        peer.send(protocol.pack(protocol.EVENT_ID, Status.BAD_REQUEST, Failure(detail)))
        if last:
            peer.close()

    def _hello(self, peer: Peer, request_id: int, header: memoryview) -> None:
        try:
            if self.unready:
                raise Rejected(Status.STOPPING, self.unready, RETRY_AFTER_MS)
            self._check_total()
            session = self._sessions.hello(peer, protocol.decode(Hello, header))
        except ProtocolError as error:
            rejected = Rejected(Status.BAD_REQUEST, str(error))
        except Rejected as error:
            rejected = error
        except Exception as error:
            rejected = internal_refusal(error, f"the hello of {peer.name}")
        else:
            peer.send(protocol.pack(request_id, Status.OK, self._welcome(session)))
            return
        self.refused += 1
        if self._sessions.of(peer) is None:
            self._sessions.stranger(peer)
        failure = Failure(rejected.detail, rejected.retry_after_ms)
        peer.send(protocol.pack(request_id, rejected.status, failure))

    def _begin(self, request: Request, header: memoryview, body: Body) -> None:
        route = self._routes.get(request.operation)
        if route is None:
            raise Rejected(
                Status.UNKNOWN_OPERATION,
                f"operation {request.operation} is not known here: upgrade this broker, or "
                "enable the plugin that brings it",
            )
        try:
            message = route.decode(header)
        except protocol.UNDECODABLE as error:
            raise protocol.no_header(route.kind, error) from None
        # Send and Commit have the field; a sender who wants no answer gets none, ever.
        request.silent = getattr(message, "one_way", False)
        if self.unready and request.operation not in _WHILE_UNREADY:
            raise Rejected(Status.STOPPING, self.unready, RETRY_AFTER_MS)
        session = request.session
        if session.unanswered_bytes > self._free_bytes:
            self._check_credit(request)
        delay_ms = self._gate.delay_ms(session, route.name, request.size_bytes)
        if delay_ms:
            at_s = self._clock.monotonic_s() + delay_ms / 1000
            step = partial(route.handle, request, message, body)
            give_back = self._held.take(request)
            self._clock.call_at(at_s, lambda: self._later(step, request, give_back))
            return
        try:
            route.handle(request, message, body)
        except NotLoaded:
            self._begin_again(partial(route.handle, request, message, body), request)

    def _begin_again(self, step: Callable[[], None], request: Request) -> None:
        """Look-ups come before anything is changed, so a handler can do so, once it has what it
        needs."""
        self._tasks.spawn(self._slowly(request, step, self._held.take(request)))

    async def _answer_later(
        self, request: Request, result: Awaitable[msgspec.Struct], blame: Blame
    ) -> None:
        try:
            _answer(request, await result)
        except CometError as error:
            self._refuse(request, error)
        except FAILURES as error:
            self._refuse(request, blame(error))
        self._write()

    async def _slowly(
        self, request: Request, step: Callable[[], None], give_back: GiveBack
    ) -> None:
        """Do it once the parts of the queue index that it needs were read from disk."""
        try:
            await self._log.when_loaded(step)
        except Exception as error:
            self._refuse(request, error)
        finally:
            give_back()
        self._write()

    def _check_credit(self, request: Request) -> None:
        """A request alone is always let through: its size has limits of its own."""
        held, credit = request.session.unanswered_bytes, self._limits.credit_bytes
        if held <= request.size_bytes:
            return
        if held > credit:
            raise Rejected(
                Status.RETRY,
                f"{held} bytes of this connection's requests are unanswered, {credit} are "
                "allowed: wait for answers before sending more",
                RETRY_AFTER_MS,
            )
        self._check_total()

    def _check_total(self) -> None:
        """Raises Rejected when all connections together hold so much that more is too much."""
        held, allowed = self._total.unanswered_bytes, self._limits.held_bytes
        if held > allowed:
            raise Rejected(
                Status.RETRY,
                f"{held} bytes of all connections' requests are unanswered, {allowed} are allowed "
                "(limits.held_bytes): try again later; if that goes on, the disk may hang",
                RETRY_AFTER_MS,
            )

    def _later(self, step: Callable[[], None], request: Request, give_back: GiveBack) -> None:
        """A delayed request is due."""
        give_back()
        if not request.session.open:
            request.drop()
            return
        try:
            try:
                step()
            except NotLoaded:
                self._begin_again(step, request)
        except Exception as error:
            self._refuse(request, error)
        self._write()

    def _write(self) -> None:
        """The same as at the end of a drain."""
        self._before_write()
        self._log.write()

    def _refuse(self, request: Request, error: Exception) -> None:
        """Whatever goes wrong with a request is its sender's answer, and nobody else's."""
        self.refused += 1
        if isinstance(error, Rejected):
            rejected = error
        elif isinstance(error, ProtocolError):
            rejected = Rejected(Status.BAD_REQUEST, str(error))
        elif isinstance(error, LogError):
            rejected = log_refusal(error)
        elif isinstance(error, Refused | Retryable):
            rejected = told_refusal(error)
        else:
            route = self._routes.get(request.operation)
            name = f" ({route.name})" if route is not None else ""
            what = f"operation {request.operation}{name} of {request.peer.name}"
            rejected = internal_refusal(error, what)
        request.fail(rejected.status, rejected.detail, rejected.retry_after_ms)


def _answer(request: Request, reply: object) -> None:
    """With what a plugin gave. Raises TypeError for what can't be sent."""
    if not isinstance(reply, msgspec.Struct):
        raise TypeError(f"it gave {reply!r:.80} to answer with, which is no msgspec.Struct")
    request.answer(reply)
