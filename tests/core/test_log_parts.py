"""Parts of the log on their own: state, checkpoints, replay, where a trim may cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from cometmq.batch import Batch, Kind
from cometmq.log.checkpoint import CheckpointWriter, read_checkpoint
from cometmq.log.records import CheckpointEnd, CheckpointSlice, KindName
from cometmq.log.replay import Replay
from cometmq.log.spans import find_spans
from cometmq.log.state import State
from cometmq.log.trimming import trim_target
from cometmq.testing.log_bytes import LogBytes


class Notes:
    name = "notes"
    kinds: Sequence[str] = ("note",)

    def __init__(self) -> None:
        self.loaded: list[bytes] = []

    def apply(self, batch: Batch) -> None:
        self.loaded.append(bytes(batch.records))

    def slices(self) -> Iterator[bytes]:
        yield from self.loaded

    def load(self, data: bytes) -> None:
        self.loaded.append(data)

    def reset(self) -> None:
        self.loaded.clear()


@pytest.fixture
def log() -> LogBytes:
    log = LogBytes()
    log.begin()
    return log


def test_a_drop_in_the_log_empties_the_view(log: LogBytes) -> None:
    view = Notes()
    state = State([view])
    state.load("notes", b"old")
    state.apply(log.control(Kind.KIND_NAME, [KindName(0, "", "notes", True)]))
    assert view.loaded == []


def test_a_drop_in_the_log_ends_the_question_for_the_plugin(log: LogBytes) -> None:
    state = State([])
    state.load("notes", b"old")
    assert state.absent() == ["notes"]
    state.apply(log.control(Kind.KIND_NAME, [KindName(0, "", "notes", True)]))
    assert state.absent() == []


def test_a_kind_reaches_its_view_from_its_number_on(log: LogBytes) -> None:
    view = Notes()
    state = State([view])
    state.apply(log.control(20, ["before"]))
    state.apply(log.control(Kind.KIND_NAME, [KindName(20, "note", "notes")]))
    state.apply(log.control(20, ["behind"]))
    assert len(view.loaded) == 1 and b"behind" in view.loaded[0]


def test_a_checkpoint_gives_the_same_batch_until_it_is_taken() -> None:
    writer = CheckpointWriter(7, iter([("a", b"1")]))
    slice_of_a = Kind.CHECKPOINT_SLICE, CheckpointSlice(7, "a", b"1")
    assert writer.peek() == writer.peek() == slice_of_a
    writer.take()
    assert writer.peek() == (Kind.CHECKPOINT_END, CheckpointEnd(7, 1))
    assert not writer.ended
    writer.take()
    assert writer.ended


@pytest.mark.parametrize("end", [CheckpointEnd(0, 1), CheckpointEnd(0, 3), CheckpointEnd(5, 2)])
def test_a_checkpoint_is_whole_with_its_own_end_and_all_its_slices(
    log: LogBytes, end: CheckpointEnd
) -> None:
    for data in (b"1", b"2"):
        log.control(Kind.CHECKPOINT_SLICE, [CheckpointSlice(0, "a", data)])
    log.control(Kind.CHECKPOINT_SLICE, [CheckpointSlice(9, "a", b"of another one")])
    before = log.end
    (segment,) = log.segments()
    assert read_checkpoint(log.read, segment, log.end, log.seed) is None
    log.control(Kind.CHECKPOINT_END, [end])
    (segment,) = log.segments()
    assert read_checkpoint(log.read, segment, log.end, log.seed) is None
    del log.segment_bytes[0][before:]
    log.end = before
    log.control(Kind.CHECKPOINT_END, [CheckpointEnd(0, 2)])
    (segment,) = log.segments()
    found = read_checkpoint(log.read, segment, log.end, log.seed)
    assert found is not None and found.end == log.end
    assert [piece.data for piece in found.slices] == [b"1", b"2"]
    assert read_checkpoint(log.read, segment, log.end, log.seed, limit=log.end - 1) is None


class Rows:
    """An index that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def known(self, base: int, end: int) -> None:
        self.told.append(("known", base, end))

    def open(self, base: int) -> None:
        self.told.append(("open", base))

    def add(
        self,
        incarnation: int,
        queue: int,
        base_offset: int,
        next_offset: int,
        position: int,
        size: int,
        store_time: int,
    ) -> None:
        self.told.append(("add", position))

    def seal(self, base: int, end: int) -> None:
        self.told.append(("seal", base, end))


def test_a_row_may_be_the_first_thing_found_in_a_segment(log: LogBytes) -> None:
    log.messages()
    border = log.end
    log.begin()
    _, spans = find_spans(log.read, log.segments())
    index = Rows()
    replay = Replay(State([]), index, "n", spans)
    row = border + 500, 100, 1, 0, 0, 1, 0, 1, 0
    assert replay.run([(10, 100, 1, 0, 0, 1, 0, 1, 0), row]) is None
    assert index.told == [
        ("open", 0), ("add", 10), ("seal", 0, border), ("open", border), ("add", border + 500)
    ]  # fmt: skip
    assert (replay.open_base, replay.end, replay.batches) == (border, border + 600, 2)


def test_a_trim_needs_a_checkpoint_that_is_settled() -> None:
    log = LogBytes()
    ends: dict[int, int] = {}
    for _ in range(3):
        base = log.end
        log.begin()
        log.control(Kind.CHECKPOINT_END, [CheckpointEnd(base, 0)])
        ends[base] = log.end
        log.messages()
    bases = sorted(ends)
    for known in ({}, ends):
        for position, settled, expected in [
            (bases[2], log.end, bases[2]),
            (bases[2] - 1, log.end, bases[1]),
            (bases[2], ends[bases[2]] - 1, bases[1]),
            (log.end, ends[bases[1]], bases[1]),
        ]:
            found = trim_target(log, position, settled, log.seed, known)  # type: ignore[arg-type]
            assert found == expected
    assert trim_target(log, 10, 0, log.seed, {}) is None  # type: ignore[arg-type]
