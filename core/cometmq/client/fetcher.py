"""Reading ahead: one fetch for all queues that want more, asked for before it is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import msgspec

from cometmq.batch import BATCH_BYTES_MAX
from cometmq.client.arguments import check_number
from cometmq.client.backoff import Backoff
from cometmq.client.calls import Call
from cometmq.client.cursor import Cursor, Place
from cometmq.client.engine import Engine
from cometmq.client.outcomes import part_failure
from cometmq.client.pages import keep_pages
from cometmq.errors import CometError, PositionError, ProtocolError, Retryable
from cometmq.protocol import (
    Fetch,
    FetchPart,
    FetchReply,
    FetchResultPart,
    Operation,
    Status,
    split,
)

ANSWER_TIMEOUT_S = 15.0
"""How much longer than it may be parked a fetch may take."""
CROWDED_BYTES = 64 * 1024
"""Asked for at once by queues that have nothing, while others fill the room for reading ahead."""
AHEAD_FROM_BYTES = 64 * 1024
"""When an answer brought so much, the next one is asked for before anybody looks at it, and the
broker reads while we decode. Less is decoded sooner than a request is sent."""
ANSWER_BYTES_MAX = 2 * BATCH_BYTES_MAX
"""Twice what any broker gives at once."""
PARTS_MAX = 1000
"""So many queues go into one request."""
IDLE_FIRST_S = 0.005
IDLE_MAX_S = 0.2

ExpiredPolicy = Literal["earliest", "latest", "stop"]


class FetchOptions(msgspec.Struct, frozen=True):
    """Settings of a consumer's reading; see `PullConsumer`."""

    group: str = ""
    fetch_bytes: int = 1 << 20
    read_ahead_bytes: int = 4 << 20
    wait_ms: int = 20_000
    on_expired: ExpiredPolicy = "earliest"
    filter: str = ""
    """What the broker may leave out; the exact filter is the reader's."""

    def __post_init__(self) -> None:
        for name, least in (("fetch_bytes", 1), ("read_ahead_bytes", 1), ("wait_ms", 0)):
            check_number(name, getattr(self, name), least=least, whole=True)


