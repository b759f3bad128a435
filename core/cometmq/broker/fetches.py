"""Fetches: batches of several queues, sent as they lie; parked while there are none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from cometmq.batch import seed
from cometmq.broker.catalog import Catalog
from cometmq.broker.fetch_reply import SCAN_BYTES, Reply
from cometmq.broker.fetch_turns import TURN_BYTES, FetchTurns
from cometmq.broker.filtering import Chosen, Filters, filtered
from cometmq.broker.gate import Gate
from cometmq.broker.held import GiveBack, Held
from cometmq.broker.names import shown
from cometmq.broker.places import go_on_from
from cometmq.broker.refusals import (
    Rejected,
    check_group,
    check_parts,
    internal_refusal,
    wrong_answer,
)
from cometmq.broker.requests import Body, Request
from cometmq.broker.tasks import Tasks
from cometmq.broker.tenures import Tenures
from cometmq.broker.tokens import check_token
from cometmq.environment import Clock, Timer
from cometmq.interfaces import Limits, ParkedFetch
from cometmq.log import Log, NotLoaded, QueueKey, ReadResult
from cometmq.protocol import Fetch, FetchPart, FetchReply, Status

PASSED_WAIT_S = 1.0
"""How long a client may not know that its filter left everything out. To say it at once would cost
an answer and a question for each such message."""
FetchWait = Callable[[ParkedFetch], bool | None]


class Fetches:
    """Handler of the operation FETCH."""

    def __init__(
        self,
        log: Log,
        catalog: Catalog,
        gate: Gate,
        limits: Limits,
        clock: Clock,
        held: Held,
        tenures: Tenures,
        filters: Filters,
        fetch_wait: tuple[FetchWait, ...],
        drop: Callable[[ParkedFetch], None],
    ) -> None:
        """`drop` forgets a parked fetch whose session has ended."""
        self.log = log
        self._catalog = catalog
        self._gate = gate
        # A reply's batches have to fit into one frame.
        self.bytes_max = limits.batch_bytes
        self._held = held
        self._tenures = tenures
        self._filters = filters
        self._fetch_wait = fetch_wait
        self._drop = drop
        self._seed = seed(log.log_id)
        self.clock = clock
        self._tasks = Tasks()
        self.turns = FetchTurns(clock, self.bytes_max, log.write)

    def fetch(self, request: Request, header: Fetch, body: Body) -> None:
        check_parts(len(header.parts))
        if header.group:
            check_group(header.group)
            self._gate.check(request.session, "FETCH", f"group:{header.group}")
        if self._gate.asks:
            for topic in {part.topic for part in header.parts}:
                self._gate.check(request.session, "FETCH", topic)
        chosen = self._filters.chosen(header.filter)
        fetch = WaitingFetch(self, request, header, chosen)
        if not fetch.retry():
            self.wait(fetch)

    def key_of(self, group: str, part: FetchPart) -> QueueKey:
        """The queue that a part of a group's fetch means. Raises Rejected."""
        topic = self._catalog.find_queue(part.topic, part.queue, part.incarnation)
        if not topic.readable:
            raise Rejected(
                Status.NOT_READABLE,
                f"topic {shown(part.topic)} can't be read: allow it with `mq topic alter`",
            )
        if part.token is not None:
            where = f"group {shown(group)} on queue {part.queue} of topic {shown(part.topic)}"
            check_token(self._tenures, (group, topic.incarnation, part.queue), part.token, where)
        return topic.incarnation, part.queue

    def filtered(self, chosen: Chosen, batches: Sequence[memoryview]) -> list[memoryview]:
        """What a filter wants of these batches."""
        return filtered(chosen, batches, self._seed, self.bytes_max)

    def read_slowly(self, fetch: WaitingFetch, reply: Reply, turn: int) -> None:
        """Go on with the part whose turn it is, waiting for the disk. Where too much waits already,
        only what is at hand is answered; if that is nothing, it has to be tried again."""
        try:
            give_back = self._held.take(fetch.request, reply.most_bytes)
        except Rejected as error:
            fetch.answer_at_hand(reply, turn, error)
            return
        self._tasks.spawn(self._read_slowly(fetch, reply, turn, give_back))

    async def stop(self) -> None:
        """Let no read outlive the log."""
        await self.turns.stop()
        await self._tasks.stop()

    def wait(self, fetch: WaitingFetch) -> None:
        """Nothing is there: a plugin may keep the fetch, else it is answered empty."""
        fetch.waited = True
        for offer in self._fetch_wait:
            kept = offer(fetch)
            if kept is True:
                fetch.request.when_gone(fetch, lambda: self.forget(fetch))
                fetch.tell_soon()
                self.log.demand(self.log.appended)
                return
            if kept is not None and kept is not False:
                raise wrong_answer(offer, kept, "True (it is kept), False or None")
        fetch.answer_empty()

    def forget(self, fetch: WaitingFetch) -> None:
        """It waits no longer, whoever kept it."""
        fetch.hush()
        self._drop(fetch)

    async def _read_slowly(
        self, fetch: WaitingFetch, reply: Reply, turn: int, give_back: GiveBack
    ) -> None:
        pending: int | None = turn
        try:
            while pending is not None:
                at = fetch.part_of(pending)
                await self._read_part(fetch, reply, at)
                pending = fetch.collect(reply, pending + 1)
            fetch.answer(reply)
        except asyncio.CancelledError:
            fetch.request.drop()
            raise
        except Exception as error:
            fetch.failed(error)
        finally:
            give_back()

    async def _judged(self, incarnation: int, part: FetchPart) -> int | None:
        """See `go_on_from`; waits for the disk."""
        return await self.log.when_loaded(
            lambda: go_on_from(self.log, incarnation, part.queue, part.offset, part.epoch)
        )

    async def _read_part(self, fetch: WaitingFetch, reply: Reply, at: int) -> None:
        part = fetch.header.parts[at]
        try:
            looking = True
            while looking:
                incarnation, queue = self.key_of(fetch.header.group, part)
                judged = await self._judged(incarnation, part)
                if judged is not None:
                    reply.truncated(at, part, incarnation, judged, self.log.epoch)
                    return
                if reply.room <= 0:
                    return
                # A cut while the disk is read makes this epoch an old one, so it will be judged.
                epoch = self.log.epoch
                result = await self.log.read(
                    incarnation,
                    queue,
                    part.offset,
                    reply.room,
                    at_least_one=fetch.takes_any_size(reply),
                )
                looking = fetch.take(reply, at, incarnation, result, epoch)
        except Rejected as error:
            reply.refuse(at, error)


