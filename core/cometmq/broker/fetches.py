"""Fetches: batches of several queues, sent as they lie; parked while there are none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from cometmq.broker.catalog import Catalog, QueueKey
from cometmq.broker.gate import Gate
from cometmq.broker.names import shown
from cometmq.broker.places import go_on_from
from cometmq.broker.refusals import Rejected, check_group, internal_refusal
from cometmq.broker.requests import Request
from cometmq.broker.tokens import check_token
from cometmq.interfaces import Limits, ParkedFetch
from cometmq.log import Log, NotLoaded, ReadResult
from cometmq.protocol import Fetch, FetchPart, FetchReply, FetchResultPart, Status

PARTS_MAX = 4096
FetchWait = Callable[[ParkedFetch], bool | None]


class Fetches:
    """Handler of the operation FETCH."""

    def __init__(
        self,
        log: Log,
        catalog: Catalog,
        gate: Gate,
        limits: Limits,
        fetch_wait: tuple[FetchWait, ...],
        drop: Callable[[ParkedFetch], None],
    ) -> None:
        """`drop` forgets a parked fetch whose session has ended."""
        self.log = log
        self._catalog = catalog
        self._gate = gate
        # A reply's batches have to fit into one frame.
        self.bytes_max = limits.batch_bytes
        self._fetch_wait = fetch_wait
        self._drop = drop
        self._tasks: set[asyncio.Task[None]] = set()

    def fetch(self, request: Request, header: Fetch, body: list[memoryview]) -> None:
        if not 1 <= len(header.parts) <= PARTS_MAX:
            raise Rejected(
                Status.BAD_REQUEST,
                f"a fetch of {len(header.parts)} queues: ask for 1 to {PARTS_MAX}",
            )
        if header.filter:
            raise Rejected(
                Status.REFUSED,
                f"no plugin of this broker knows the filter {shown(header.filter)}: fetch without "
                "one and let the client filter",
            )
        if header.group:
            check_group(header.group)
            self._gate.check(request.session, "FETCH", f"group:{header.group}")
        for topic in {part.topic for part in header.parts}:
            self._gate.check(request.session, "FETCH", topic)
        fetch = WaitingFetch(self, request, header)
        if not fetch.retry():
            self._wait(fetch)

    def key_of(self, part: FetchPart) -> QueueKey:
        """The queue that a part means. Raises Rejected."""
        topic = self._catalog.find_queue(part.topic, part.queue, part.incarnation)
        if not topic.readable:
            raise Rejected(
                Status.NOT_READABLE,
                f"topic {shown(part.topic)} can't be read: allow it with `mq topic alter`",
            )
        check_token(part.token, f"queue {part.queue} of topic {shown(part.topic)}")
        return topic.incarnation, part.queue

    def read_slowly(self, fetch: WaitingFetch, reply: Reply, turn: int) -> None:
        """Go on with the part whose turn it is, waiting for the disk."""
        task = asyncio.get_running_loop().create_task(self._read_slowly(fetch, reply, turn))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Let no read outlive the log."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _wait(self, fetch: WaitingFetch) -> None:
        """Nothing is there: a plugin may keep the fetch, else it is answered empty."""
        fetch.name_queues()
        for offer in self._fetch_wait:
            if offer(fetch):
                session = fetch.request.session
                session.on_end[fetch] = lambda: self._drop(fetch)
                self.log.demand(self.log.appended)
                return
        fetch.answer_empty()

    async def _read_slowly(self, fetch: WaitingFetch, reply: Reply, turn: int) -> None:
        pending: int | None = turn
        try:
            while pending is not None:
                at = fetch.part_of(pending)
                await self._read_part(fetch.header.parts[at], reply, at)
                pending = fetch.collect(reply, pending + 1)
            fetch.answer(reply)
        except asyncio.CancelledError:
            fetch.request.drop()
            raise
        except Exception as error:
            fetch.failed(error)

    async def _read_part(self, part: FetchPart, reply: Reply, at: int) -> None:
        try:
            incarnation, queue = self.key_of(part)
            judged = await self.log.when_loaded(
                lambda: go_on_from(self.log, incarnation, queue, part.offset, part.epoch)
            )
            if judged is not None:
                reply.truncated(at, part, incarnation, judged, self.log.epoch)
                return
            if reply.room <= 0:
                return
            # A cut while the disk is read makes this epoch an old one, so it will be judged.
            epoch = self.log.epoch
            result = await self.log.read(incarnation, queue, part.offset, reply.room)
        except Rejected as error:
            reply.refuse(at, error)
        else:
            reply.add(at, part, incarnation, result, epoch)


class WaitingFetch:
    """One fetch on its way; what the hook `fetch_wait` sees as `ParkedFetch`."""

    __slots__ = ("_fetches", "header", "queues", "request", "wait_ms")

    def __init__(self, fetches: Fetches, request: Request, header: Fetch) -> None:
        self._fetches = fetches
        self.request = request
        self.header = header
        self.wait_ms = header.wait_ms
        self.queues: Sequence[QueueKey] = ()

    def name_queues(self) -> None:
        """Set `queues` to everything that it asks for and that is there."""
        keys: list[QueueKey] = []
        for part in self.header.parts:
            try:
                keys.append(self._fetches.key_of(part))
            except Rejected:
                continue
        self.queues = keys

    def retry(self) -> bool:
        """Look again: True if it was answered, or will be when the disk has answered."""
        if not self.request.session.open:
            self.request.drop()
            return True
        # One batch is always delivered, even to who has room for none.
        reply = Reply(min(max(self.header.max_bytes, 1), self._fetches.bytes_max))
        try:
            pending = self.collect(reply, 0)
        except Exception as error:
            self.failed(error)
            return True
        if pending is not None:
            self._fetches.read_slowly(self, reply, pending)
        elif reply.results:
            self.answer(reply)
        else:
            return False
        return True

    def answer_empty(self) -> None:
        self.answer(Reply(0))

    def answer(self, reply: Reply) -> None:
        """Send what was collected."""
        self.request.session.on_end.pop(self, None)
        results, batches = reply.in_order()
        self.request.answer(FetchReply(results, [len(batch) for batch in batches]), batches)

    def failed(self, error: Exception) -> None:
        """A mistake of ours (or a disk that can't be read) must not leave it without an answer."""
        rejected = internal_refusal(error, f"a fetch of {self.request.peer.name}")
        self.request.session.on_end.pop(self, None)
        self.request.fail(rejected.status, rejected.detail)

    def part_of(self, turn: int) -> int:
        """Which part comes when: each request begins with another one, so that a queue with much
        to read can't starve those behind it."""
        return (turn + self.request.id) % len(self.header.parts)

    def collect(self, reply: Reply, begin: int) -> int | None:
        """Read what is at hand, from turn `begin` on; the turn that needs the disk, or None."""
        log = self._fetches.log
        parts = self.header.parts
        for turn in range(begin, len(parts)):
            at = self.part_of(turn)
            part = parts[at]
            try:
                incarnation, queue = self._fetches.key_of(part)
                judged = go_on_from(log, incarnation, queue, part.offset, part.epoch)
            except Rejected as error:
                reply.refuse(at, error)
                continue
            except NotLoaded:
                return turn
            if judged is not None:
                reply.truncated(at, part, incarnation, judged, log.epoch)
                continue
            if reply.room <= 0:
                continue
            result = log.read_now(incarnation, queue, part.offset, reply.room)
            if result is None:
                return turn
            reply.add(at, part, incarnation, result, log.epoch)
        return None


class Reply:
    """The reply to a fetch, as it grows, in whatever order."""

    __slots__ = ("_parts", "results", "room")

    def __init__(self, room: int) -> None:
        self.room = room
        """Bytes that may still be added."""
        self.results: list[FetchResultPart] = []
        self._parts: dict[int, Sequence[memoryview]] = {}

    def in_order(self) -> tuple[list[FetchResultPart], list[memoryview]]:
        """Results and batches in the order of the request's parts."""
        results = sorted(self.results, key=lambda result: result.part)
        return results, [batch for at in sorted(self._parts) for batch in self._parts[at]]

    def refuse(self, at: int, error: Rejected) -> None:
        """Part `at` can't be had."""
        self.results.append(FetchResultPart(part=at, status=error.status, detail=error.detail))

    def truncated(self, at: int, part: FetchPart, incarnation: int, go_on: int, epoch: int) -> None:
        """The log was cut below what this consumer has read."""
        detail = (
            f"offset {part.offset} of queue {part.queue} of topic {shown(part.topic)} lies beyond "
            f"what is left of it, which ends at {go_on}: go on from {go_on}"
        )
        self.results.append(
            FetchResultPart(
                part=at,
                status=Status.TRUNCATED,
                next_offset=go_on,
                epoch=epoch,
                incarnation=incarnation,
                detail=detail,
            )
        )

    def add(
        self, at: int, part: FetchPart, incarnation: int, result: ReadResult, epoch: int
    ) -> None:
        """What part `at` gave; what gave nothing is left out. `epoch` is the broker's when it was
        read: valid for all that was there then, and cheaper to judge next time than the last
        batch's own."""
        size = sum(map(len, result.batches))
        if result.status == Status.OK and not size:
            return
        if self._parts and size > self.room:
            # One batch is always delivered, however large; this would be a second one.
            self.room = 0
            return
        self.results.append(
            FetchResultPart(
                part=at,
                status=result.status,
                next_offset=result.next_offset,
                epoch=epoch,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
                batches=len(result.batches),
                incarnation=incarnation,
                detail=_detail(part, result),
            )
        )
        self.room -= size
        if size:
            self._parts[at] = result.batches


def _detail(part: FetchPart, result: ReadResult) -> str:
    if result.status == Status.EXPIRED:
        return (
            f"offset {part.offset} of queue {part.queue} of topic {shown(part.topic)} was deleted "
            f"by retention: go on from {result.next_offset}"
        )
    return result.detail
