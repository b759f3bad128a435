"""What a run leaves behind: one JSON line per measured step, limit or failure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from benchmarks.steps import Step


class Latency(msgspec.Struct):
    """Microseconds; `due_*` count from when a paced message was due, not from when it left."""

    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    due_p50_us: float | None = None
    due_p99_us: float | None = None


class Work(msgspec.Struct):
    """What one client process reports: its part of the step, on the machine's monotonic clock."""

    count: int
    start_ns: int
    end_ns: int
    cpu_s: float
    latency: Latency | None = None


class Result(msgspec.Struct):
    """One step on one peer in one repetition. A failure has `error` and no figures."""

    step: Step
    peer: str
    variant: str
    repetition: int
    rate: float | None = None
    """Messages a second: acked, or received."""
    latency: Latency | None = None
    broker_cpu_s_per_million: float | None = None
    client_cpu_s_per_million: float | None = None
    rss_anon_mib: float | None = None
    """The broker's anonymous memory at the end of the step; mapped and cached files are apart."""
    rss_file_mib: float | None = None
    written_per_body_byte: float | None = None
    """Bytes that the broker gave to its disk for each byte of body published."""
    syncs_per_thousand: float | None = None
    """fsync, fdatasync, msync and sync_file_range calls for each 1,000 messages published."""
    foreign_cores: float = 0.0
    """Cores that neither the broker nor the clients used: other programs, and the kernel's own."""
    extra: dict[str, float] = {}
    """What only this workload has, such as `alone_rate` of a backlog."""
    error: str = ""


class Limit(msgspec.Struct):
    """One limit of the machine in one repetition; `unit` is what `value` is in."""

    limit: str
    repetition: int
    value: float
    unit: str


class Run(msgspec.Struct):
    """All that a run has measured."""

    results: list[Result] = []
    limits: list[Limit] = []
    notes: list[str] = []


class Journal:
    """Appends every result to a file at once, so that a run that is stopped has lost nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = Run()

    def result(self, result: Result) -> None:
        """Keep a result."""
        self.run.results.append(result)
        self._write({"result": result})

    def limits(self, limits: Iterable[Limit]) -> None:
        """Keep limits."""
        for limit in limits:
            self.run.limits.append(limit)
            self._write({"limit": limit})

    def note(self, text: str) -> None:
        """Keep a sentence for the report, such as the version of a peer."""
        self.run.notes.append(text)
        self._write({"note": text})

    def _write(self, line: object) -> None:
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")


class _Line(msgspec.Struct):
    result: Result | None = None
    limit: Limit | None = None
    note: str | None = None


def read(paths: Iterable[Path]) -> Run:
    """What journals hold, taken together, so that runs of parts give one report."""
    run = Run()
    for path in paths:
        for text in path.read_bytes().splitlines():
            line = msgspec.json.decode(text, type=_Line)
            if line.result is not None:
                run.results.append(line.result)
            if line.limit is not None:
                run.limits.append(line.limit)
            if line.note is not None and line.note not in run.notes:
                run.notes.append(line.note)
    return run