class WaitingFetch:
    """One fetch on its way; what the hook `fetch_wait` sees as `ParkedFetch`."""

    __slots__ = (
        "_chosen",
        "_empty",
        "_fetches",
        "_passed",
        "_told",
        "_teller",
        "header",
        "queues",
        "request",
        "wait_ms",
        "waited",
    )

    def __init__(
        self, fetches: Fetches, request: Request, header: Fetch, chosen: Chosen | None
    ) -> None:
        self._fetches = fetches
        self.request = request
        self.header = header
        self.wait_ms = header.wait_ms
        self.queues: Sequence[QueueKey] = ()
        """Those in which there was nothing when it looked last."""
        self._empty: list[QueueKey] = []
        self._chosen = chosen
        self.waited = False
        """It found nothing and was offered to plugins."""
        self._passed: dict[int, int] = {}
        """Incarnation by part, of those whose place has moved on past what nobody wants."""
        self._teller: Timer | None = None
        self._told = False
        """It was answered with how far it came, which a plugin that keeps it can't know."""

    def retry(self) -> bool:
        """Look again: True if it was answered, or will be: when the disk has answered, or in
        another turn."""
        if self._told:
            return True
        if not self.request.session.open:
            self.request.drop()
            return True
        turns = self._fetches.turns
        if turns.spent_bytes >= TURN_BYTES:
            self.hush()
            turns.put_off(self)
            return True
        self.queues = self._empty = []
        # One batch is always delivered, even to who has room for none.
        room = min(max(self.header.max_bytes, 1), self._fetches.bytes_max)
        reply = Reply(room)
        try:
            pending = self.collect(reply, 0)
        except Exception as error:
            self.failed(error)
            return True
        if pending is not None:
            turns.spent_bytes += room
            self.hush()
            self._fetches.read_slowly(self, reply, pending)
            return True
        turns.spent_bytes += room - reply.room + SCAN_BYTES - reply.scan_room
        if reply.results:
            self.answer(reply)
            return True
        if self.waited:
            self.tell_soon()
        return False

    def go_on(self) -> None:
        """Do what was put off, in a turn that has room for it."""
        try:
            if self.retry():
                return
            if self.waited:
                self.answer_empty()  # to wait once more would be longer than it asked for
            else:
                self._fetches.wait(self)
        except Exception as error:
            self.failed(error)

    def answer_at_hand(self, reply: Reply, turn: int, error: Rejected) -> None:
        """Do without the parts that need the disk, as that of this turn; `error` says why."""
        pending: int | None = turn
        try:
            while pending is not None:
                pending = self.collect(reply, pending + 1)
        except Exception as another:
            self.failed(another)
            return
        if reply.results:
            self.answer(reply)
        else:
            self.failed(error)

    def answer_empty(self) -> None:
        if not self._told:
            self.answer(Reply(0))

    def tell_soon(self) -> None:
        """Let the client know in a moment how far it came, if it came anywhere."""
        if self._passed and self._teller is None:
            clock = self._fetches.clock
            self._teller = clock.call_at(clock.monotonic_s() + PASSED_WAIT_S, self._tell)

    def hush(self) -> None:
        """How far it came will be told otherwise, or to nobody."""
        if self._teller is not None:
            self._teller.cancel()
            self._teller = None

    def _tell(self) -> None:
        self._fetches.forget(self)
        self.answer_empty()
        self._told = True

    def answer(self, reply: Reply) -> None:
        """Send what was collected."""
        self.request.session.on_end.pop(self, None)
        self.hush()
        for at, incarnation in self._passed.items():
            reply.passed(at, self.header.parts[at], incarnation)
        results, batches = reply.in_order()
        self.request.answer(FetchReply(results, [len(batch) for batch in batches]), batches)

    def failed(self, error: Exception) -> None:
        """A mistake of ours (or a disk that can't be read) must not leave it without an answer, nor
        a refusal."""
        if isinstance(error, Rejected):
            rejected = error
        else:
            rejected = internal_refusal(error, f"a fetch of {self.request.peer.name}")
        self.request.session.on_end.pop(self, None)
        self.hush()
        self.request.fail(rejected.status, rejected.detail, rejected.retry_after_ms)

    def part_of(self, turn: int) -> int:
        """Which part comes when: each request begins with another one, so that a queue with much
        to read can't starve those behind it."""
        return (turn + self.request.id) % len(self.header.parts)

    def collect(self, reply: Reply, begin: int) -> int | None:
        """Read what is at hand, from turn `begin` on; the turn that needs the disk, or None."""
        for turn in range(begin, len(self.header.parts)):
            at = self.part_of(turn)
            try:
                at_hand = self._read_now(reply, at)
            except Rejected as error:
                reply.refuse(at, error)
            except NotLoaded:
                return turn
            else:
                if not at_hand:
                    return turn
        return None

    def takes_any_size(self, reply: Reply) -> bool:
        """Whether a batch larger than what is left is worth reading: as the first one, which always
        goes, or since a filter may leave less of it."""
        return self._chosen is not None or not reply.has_batches

    def take(self, reply: Reply, at: int, incarnation: int, result: ReadResult, epoch: int) -> bool:
        """Add what was read for part `at`; True if its filter wants nothing of it and more may
        be looked through. `epoch` is the broker's when it was read."""
        part = self.header.parts[at]
        if self._chosen is None or not result.batches:
            reply.add(at, part, incarnation, result, epoch)
            return False
        wanted = self._fetches.filtered(self._chosen, result.batches)
        if wanted:
            reply.add(at, part, incarnation, result._replace(batches=wanted), epoch)
            return False
        part.offset, part.epoch = result.next_offset, epoch
        self._passed[at] = incarnation
        reply.scan_room -= sum(map(len, result.batches))
        if reply.scan_room > 0:
            return True
        reply.passed(at, part, incarnation)
        return False

    def _read_now(self, reply: Reply, at: int) -> bool:
        """Read part `at`; False if the disk is needed. Raises Rejected, NotLoaded."""
        log, part = self._fetches.log, self.header.parts[at]
        looking = True
        while looking:
            key = incarnation, queue = self._fetches.key_of(self.header.group, part)
            if log.is_end(incarnation, queue, part.offset, part.epoch):
                self._empty.append(key)
                return True
            judged = go_on_from(log, incarnation, queue, part.offset, part.epoch)
            if judged is not None:
                reply.truncated(at, part, incarnation, judged, log.epoch)
                return True
            if reply.room <= 0:
                return True
            result = log.read_now(
                incarnation,
                queue,
                part.offset,
                reply.room,
                at_least_one=self.takes_any_size(reply),
            )
            if result is None:
                return False
            if not result.batches:
                self._empty.append(key)
            looking = self.take(reply, at, incarnation, result, log.epoch)
        return True
