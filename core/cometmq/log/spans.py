"""The segments of a log as a start finds them: whose they are, where they end, what is between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from cometmq.batch import Batch, Kind, parse, seed, verify_producer
from cometmq.errors import BatchError
from cometmq.interfaces import Segment
from cometmq.log.quick_scan import Plain, quick_scan
from cometmq.log.records import SegmentStart, read_records
from cometmq.log.scan import Problem, Read, check, resync, scan_segment

T = TypeVar("T")

_HEAD_BYTES = 4096
"""More than any segment-start batch has."""


class Span(msgspec.Struct, frozen=True):
    """One segment and the stretch of the log that it should hold."""

    segment: Segment
    end: int
    """Where the next segment begins; for the last one, where its file ends."""
    start: SegmentStart | None
    """What its first batch says; None if that is not intact."""
    flaw: str = ""
    """Why nothing in this file can be believed: a clause for people; empty when it can."""

    @property
    def base(self) -> int:
        """Position of its first byte."""
        return self.segment.base

    @property
    def size(self) -> int:
        """Bytes that are there of [base, end)."""
        return min(self.segment.size, self.end - self.base)


def find_spans(read: Read, segments: Sequence[Segment]) -> tuple[bytes | None, list[Span]]:
    """The log's id (None if no segment says one) and the segments, oldest first.

    The id is what most segments say; a segment of another log, or one whose first batch names
    another place than its file, has a flaw.
    """
    starts = [_read_start(read, segment) for segment in segments]
    ids = Counter(start.log_id for start in starts if start is not None)
    log_id = max(ids, key=ids.__getitem__) if ids else None
    spans = []
    for at, (segment, start) in enumerate(zip(segments, starts, strict=True)):
        last = at + 1 == len(segments)
        end = segment.base + segment.size if last else segments[at + 1].base
        spans.append(Span(segment, end, start, _flaw(segment, start, log_id)))
    return log_id, spans


def walk(read: Read, spans: Sequence[Span], log_seed: int) -> Iterator[Batch | Problem]:
    """All intact batches of these spans, in order, and a Problem wherever something else lies.

    Ends with a Problem of kind `zeros` if prepared space follows the last batch.
    """

    def scan(span: Span, start: int) -> Iterator[Batch | Problem]:
        for _, found in scan_segment(read, span.base, span.size, log_seed, start=start):
            yield found

    return _walk(read, spans, log_seed, scan)


def walk_quickly(
    read: Read, spans: Sequence[Span], log_seed: int, *, whole: bool = False
) -> Iterator[Plain | Batch | Problem]:
    """The same, batches of messages as tuples unless they are wanted `whole`."""

    def scan(span: Span, start: int) -> Iterator[Plain | Batch | Problem]:
        return quick_scan(read, span.base, span.size, log_seed, start=start, whole=whole)

    return _walk(read, spans, log_seed, scan)


def walk_behind(read: Read, spans: Sequence[Span], log_seed: int, start: int) -> Iterator[Batch]:
    """All intact batches of these spans, from the first one at or behind `start` on."""
    for span in spans:
        place = resync(read, span.base, span.size, log_seed, max(start, span.base))
        while place is not None:
            problem: Problem | None = None
            for _, found in scan_segment(read, span.base, span.size, log_seed, start=place):
                if isinstance(found, Problem):
                    problem = found
                else:
                    yield found
            if problem is None:
                break
            place = resync(read, span.base, span.size, log_seed, problem.resume)


def tail_damage(spans: Sequence[Span]) -> Iterator[tuple[Span, str]]:
    """Earlier segments that can't be believed, or that end before the next one begins."""
    for span in spans[:-1]:
        missing = span.end - span.base - span.segment.size
        if span.flaw:
            yield span, span.flaw
        elif missing > 0:
            yield span, f"{missing} bytes are missing before the next segment"


def _walk(
    read: Read, spans: Sequence[Span], log_seed: int, scan: Callable[[Span, int], Iterator[T]]
) -> Iterator[T | Problem]:
    for span in spans:
        place: int | None = span.base
        if span.flaw:
            yield Problem(span.base, "header", span.flaw, span.end)
            place = None
        while place is not None:
            problem: Problem | None = None
            for found in scan(span, place):
                if isinstance(found, Problem):
                    problem = found
                yield found
            if problem is None or problem.kind == "zeros":
                break
            place = resync(read, span.base, span.size, log_seed, problem.resume)
        behind = span.base + span.size
        if behind < span.end:
            reason = f"the file ends here, but the next one begins at {span.end}"
            yield Problem(behind, "short", reason, span.end)


def _read_start(read: Read, segment: Segment) -> SegmentStart | None:
    """The first record of a segment if its batch is intact under the id that it says itself."""
    try:
        batch = parse(read(segment.base, _HEAD_BYTES))
        if batch.kind != Kind.SEGMENT_START:
            return None
        verify_producer(batch)
        (record,) = read_records(SegmentStart, batch)
        check(batch, record.base, seed(record.log_id))
    except (OSError, BatchError, ValueError):
        # What is wrong with it is told by the scan that comes to this place.
        return None
    return record


def _flaw(segment: Segment, start: SegmentStart | None, log_id: bytes | None) -> str:
    if start is None:
        return ""
    if start.log_id != log_id:
        return f"it belongs to another log ({start.log_id.hex()})"
    if start.base != segment.base:
        return f"its first batch belongs to position {start.base}, which its name doesn't say"
    return ""
