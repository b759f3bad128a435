"""What a scan says about intact, torn and damaged bytes of a segment."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cometmq.batch import Batch
from cometmq.log import scan
from cometmq.log.quick_scan import Plain, quick_runs_on
from cometmq.log.scan import Problem, Read, resync, scan_segment
from cometmq.testing.log_bytes import LogBytes


@pytest.fixture
def log() -> LogBytes:
    log = LogBytes()
    log.begin()
    for queue in range(5):
        log.messages(queue=queue, count=3, body=b"%d" % queue * 50)
    return log


def found(log: LogBytes, size: int | None = None, *, bodies: bool = True) -> list[Batch | Problem]:
    found = scan_segment(log.read, 0, log.end if size is None else size, log.seed, bodies=bodies)
    return [item for _, item in found]


def batches(items: list[Batch | Problem]) -> list[int]:
    return [item.position for item in items if isinstance(item, Batch)]


def problem(items: list[Batch | Problem]) -> Problem:
    assert isinstance(items[-1], Problem)
    assert not any(isinstance(item, Problem) for item in items[:-1])
    return items[-1]


def positions(log: LogBytes) -> list[int]:
    return batches(found(log))


def test_every_batch_of_an_intact_segment_at_its_place(log: LogBytes) -> None:
    items = found(log)
    assert [item.queue for item in items if isinstance(item, Batch)] == [0, 0, 1, 2, 3, 4]
    place = 0
    for item in items:
        assert isinstance(item, Batch)
        assert item.position == place
        place += item.length
    assert place == log.end


def test_windows_smaller_than_a_batch_change_nothing(
    log: LogBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = positions(log)
    monkeypatch.setattr(scan, "WINDOW_BYTES", 150)
    assert [item.position for item in found(log)] == places
    assert resync(log.read, 0, log.end, log.seed, places[2] + 1) == places[3]


def test_prepared_zeros_are_told_from_damage(log: LogBytes) -> None:
    end = log.end
    log.segment_bytes[0] += bytes(100_000)
    last = problem(found(log, end + 100_000))
    assert (last.position, last.kind) == (end, "zeros")


def test_zeros_with_bytes_behind_are_no_prepared_space(log: LogBytes) -> None:
    end = log.end
    log.segment_bytes[0] += bytes(5000) + b"x"
    last = problem(found(log, end + 5001))
    assert (last.position, last.kind, last.resume) == (end, "header", end + 5000)
    assert "5000 zero bytes" in last.reason


def test_every_torn_end_is_seen_where_its_batch_begins(log: LogBytes) -> None:
    last_batch = positions(log)[-1]
    for size in range(last_batch + 1, log.end):
        items = found(log, size)
        assert problem(items).position == last_batch
        assert problem(items).kind == "short"
        # The same bytes with zeros behind them: a file extended, but never written.
        torn = LogBytes()
        torn.segment_bytes[0] = log.segment_bytes[0][:size] + bytes(300)
        assert problem(found(torn, size + 300)).position == last_batch


def test_every_flipped_byte_is_seen(log: LogBytes) -> None:
    places = positions(log)
    for position in range(places[2], places[3]):
        log.flip(position)
        items = found(log)
        assert batches(items) == places[:2]
        assert problem(items).position == places[2]
        following = resync(log.read, 0, log.end, log.seed, problem(items).resume)
        assert following == places[3]
        log.flip(position)


def test_a_proven_header_says_where_the_next_batch_begins(log: LogBytes) -> None:
    places = positions(log)
    log.flip(places[3] - 1)
    last = problem(found(log))
    assert (last.kind, last.resume) == ("body", places[3])
    assert "producer's CRC" in last.reason
    assert batches(found(log, bodies=False)) == places


def items_of(runs: Iterable[list[Plain] | Batch | Problem]) -> list[Plain | Batch | Problem]:
    """One by one what comes in lists."""
    items: list[Plain | Batch | Problem] = []
    for run in runs:
        items += run if isinstance(run, list) else [run]
    return items


def place_of(found: Plain | Batch | Problem) -> int:
    return found[0] if isinstance(found, tuple) else found.position


def test_scan_on_tells_each_problem_and_goes_on(log: LogBytes) -> None:
    places = positions(log)
    log.flip(places[1] + 30)
    log.flip(places[3] + 100)  # the length of the topic, so that nothing fits
    log.flip(log.end - 1)  # a body
    items = items_of(quick_runs_on(log.read, 0, log.end, log.seed))
    kinds = [item.kind if isinstance(item, Problem) else "" for item in items]
    assert kinds == ["", "header", "", "body", "", ""]
    assert list(map(place_of, items)) == places


def test_batches_of_another_log_or_another_place_are_none(log: LogBytes) -> None:
    other = LogBytes(b"other id")
    other.segment_bytes[0] = log.segment_bytes[0]
    items = found(other, log.end)
    assert batches(items) == []
    assert "broker's CRC" in problem(items).reason
    moved = LogBytes()
    moved.segment_bytes[100] = log.segment_bytes[0]
    (item,) = [item for _, item in scan_segment(moved.read, 100, log.end, log.seed)]
    assert isinstance(item, Problem)
    assert "lies at 0" in item.reason
    assert resync(moved.read, 100, log.end, log.seed, 100) is None


def test_the_copy_of_a_log_inside_a_message_is_not_taken_for_batches(log: LogBytes) -> None:
    copy = bytes(log.segment_bytes[0])
    inner = log.messages(body=copy)
    behind = log.messages()
    log.flip(inner.position + 20)
    assert resync(log.read, 0, log.end, log.seed, inner.position + 1) == behind.position


def bad_sector(log: LogBytes, start: int, end: int) -> Read:
    def read(position: int, size: int) -> bytes:
        if position < end and position + size > start:
            raise OSError(5, "Input/output error")
        return log.read(position, size)

    return read


def test_a_bad_sector_costs_only_the_batches_in_it() -> None:
    log = LogBytes()
    log.begin()
    for _ in range(12):
        log.messages(body=bytes(2000))
    places = positions(log)
    read = bad_sector(log, 3 * 4096, 4 * 4096)
    items = items_of(quick_runs_on(read, 0, log.end, log.seed))
    lost = [
        p
        for p, e in zip(places, [*places[1:], log.end], strict=True)
        if p < 4 * 4096 and e > 3 * 4096
    ]
    intact = [place_of(item) for item in items if not isinstance(item, Problem)]
    assert intact == [place for place in places if place not in lost]
    problems = [item for item in items if isinstance(item, Problem)]
    assert [(item.position, item.kind) for item in problems] == [(lost[0], "unreadable")]


def test_a_file_that_is_shorter_than_said(log: LogBytes) -> None:
    last = problem(found(log, log.end + 500))
    assert (last.position, last.kind) == (log.end, "short")
