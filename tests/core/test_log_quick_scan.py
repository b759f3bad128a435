"""The quick scan finds exactly what the careful one finds."""

from __future__ import annotations

from random import Random

import pytest

from cometmq.batch import FLAG_CUT, Batch, Kind, cut
from cometmq.log import quick_scan as quick_module
from cometmq.log.quick_scan import Plain, plain, quick_runs, quick_scan
from cometmq.log.records import EpochStart
from cometmq.log.scan import Problem, scan_segment
from cometmq.testing.log_bytes import LogBytes


def a_log(seed: int) -> LogBytes:
    random = Random(seed)
    log = LogBytes()
    log.begin()
    for _ in range(40):
        if random.random() < 0.2:
            log.control(Kind.EPOCH_START, [EpochStart(2, "n", log.end)])
        batch = log.messages(1, random.randint(0, 2), random.randint(1, 4), random.randbytes(60))
        if batch.count > 2:
            part = cut(batch, [0, 2], log_id_seed=log.seed)
            log.append(part, (1, 9), log.next_offsets.get((1, 9), 0), FLAG_CUT)
    return log


def both(log: LogBytes, size: int) -> tuple[list[object], list[object]]:
    def shown(found: Plain | Batch | Problem) -> object:
        if not isinstance(found, Batch):
            return found
        return bytes(found.view) if found.kind or found.is_cut else plain(found)

    quick = [shown(item) for item in quick_scan(log.read, 0, size, log.seed)]
    careful = [shown(item) for _, item in scan_segment(log.read, 0, size, log.seed)]
    return quick, careful


@pytest.mark.parametrize("window", [200, 1000, 1 << 20])
@pytest.mark.parametrize("seed", range(5))
def test_an_intact_log(seed: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_module, "WINDOW_BYTES", window)
    log = a_log(seed)
    quick, careful = both(log, log.end)
    assert quick == careful and len(quick) > 40
    assert any(isinstance(item, tuple) for item in quick)


@pytest.mark.parametrize("rows", [1, 2, 3, 40])
def test_rows_come_in_bounded_runs(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_module, "ROWS", rows)
    log = a_log(4)
    quick, careful = both(log, log.end)
    assert quick == careful
    runs = [run for run in quick_runs(log.read, 0, log.end, log.seed) if isinstance(run, list)]
    assert all(0 < len(run) <= rows for run in runs)
    assert sum(map(len, runs)) == 40


def test_whole_batches_are_what_the_careful_scan_has() -> None:
    def parts(found: Plain | Batch | Problem) -> object:
        assert isinstance(found, Batch)
        where = found.position, found.table_at, found.records_at
        return bytes(found.view), where, found.topic, found.lengths, found.tag_hashes

    log = a_log(3)
    whole = list(quick_scan(log.read, 0, log.end, log.seed, whole=True))
    careful = [found for _, found in scan_segment(log.read, 0, log.end, log.seed)]
    assert list(map(parts, whole)) == list(map(parts, careful))
    log.flip(log.end - 3)
    *_, last = quick_scan(log.read, 0, log.end, log.seed, whole=True)
    assert isinstance(last, Problem)


def test_every_kind_of_end() -> None:
    log = a_log(1)
    for size in range(log.end - 300, log.end):
        quick, careful = both(log, size)
        assert quick == careful
    log.segment_bytes[0] += bytes(500)
    quick, careful = both(log, log.end + 500)
    assert quick == careful and isinstance(quick[-1], Problem)


def test_every_flipped_byte_ends_it() -> None:
    log = a_log(2)
    start = log.end
    last = log.messages(body=b"x" * 20)
    for position in range(start, last.position + last.length):
        log.flip(position)
        quick, careful = both(log, log.end)
        assert quick == careful
        assert isinstance(quick[-1], Problem) and quick[-1].position == start
        log.flip(position)


def test_batches_of_messages_come_as_rows() -> None:
    log = a_log(1)
    found = list(quick_scan(log.read, 0, log.end, log.seed))
    assert sum(isinstance(item, tuple) for item in found) == 40


def test_it_begins_where_it_is_told() -> None:
    log = a_log(3)
    places = [position for position, _ in scan_segment(log.read, 0, log.end, log.seed)]
    (first, *_) = quick_scan(log.read, 0, log.end, log.seed, start=places[7])
    assert (first[0] if isinstance(first, tuple) else first.position) == places[7]


def test_what_the_disk_refuses_to_read_is_a_problem() -> None:
    def read(position: int, size: int) -> bytes:
        raise OSError(5, "Input/output error")

    (found,) = quick_scan(read, 0, 1000, 0)
    assert isinstance(found, Problem) and found.kind == "unreadable"
