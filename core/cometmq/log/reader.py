"""Reading a queue: the index says where the batches lie, the log is read in few calls, and no byte
goes out whose header doesn't name that queue, that offset and that place.

The bodies are not looked at here: their CRC is the consumer's to check. What is missing or lies is
never skipped silently; the answer says so and where the queue goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from crc32c import crc32c

from cometmq.advice import no_descriptor
from cometmq.batch.layout import (
    LENGTH_AT,
    MAGIC,
    OPENING,
    SEALED_AT,
    STAMP,
    STAMP_AT,
    STAMPED_BYTES,
)
from cometmq.environment import Environment
from cometmq.interfaces import Storage
from cometmq.log.indexed_segments import NotLoaded
from cometmq.log.queue_index import Entry, QueueIndex
from cometmq.log.segment_index import QueueKey
from cometmq.protocol import Status

BATCHES_MAX = 1500
"""In one read: checking so many headers takes the loop about 4 ms."""
RUNS_MAX = 64
"""Most storage reads of one answer: what is scattered is sent in smaller answers."""

Read = Callable[[int, int], bytes | bytearray | None]


class ReadResult(NamedTuple):
    """What a queue gave."""

    status: Status
    """OK, EXPIRED (the offset is below `min_offset`) or DAMAGED (it is missing or lies)."""
    batches: Sequence[memoryview]
    """Whole batches as they lie in the log, the first one holding the offset asked for."""
    next_offset: int
    """Behind the batches; for EXPIRED and DAMAGED the place where reading may go on."""
    min_offset: int
    max_offset: int
    """Next offset of the queue, counting what is readable."""
    detail: str = ""
    """For DAMAGED: which offsets, where (file and position), and what is wrong."""


class _Plan(NamedTuple):
    """What is to be read, decided with the index on the loop, done anywhere."""

    key: QueueKey
    offset: int
    runs: list[list[Entry]]
    """Batches that follow each other; the ones of one run are worth one read."""
    min_offset: int
    max_offset: int


class Reader:
    """Reads of one log. `seed` is `cometmq.batch.seed(log_id)`."""

    def __init__(
        self, storage: Storage, environment: Environment, index: QueueIndex, seed: int
    ) -> None:
        self._storage = storage
        self._environment = environment
        self._index = index
        self._seed = seed

    def read_now(
        self,
        incarnation: int,
        queue: int,
        offset: int,
        max_bytes: int,
        readable: int,
        *,
        at_least_one: bool = True,
    ) -> ReadResult | None:
        """Batches of the queue from `offset` on that end at or below the position `readable`, as
        many as fit into `max_bytes` and are at hand; with `at_least_one` also one that does not
        fit, if it is the first.

        None: the disk is needed; call `read`, which takes the same arguments. Raises OSError when
        no file can be opened any more.
        """
        try:
            plan = self._plan((incarnation, queue), offset, max_bytes, readable, at_least_one)
        except NotLoaded:
            return None
        if isinstance(plan, ReadResult):
            return plan
        return self._collect(plan, self._storage.read_now)

    async def read(
        self,
        incarnation: int,
        queue: int,
        offset: int,
        max_bytes: int,
        readable: int,
        *,
        at_least_one: bool = True,
    ) -> ReadResult:
        """The same, waiting for the disk in a thread."""
        key = incarnation, queue
        while True:
            plan = await self._index.when_loaded(
                lambda: self._plan(key, offset, max_bytes, readable, at_least_one)
            )
            if isinstance(plan, ReadResult):
                return plan
            changes = self._index.changes
            result = await self._in_thread(plan)
            # Bytes may have been cut or trimmed away while the thread was on its way to them.
            if result.status != Status.DAMAGED or changes == self._index.changes:
                return result

    async def _in_thread(self, plan: _Plan) -> ReadResult:
        result = await self._environment.threads.run(
            lambda: self._collect(plan, self._storage.read)
        )
        assert result is not None, "a read that may wait always ends with an answer"
        return result

    def _plan(
        self, key: QueueKey, offset: int, max_bytes: int, readable: int, at_least_one: bool
    ) -> _Plan | ReadResult:
        """Raises NotLoaded."""
        low = self._index.min_offset(*key)
        high = self._index.next_offset_before(*key, readable)
        if offset < low:
            return ReadResult(Status.EXPIRED, (), low, low, high)
        if offset >= high:
            return ReadResult(Status.OK, (), offset, low, high)
        entries = islice(self._index.locate(*key, offset, readable, max_bytes), BATCHES_MAX)
        runs = list(islice(_runs(_without_gaps(entries, offset)), RUNS_MAX))
        if runs:
            if runs[0][0].size > max_bytes and not at_least_one:
                return ReadResult(Status.OK, (), offset, low, high)
            return _Plan(key, offset, runs, low, high)
        found = next(self._index.locate(*key, offset, readable, max_bytes), None)
        if found is not None:
            behind, place = found.base_offset, f" before {self._place(found.position)}"
        else:
            behind, place = self._index.next_after_gap(*key, offset) or high, ""
        next_offset = min(behind, high)
        detail = f"offsets {offset} to {next_offset - 1} are missing{place}"
        return ReadResult(Status.DAMAGED, (), next_offset, low, high, detail)

    def _collect(self, plan: _Plan, read: Read) -> ReadResult | None:
        """Read and check what was planned, up to the first batch that is not at hand or not right.
        None: not even the first one is at hand."""
        key, offset, runs, low, high = plan
        batches: list[memoryview] = []
        next_offset = offset
        for entry, piece in _pieces(runs, read):
            if piece is None:
                if not batches:
                    return None
                break
            fault = piece if isinstance(piece, str) else self._fault(key, entry, piece)
            if not isinstance(piece, memoryview) or fault:
                if batches:
                    break
                return self._damaged(plan, fault, read)
            batches.append(piece)
            next_offset = entry.next_offset
        return ReadResult(Status.OK, batches, next_offset, low, high)

    def _damaged(self, plan: _Plan, fault: str, read: Read) -> ReadResult | None:
        """The answer when the first batch is not right: the queue goes on at the next one whose
        header is. None: that one is not at hand."""
        key, offset, runs, low, high = plan
        entries = [entry for run in runs for entry in run]
        next_offset = entries[-1].next_offset
        for entry in entries[1:]:
            try:
                head = read(entry.position, STAMPED_BYTES)
            except OSError as error:
                if no_descriptor(error):
                    raise
                continue
            if head is None:
                return None
            if not self._fault(key, entry, memoryview(head)):
                next_offset = entry.base_offset
                break
        place = self._place(entries[0].position)
        detail = f"offsets {offset} to {next_offset - 1} are damaged at {place}: {fault}"
        return ReadResult(Status.DAMAGED, (), next_offset, low, high, detail)

    def _fault(self, key: QueueKey, entry: Entry, view: memoryview) -> str:
        """Why a batch whose first bytes are `view` is not the one that the index says; or empty."""
        if len(view) < STAMPED_BYTES:
            return f"only {len(view)} bytes are there"
        magic, crc, length = OPENING.unpack_from(view)
        position, _, _, base_offset, _, incarnation, queue, _, _, _ = STAMP.unpack_from(
            view, STAMP_AT
        )
        if magic != MAGIC or crc != crc32c(view[LENGTH_AT:SEALED_AT], self._seed):
            return "the header's CRC is wrong"
        found = position, length, incarnation, queue, base_offset
        expected = entry.position, entry.size, *key, entry.base_offset
        if found != expected:
            names = "position, length, incarnation, queue, base offset"
            return f"the header names {found} as {names}, the index {expected}"
        return ""

    def _place(self, position: int) -> str:
        names = [s.name for s in self._storage.segments() if s.base <= position]
        return f"position {position} of {names[-1] if names else 'no file'}"


def _without_gaps(entries: Iterable[Entry], offset: int) -> Iterator[Entry]:
    """The first entries, as long as each begins where the one before ends."""
    for entry in entries:
        if entry.base_offset > offset:
            return
        yield entry
        offset = entry.next_offset


def _pieces(
    runs: Iterable[list[Entry]], read: Read
) -> Iterator[tuple[Entry, memoryview | str | None]]:
    """Each batch's bytes; a clause that says why it can't be read; or None if it isn't at hand."""
    for run in runs:
        start = run[0].position
        try:
            data = read(start, run[-1].position + run[-1].size - start)
        except OSError as error:
            if no_descriptor(error):
                raise  # nobody looked at the file: that is no damage
            if len(run) == 1:
                yield run[0], str(error)
                continue
            # One bad sector is not to cost its neighbours.
            for entry in run:
                yield from _pieces([[entry]], read)
            continue
        view = None if data is None else memoryview(data)
        for entry in run:
            if view is None:
                yield entry, None
                continue
            piece = view[entry.position - start : entry.position - start + entry.size]
            missing = entry.size - len(piece)
            yield entry, f"{missing} of its {entry.size} bytes are missing" if missing else piece


def _runs(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Neighbours that are worth one read: at least half of what is read is wanted."""
    run: list[Entry] = []
    useful = 0
    for entry in entries:
        useful += entry.size
        if run and 2 * useful < entry.position + entry.size - run[0].position:
            yield run
            run, useful = [], entry.size
        run.append(entry)
    if run:
        yield run
