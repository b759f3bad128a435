"""`send_many`: batches of its own, so that results are found by place and not by record."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, repeat
from typing import TYPE_CHECKING

from cometmq.batch import RecordTuple
from cometmq.client.batching import Batch, Outcome, SendResult, TopicState
from cometmq.client.validation import RECORD_BYTES, entry_of, header_bytes, measure, record_of
from cometmq.errors import CometError, Refused
from cometmq.interfaces import Level
from cometmq.message import Message

if TYPE_CHECKING:
    from cometmq.client.producing import Accumulator

CHUNK = 256
"""So many messages are looked at together, and in vain if one is unlike the others."""


class Part:
    """A batch and where its messages stand in the list that was given."""

    __slots__ = ("batch", "runs")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.runs: list[range] = []

    def took(self, first: int, count: int) -> None:
        """It has so many messages more, which stand one behind the other from `first` on."""
        self.runs.append(range(first, first + count))


class Filling:
    """The batches of one `send_many`, while they are filled and until all are done."""

    def __init__(self, accumulator: Accumulator, level: Level | None, count: int) -> None:
        self._accumulator = accumulator
        self._engine = accumulator.engine
        self._level = level
        self._born_ms = self._engine.clock.wall_ms()
        self._deadline_s = self._engine.now_s() + accumulator.options.send_timeout
        self._parts: list[Part] = []
        self._open: dict[tuple[str, int], Part] = {}
        self._errors: dict[str, CometError] = {}
        """By topic: what can't be resolved is asked once, not for each message."""
        self._outcomes: dict[int, CometError] = {}
        self._count = count
        self._last_topic = ""
        self._last: Part | None = None

    def add_run(self, messages: list[Message], place: int) -> int:
        """Messages without a sharding key for the same topic as the one before, from `place` on,
        as far as they go; returns the place of the first that is none or has no room, for `add`."""
        part = self._last
        if part is None:
            return place
        batch, first = part.batch, place
        while place < len(messages):
            chunk = messages[place : place + _guess(batch)]
            taken = self._add_bodies(batch, chunk)
            if not taken:
                taken = self._add_each(batch, chunk)
            place += taken
            if taken < len(chunk):
                break
        part.took(first, place - first)
        return place

    def _add_bodies(self, batch: Batch, chunk: list[Message]) -> int:
        """Messages that have nothing but a body, all of them or those that have room; returns how
        many. No line is run for each of them but the one that looks at it."""
        topic = self._last_topic
        bodies = [
            body
            for message in chunk
            if type(message) is Message
            and message.topic == topic
            and message.sharding_key is None
            and type(body := message.body) is bytes
            and not (message.tag or message.keys or message.properties)
        ]
        if len(bodies) != len(chunk):
            return 0
        size_bytes = sum(map(len, bodies)) + RECORD_BYTES * len(bodies)
        room_bytes = batch.limit_bytes - batch.size_bytes
        if size_bytes > room_bytes:
            sums = list(accumulate(len(body) + RECORD_BYTES for body in bodies))
            taken = bisect_right(sums, room_bytes)
            del bodies[taken:]
            size_bytes = sums[taken - 1] if taken else 0
        batch.size_bytes += size_bytes
        batch.appended += len(bodies)
        batch.records += bodies
        return len(bodies)

    def _add_each(self, batch: Batch, chunk: list[Message]) -> int:
        """Messages as they come, up to the first that is not for this batch or has no room;
        returns how many."""
        topic, born_ms = self._last_topic, self._born_ms
        limits = self._engine.connection.limits
        total_bytes, limit_bytes = batch.size_bytes, batch.limit_bytes
        records = batch.records
        taken = 0
        for message in chunk:
            if (
                type(message) is not Message
                or message.topic != topic
                or message.sharding_key is not None
                or type(body := message.body) is not bytes
            ):
                break
            record: bytes | RecordTuple = body
            total_bytes += len(body) + RECORD_BYTES
            if message.tag or message.keys or message.properties:
                try:
                    total_bytes += header_bytes(message, limits)
                except Refused:
                    break
                batch.plain = False
                record = record_of(born_ms, body, message)
            if total_bytes > limit_bytes:
                break
            batch.size_bytes = total_bytes
            records.append(record)
            taken += 1
        batch.appended += taken
        return taken

    async def add(self, place: int, message: Message) -> None:
        """Any message; an error stays in its place."""
        try:
            await self._add(place, message)
        except CometError as error:
            self._outcomes[place] = error

    def abandon(self) -> None:
        """Nobody waits for the outcomes any more: what is not on its way yet will not go."""
        for part in self._open.values():
            self._accumulator.discard(part.batch)
        self._open.clear()

    async def finish(self) -> list[Outcome]:
        """Close what is open and wait for all; results and errors in the order of the messages."""
        for part in self._open.values():
            self._accumulator.seal(part.batch)
        self._accumulator.sender.pump()
        if len(self._parts) > 1:  # what is known already is written down once the last is out
            await self._engine.sleep(0)
        outcomes: list[Outcome | None] = [None] * self._count
        for place, error in self._outcomes.items():
            outcomes[place] = error
        for part in self._parts:
            await self._engine.until(part.batch, None)
            _fill_in(outcomes, part)
        return outcomes  # type: ignore[return-value]  # every place was in a part or an error

    async def _add(self, place: int, message: Message) -> None:
        accumulator = self._accumulator
        body, size_bytes = measure(message, self._engine.connection.limits)
        topic = message.topic
        if topic in self._errors:
            raise self._errors[topic]
        try:
            state = await accumulator.state_of(topic, self._deadline_s)
        except CometError as error:
            self._errors[topic] = error
            raise
        part = await self._writable(state, message.sharding_key, size_bytes)
        part.batch.put(entry_of(self._born_ms, body, message), size_bytes)
        part.took(place, 1)
        self._last = part if message.sharding_key is None else None
        self._last_topic = topic

    async def _writable(self, state: TopicState, key: str | None, size_bytes: int) -> Part:
        """The part for a message of `size_bytes`; a full one goes on its way."""
        accumulator = self._accumulator
        topic = state.route.topic
        while True:
            queue = state.queue_of(key)
            part = self._open.get((topic, queue))
            if part is not None:
                total = part.batch.size_bytes + size_bytes
                if total <= part.batch.limit_bytes or accumulator.room.grow(part.batch, size_bytes):
                    return part
                await self._send(state, queue)
                continue
            accumulator.close_queue(state, queue)
            batch = accumulator.open_batch(state, queue, self._level, size_bytes)
            if batch is not None:
                batch.born(self._born_ms)
                part = self._open[topic, queue] = Part(batch)
                self._parts.append(part)
                return part
            if self._open:  # their reservations may be what is missing
                for key_of_open in list(self._open):
                    self._accumulator.seal(self._open.pop(key_of_open).batch)
                self._last = None
                accumulator.sender.pump()
            await accumulator.wait_for_room(self._deadline_s)

    async def _send(self, state: TopicState, queue: int) -> None:
        """Let a full part go, and let it get out before the next one is filled."""
        part = self._open.pop((state.route.topic, queue))
        if part is self._last:
            self._last = None
        state.used(queue)
        self._accumulator.seal(part.batch)
        self._accumulator.sender.pump()
        await self._engine.sleep(0)


def _guess(batch: Batch) -> int:
    """About how many messages more have room in a batch that has one."""
    room_bytes = batch.limit_bytes - batch.size_bytes
    return min(CHUNK, 1 + room_bytes * batch.appended // batch.size_bytes)


def _fill_in(outcomes: list[Outcome | None], part: Part) -> None:
    try:
        stored = part.batch.result()
    except CometError as error:
        for run in part.runs:
            outcomes[run.start : run.stop] = [error] * len(run)
        return
    offset = stored.base_offset
    for run in part.runs:
        behind = offset + len(run)
        outcomes[run.start : run.stop] = map(SendResult, range(offset, behind), repeat(stored))
        offset = behind
