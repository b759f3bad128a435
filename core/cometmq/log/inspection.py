"""Looking at the files of a log without changing them: what is there, and what is not as it should.

Offline and read-only: no lock, no repair. Judges bytes by the same scan as a start does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from cometmq.batch import Batch, Kind, seed
from cometmq.environment import File, Files
from cometmq.errors import BatchError, LogError
from cometmq.interfaces import BASE_MAX, Segment
from cometmq.log.checkpoint import read_checkpoint
from cometmq.log.kinds import CORE_KINDS
from cometmq.log.scan import WINDOW_BYTES, Problem
from cometmq.log.segment_index import SUFFIX, BadIndex, SealedSegment
from cometmq.log.spans import Span, find_spans, walk
from cometmq.log.state import State

_DIGITS = 20
_SEGMENT = ".seg"
START_BYTES = 512
"""Less than what a start writes before anybody can send."""
_KNOWN_FILES = ("reserve",)


class Finding(msgspec.Struct, frozen=True):
    """Something that is not intact."""

    kind: str
    """`damage`, `torn`, `name`, `missing`, `checkpoint`, `index` or `offsets`."""
    file: str
    position: int
    """Byte in the log."""
    text: str
    """A sentence: what is wrong and what to do."""


class SegmentReport(msgspec.Struct):
    """One segment file."""

    file: str
    base: int
    size: int
    """Bytes of the file."""
    end: int
    """Position behind its last intact batch."""
    checkpoint: str
    """`whole` or `not whole`."""
    index: str
    """`ok`, `missing`, `bad`, or `open` for the newest segment, which needs none."""
    prepared: int = 0
    """Zero bytes behind the last batch, set aside for later ones."""
    batches: dict[str, int] = {}
    """Number of intact batches by kind."""
    messages: int = 0
    epochs: list[int] = []
    oldest_ms: int = 0
    """Store times of its messages, ms since 1970; 0 without messages."""
    newest_ms: int = 0


class LogReport(msgspec.Struct):
    """What `mq log inspect` says."""

    folder: str
    log_id: str = ""
    """In hex; empty if no segment says one."""
    start: int = 0
    """What was trimmed ends here."""
    end: int = 0
    """Position behind the last intact batch."""
    segments: list[SegmentReport] = []
    findings: list[Finding] = []
    notes: list[str] = []
    """What is worth a look, and yet no damage."""

    @property
    def intact(self) -> bool:
        """Nothing is missing, damaged or torn."""
        return not self.findings


OnBatch = Callable[[Batch, str], None]
"""Called with each intact batch and the name of its kind."""


def inspect_log(files: Files, folder: str, on_batch: OnBatch | None = None) -> LogReport:
    """Look through the log of a data folder (or the `log` folder in it). Raises LogError when there
    is no log, OSError when it can't be read."""
    inspection = _Inspection(files, _log_folder(files, folder))
    try:
        inspection.run(on_batch)
    finally:
        inspection.close()
    return inspection.report


def _log_folder(files: Files, folder: str) -> str:
    for candidate in (f"{folder}/log", folder):
        if any(name.endswith(_SEGMENT) for name in files.list(candidate)):
            return candidate
    raise LogError(
        f"{folder} has no log (files named POSITION{_SEGMENT}, in it or in its `log` folder);"
        " name the data folder of a broker"
    )