class Fetcher:
    """Keeps the cursors supplied. `on_news` is called when something arrived for a poll."""

    def __init__(self, engine: Engine, options: FetchOptions, on_news: Callable[[], None]) -> None:
        self.cursors: list[Cursor] = []
        self.error: CometError | None = None
        """What a whole fetch ended with, for the next poll to raise."""
        self._engine = engine
        self._options = options
        self._on_news = on_news
        self._backoff = Backoff(engine.environment.random)
        self._idle_s = IDLE_FIRST_S
        self._paused = False
        keep_pages()

    def pump(self) -> None:
        """Ask for more, for every queue that wants it, if there is room for it."""
        if self._paused or self._engine.closed is not None:
            return
        hungry = [cursor for cursor in self.cursors if cursor.hungry]
        if not hungry:
            return
        buffered = sum(cursor.buffered_bytes for cursor in self.cursors if not cursor.idle)
        fetch_bytes = self._options.fetch_bytes
        if buffered >= self._options.read_ahead_bytes:
            # All of it may wait for one slow or failing handler: the other queues go on.
            hungry = [cursor for cursor in hungry if cursor.empty]
            fetch_bytes = min(fetch_bytes, CROWDED_BYTES)
        for at in range(0, len(hungry), PARTS_MAX):
            self._fetch(hungry[at : at + PARTS_MAX], fetch_bytes)

    @property
    def filter(self) -> str:
        """What is asked for."""
        return self._options.filter

    def use_filter(self, expression: str) -> None:
        """Ask with another filter from the next fetch on."""
        self._options = msgspec.structs.replace(self._options, filter=expression)

    def hurry(self) -> None:
        """A place changed: ask now, not after the pause."""
        self._paused = False
        self.pump()

    def _fetch(self, cursors: list[Cursor], fetch_bytes: int) -> None:
        options = self._options
        parts = [
            FetchPart(
                cursor.topic,
                cursor.queue,
                cursor.fetch.offset,
                cursor.fetch.epoch,
                cursor.incarnation,
                cursor.token,
            )
            for cursor in cursors
        ]
        now_s = self._engine.now_s()
        deadline_s = now_s + options.wait_ms / 1000 + ANSWER_TIMEOUT_S
        header = Fetch(parts, fetch_bytes, options.wait_ms, options.group, options.filter)
        call = self._engine.call(Operation.FETCH, header, FetchReply, deadline_s)
        for cursor in cursors:
            cursor.call = call
        call.add_waiter(partial(self._answered, call, cursors, now_s))

    def _answered(self, call: Call[FetchReply], cursors: list[Cursor], asked_at_s: float) -> None:
        # A seek, or an assignment, has meanwhile made some of them strangers to this answer.
        live = {cursor for cursor in cursors if cursor.call is call}
        for cursor in live:
            cursor.call = None
        error = call.error
        if error is None:
            try:
                news = self._take(call.result(), call.body, cursors, live)
            except ProtocolError as problem:
                self._failed(problem)
            else:
                self._backoff.reset()
                if sum(map(len, call.body)) >= AHEAD_FROM_BYTES:
                    self.pump()
                    self._engine.send_now()
                self._after(news, asked_at_s)
        elif isinstance(error, Retryable):
            self._pause(max(error.after_ms / 1000, self._backoff.next_s()))
        elif isinstance(error, CometError):
            self._failed(error)

    def _take(
        self,
        reply: FetchReply,
        body: Sequence[memoryview],
        cursors: list[Cursor],
        live: set[Cursor],
    ) -> bool:
        """Give each cursor its part; returns whether anything came that a poll must know of."""
        if sum(map(len, body)) > ANSWER_BYTES_MAX:
            raise ProtocolError("a fetch's answer brings more than any broker gives at once")
        pieces = split(body, reply.sizes)
        if sum(part.batches for part in reply.results) != len(pieces) or any(
            part.part >= len(cursors) for part in reply.results
        ):
            raise ProtocolError("the parts of a fetch's answer do not fit its request")
        news = False
        at = 0
        for part in reply.results:
            batches = pieces[at : at + part.batches]
            at += part.batches
            cursor = cursors[part.part]
            if cursor in live:
                news |= self._part(cursor, part, batches)
        return news

    def _part(self, cursor: Cursor, part: FetchResultPart, batches: Sequence[memoryview]) -> bool:
        if part.status == Status.OK:
            if part.next_offset < cursor.fetch.offset + bool(batches):
                raise ProtocolError(
                    f"a fetch from offset {cursor.fetch.offset} of queue {cursor.queue} of "
                    f"{cursor.topic} is to go on at {part.next_offset}"
                )
            cursor.incarnation = cursor.incarnation or part.incarnation
            behind = Place(part.next_offset, part.epoch)
            # A broker that filters moves on without a batch: that is progress, not silence.
            moved = behind != cursor.fetch
            cursor.add(batches, behind)
            return moved or bool(batches)
        go_on = part.next_offset
        if part.status == Status.EXPIRED and self._options.on_expired == "latest":
            go_on = part.max_offset
        error = part_failure(part.status, part.detail, cursor.topic, cursor.queue, go_on)
        if isinstance(error, Retryable):
            self._pause(max(error.after_ms / 1000, self._backoff.next_s()))
            return False
        if isinstance(error, PositionError):
            cursor.fetch = Place(go_on, part.epoch)
        cursor.error = error
        return True

    def _after(self, news: bool, asked_at_s: float) -> None:
        """Ask again at once; a little later when the broker says "nothing" without waiting."""
        if news:
            self._idle_s = IDLE_FIRST_S
            self._on_news()
            self.pump()
            return
        waited_s = self._engine.now_s() - asked_at_s
        if waited_s * 2000 >= self._options.wait_ms and self._options.wait_ms:
            self.pump()
            return
        self._pause(self._idle_s)
        self._idle_s = min(2 * self._idle_s, IDLE_MAX_S)

    def _failed(self, error: CometError) -> None:
        self.error = error
        self._pause(self._backoff.next_s())
        self._on_news()

    def _pause(self, seconds: float) -> None:
        if not self._paused:
            self._paused = True
            self._engine.at(self._engine.now_s() + seconds, self._resume)

    def _resume(self) -> None:
        self._paused = False
        self.pump()
