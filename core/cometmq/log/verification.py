"""Proving a log offline: all that `inspect_log` looks at, and more.

Every index file is compared, row by row, with what the segment gives; every queue's offsets are
followed from batch to batch. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cometmq.batch import Batch, Kind, seed
from cometmq.environment import File, Files
from cometmq.log.index_files import Stretch, scan_index
from cometmq.log.inspection import Finding, LogReport, OnBatch, SegmentReport, inspect_log
from cometmq.log.segment_index import SUFFIX, Columns, QueueKey, SealedSegment


def verify_log(files: Files, folder: str, on_batch: OnBatch | None = None) -> LogReport:
    """Look through the log of a data folder as `inspect_log` does, and compare its parts with each
    other. Raises LogError when there is no log, OSError when it can't be read."""
    offsets = _Offsets(on_batch)
    report = inspect_log(files, folder, offsets.take)
    damaged = [finding for finding in report.findings if finding.kind != "index"]
    for finding in offsets.findings:
        # What is missing behind damage was told as damage.
        if not any(offsets.ends[finding] <= bad.position <= finding.position for bad in damaged):
            report.findings.append(finding)
    for number, segment in enumerate(report.segments[:-1]):
        if segment.index == "ok" and all(bad.file != segment.file for bad in damaged):
            _compare(files, report, segment, report.segments[number + 1].base)
    return report


class _Offsets:
    """Follows the offsets of every queue."""

    def __init__(self, on_batch: OnBatch | None) -> None:
        self.findings: list[Finding] = []
        self.ends: dict[Finding, int] = {}
        """Where the batch before the place of a finding ends in the log."""
        self._on_batch = on_batch
        self._last: dict[QueueKey, tuple[int, int]] = {}

    def take(self, batch: Batch, kind: str) -> None:
        """One more intact batch."""
        if self._on_batch is not None:
            self._on_batch(batch, kind)
        if batch.kind != Kind.MESSAGES or not batch.incarnation:
            return
        key = batch.incarnation, batch.queue
        following, end = self._last.get(key, (batch.base_offset, 0))
        self._last[key] = batch.next_offset, batch.position + batch.length
        if batch.base_offset == following:
            return
        text = (
            f"position {batch.position}: queue {batch.queue} of {batch.topic} goes on at offset"
            f" {batch.base_offset}, but the batch before it ended at {following}; please report it"
        )
        finding = Finding("offsets", "", batch.position, text)
        self.findings.append(finding)
        self.ends[finding] = end


def _compare(files: Files, report: LogReport, segment: SegmentReport, end: int) -> None:
    """An index file whose CRCs are right against the batches of its segment."""
    log_seed = seed(bytes.fromhex(report.log_id))
    path = f"{segment.file.removesuffix('.seg')}.{SUFFIX}"
    sealed = SealedSegment(files.read_file(path), segment.base, end, log_seed)
    with _opened(files, segment.file) as file:
        scanned = scan_index(
            lambda position, size: file.read(position - segment.base, size),
            Stretch(segment.base, end),
            log_seed,
        )
    data = b"".join(scanned.index.encode(scanned.starts, log_seed))
    made = SealedSegment(data, segment.base, end, log_seed)
    difference = _difference(sealed, made, starts=scanned.whole)
    if difference:
        segment.index = "bad"
        text = f"{path} is not the index of its segment ({difference}); delete it, it is made again"
        report.findings.append(Finding("index", path, segment.base, text))


def _difference(found: SealedSegment, made: SealedSegment, *, starts: bool) -> str:
    """What tells the index that was found from the one made of the segment; empty if nothing.
    `starts`: the segment has a whole checkpoint, so it knows where each queue began."""
    for key in sorted(found.starts().keys() | made.starts().keys()):
        rows, wanted = _rows(found.queue(key)), _rows(made.queue(key))
        if rows != wanted:
            return f"of queue {key[1]} it has {len(rows)} batches, the segment {len(wanted)}"
        if starts and found.start(key) != made.start(key):
            return f"queue {key[1]} begins at offset {found.start(key)}, not {made.start(key)}"
    return ""


def _rows(columns: Columns | None) -> list[tuple[int, ...]]:
    if columns is None:
        return []
    return list(
        zip(
            columns.bases,
            columns.spans,
            columns.positions,
            columns.sizes,
            columns.times,
            strict=True,
        )
    )


@contextmanager
def _opened(files: Files, path: str) -> Iterator[File]:
    file = files.open_for_reading(path)
    try:
        yield file
    finally:
        file.close()