class _Inspection:
    def __init__(self, files: Files, folder: str) -> None:
        self.report = LogReport(folder)
        self._files = files
        self._folder = folder
        self._open: dict[int, File] = {}
        self._state = State(())
        self._problems: list[tuple[Span, Problem]] = []
        self._proven = 0

    def run(self, on_batch: OnBatch | None) -> None:
        log_id, spans = find_spans(self._read, self._in_use(self._segments()))
        report = self.report
        report.end = spans[0].base if spans else 0
        if log_id is None:
            self._nameless(spans)
            return
        report.log_id = log_id.hex()
        log_seed = seed(log_id)
        report.segments = [self._describe(span, spans, log_seed) for span in spans]
        self._go_through(spans, log_seed, on_batch)
        for span, problem in self._problems:
            self._judge(span, problem, spans[-1])
        self._look_below(spans)

    def close(self) -> None:
        for file in self._open.values():
            file.close()

    def _read(self, position: int, size: int) -> bytes:
        base = max(base for base in self._open if base <= position)
        return self._open[base].read(position - base, size)

    def _segments(self) -> Iterator[Segment]:
        """The segment files, oldest first; opens them and notes the others."""
        names = self._files.list(self._folder)
        for name in names:
            path = f"{self._folder}/{name}"
            stem, _, suffix = name.partition(".")
            named = len(stem) == _DIGITS and stem.isdecimal() and f".{suffix}" == _SEGMENT
            if named and int(stem) > BASE_MAX:
                text = f"no log gets as far as the name of {path}; move the file away"
                self._find("name", path, 0, text)
            elif named:
                file = self._open[int(stem)] = self._files.open_for_reading(path)
                yield Segment(int(stem), file.size(), path)
            elif name.endswith(_SEGMENT):
                text = f"the name of {path} is no position of {_DIGITS} digits; move the file away"
                self._find("name", path, 0, text)
            elif name not in _KNOWN_FILES and not (
                suffix == SUFFIX and f"{stem}{_SEGMENT}" in names
            ):
                self.report.notes.append(f"{path} is no part of the log")

    def _in_use(self, segments: Iterator[Segment]) -> list[Segment]:
        """All but those that the disk refused when they were made, and whose files stayed: the
        log goes on in the one before."""
        kept: list[Segment] = []
        for segment in segments:
            at = segment.base - kept[-1].base if kept else 0
            if (
                kept
                and self._only_zeros(segment.base, 0, segment.size)
                and not self._only_zeros(kept[-1].base, at, kept[-1].size)
            ):
                self._open.pop(segment.base).close()
                text = "was prepared, but the log went on in the one before; the next start removes"
                self.report.notes.append(f"{segment.name} {text} it")
            else:
                kept.append(segment)
        return kept

    def _nameless(self, spans: Sequence[Span]) -> None:
        """No segment begins with an intact batch, so it can't be told which log this is."""
        for span in spans:
            if self._only_zeros(span.base, 0, span.segment.size):
                self.report.notes.append(f"{span.segment.name} was prepared, but never written to")
                continue
            size = span.segment.size
            if len(spans) == 1 and not span.base and self._only_zeros(0, START_BYTES, size):
                text = f"{span.segment.name} is what a first start had written when it was cut off"
                self._find("name", span.segment.name, 0, f"{text}: no message was ever in it")
                continue
            text = (
                f"{span.segment.name} does not begin with an intact segment-start batch, and no"
                " other segment tells which log this is; restore it from a copy"
            )
            self._find("damage", span.segment.name, span.base, text)

    def _describe(self, span: Span, spans: Sequence[Span], log_seed: int) -> SegmentReport:
        segment = span.segment
        checkpoint = None
        if not span.flaw:
            checkpoint = read_checkpoint(self._read, segment, span.size, log_seed)
        if checkpoint is not None:
            for shard in checkpoint.slices:
                self._state.load(shard.view, shard.data)
        report = SegmentReport(
            file=segment.name,
            base=span.base,
            size=segment.size,
            end=span.base,
            checkpoint="not whole" if checkpoint is None else "whole",
            index="open" if span is spans[-1] else self._index(span, log_seed),
        )
        surplus = segment.size - span.size
        if surplus and self._only_zeros(span.base, span.size, segment.size):
            report.prepared = surplus
        elif surplus:
            text = (
                f"{segment.name} is {surplus} bytes longer than the next segment's name allows, and"
                " they are no zeros; keep a copy of the folder before the next start"
            )
            self._find("damage", segment.name, span.end, text)
        return report

    def _index(self, span: Span, log_seed: int) -> str:
        path = f"{span.segment.name.removesuffix(_SEGMENT)}.{SUFFIX}"
        if not self._files.exists(path):
            return "missing"
        try:
            SealedSegment(self._files.read_file(path), span.base, span.end, log_seed)
        except BadIndex as error:
            text = f"{path} is no index of its segment ({error}); delete it, it is made again"
            self._find("index", path, span.base, text)
            return "bad"
        return "ok"

    def _go_through(self, spans: Sequence[Span], log_seed: int, on_batch: OnBatch | None) -> None:
        number = 0
        for found in walk(self._read, spans, log_seed):
            while found.position >= spans[number].end:
                number += 1
            report = self.report.segments[number]
            if isinstance(found, Batch):
                self._count(report, found, on_batch)
            elif found.kind == "zeros" and number == len(spans) - 1:
                report.prepared = found.resume - found.position
            else:
                self._problems.append((spans[number], found))

    def _count(self, report: SegmentReport, batch: Batch, on_batch: OnBatch | None) -> None:
        kind = batch.kind
        if kind == Kind.MESSAGES:
            report.messages += batch.count
            report.oldest_ms = min(report.oldest_ms or batch.store_time, batch.store_time)
            report.newest_ms = max(report.newest_ms, batch.store_time)
        else:
            self._apply(report, batch)
        name = self._kind_name(kind)
        report.batches[name] = report.batches.get(name, 0) + 1
        if batch.epoch not in report.epochs:
            report.epochs.append(batch.epoch)
        report.end = self.report.end = batch.position + batch.length
        self._proven = max(self._proven, batch.synced_before)
        if on_batch is not None:
            on_batch(batch, name)

    def _apply(self, report: SegmentReport, batch: Batch) -> None:
        try:
            self._state.apply(batch)
        except BatchError as error:
            text = f"{error}; its CRCs are right, so it was written like this: please report it"
            self._find("damage", report.file, batch.position, text)

    def _kind_name(self, kind: int) -> str:
        for name, number in CORE_KINDS.items():
            if number == kind:
                return name
        names = [entry.name for entry in self._state.kinds.live() if entry.number == kind]
        return names[0] if names else f"kind {kind}"

    def _judge(self, span: Span, problem: Problem, last: Span) -> None:
        """Torn, or damaged: a later batch says that this place was on disk."""
        file, position = span.segment.name, problem.position
        place = f"{file}, position {position}: {problem.reason}"
        if span.flaw:
            text = f"{file} is no part of this log: {span.flaw}; move it away or restore it"
            self._find("damage", file, position, text)
        elif problem.kind == "newer":
            text = f"{place}; use the newer release that wrote it, this one reads what is before it"
            self._find("damage", file, position, text)
        elif position < self._proven or span is not last:
            text = f"{place}; this was whole once: restore the file from a copy or a replica"
            self._find("damage", file, position, text)
        else:
            size = span.base + span.segment.size - position
            text = f"{place}; a torn end, the next start cuts {size} bytes off and keeps them"
            self._find("torn", file, position, text)

    def _look_below(self, spans: Sequence[Span]) -> None:
        """What lies before the oldest segment, and whether the state can be told without it."""
        report = self.report
        report.start = self._state.log_start.position
        oldest = spans[0]
        if oldest.base > report.start:
            text = (
                f"the segments between positions {report.start} and {oldest.base} are gone, and no"
                " trim says so; what they held is lost unless there is a copy"
            )
            self._find("missing", oldest.segment.name, report.start, text)
        elif oldest.base < report.start:
            report.notes.append(
                f"the log was trimmed at position {report.start}; the next start removes the"
                " segments before it"
            )
        if oldest.base and all(segment.checkpoint != "whole" for segment in report.segments):
            text = (
                "no segment has a whole head checkpoint and older ones are gone, so topics and"
                " offsets can't be told; restore the older segments from a copy"
            )
            self._find("checkpoint", oldest.segment.name, oldest.base, text)

    def _only_zeros(self, base: int, at: int, size: int) -> bool:
        """Whether the bytes from `at` up to `size` of a segment's file are zeros."""
        while at < size:
            window = self._open[base].read(at, min(WINDOW_BYTES, size - at))
            if not window or window != bytes(len(window)):
                return False
            at += len(window)
        return True

    def _find(self, kind: str, file: str, position: int, text: str) -> None:
        self.report.findings.append(Finding(kind, file, position, text))
