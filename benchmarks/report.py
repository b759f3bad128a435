"""A run as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.figures import LATENCY_WORKLOADS, Figures, Row, Spread, extra, p50, p99, rate
from benchmarks.results import Result, Run
from benchmarks.steps import Step
from benchmarks.targets import verdicts

DISTURBED_CORES = 0.25
"""Foreign work above this makes a repetition count as disturbed: still in, but said."""

USAGE = (
    "broker CPU s/M",
    "client CPU s/M",
    "RssAnon MiB",
    "RssFile MiB",
    "written/body",
    "syncs/1,000",
    "runs",
)


def line(result: Result) -> str:
    """A result in a line, for who watches."""
    name = f"{result.repetition} {result.step.name:28} {result.peer} {result.variant}".rstrip()
    if result.error:
        return f"{name}: FAILED: {result.error}"
    words = [f"{result.rate:,.0f}/s"] if result.rate is not None else []
    if result.latency:
        words.append(f"p50 {result.latency.p50_us:,.0f} us, p99 {result.latency.p99_us:,.0f} us")
    words += [f"{key} {value:,.4g}" for key, value in result.extra.items()]
    return f"{name}: {', '.join(words)}"


def markdown(run: Run) -> str:
    """The whole report: targets, limits, then a table for each workload and class."""
    figures = Figures(run)
    parts = ["# CometMQ and its peers", "\n".join(f"- {note}" for note in run.notes)]
    parts += ["## Targets", _targets(figures), "## Limits of the machine", _limits(figures)]
    groups: dict[tuple[str, str], list[Step]] = {}
    for step in figures.steps():
        groups.setdefault((step.workload, step.level), []).append(step)
    for (workload, level), steps in groups.items():
        rows = [row for step in steps for row in figures.of_step(step.name)]
        parts += [f"## {workload}, class {level}", _rows(figures, workload, rows)]
        if bound := figures.bound(steps[0]):
            parts.append(f"Limit: {bound[1]}, {bound[0]:,.0f}.")
    if failures := list(_failures(figures)):
        parts += ["## What failed", "\n".join(failures)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _targets(figures: Figures) -> str:
    rows = []
    for verdict in verdicts(figures):
        sign, met = "≥" if verdict.at_least else "≤", {True: "yes", False: "no", None: ""}
        rows.append(
            [
                verdict.work,
                f"{sign} {verdict.wanted}",
                _number(verdict.value),
                met[verdict.met],
                verdict.measured,
            ]
        )
    return _table(["work", "target", "measured", "met", "medians"], rows)


def _limits(figures: Figures) -> str:
    names = list(dict.fromkeys((limit.limit, limit.unit) for limit in figures.run.limits))
    rows = [[name, unit, *_three(figures.limit(name))] for name, unit in names]
    return _table(["limit", "unit", "min", "median", "max"], rows)


def _rows(figures: Figures, workload: str, rows: Sequence[Row]) -> str:
    if workload == "idle":
        return _idle(rows)
    slow = workload in LATENCY_WORKLOADS
    head = ["step", "peer"]
    head += ["p50 us min", "median", "max", "p99 us", "p99.9 us"] if slow else []
    head += [] if slow else ["msgs/s min", "median", "max", "MB/s"]
    if workload == "backlog":
        head += ["of alone", "reader msgs/s"]
    head += ["by best peer", "by limit", *USAGE]
    return _table(head, [_row(figures, row, slow) for row in rows])


def _row(figures: Figures, row: Row, slow: bool) -> list[str]:
    cells = [row.step.name, row.title]
    if slow:
        cells += _three(row.spread(p50))
        cells += [_number(row.middle(p99)), _number(row.middle(_p999))]
    else:
        speed = row.middle(rate)
        cells += _three(row.spread(rate))
        cells.append("" if speed is None else _number(speed * row.step.size_bytes / 1e6))
    if row.step.workload == "backlog":
        cells += [_number(row.middle(extra(name))) for name in ("share_of_alone", "read_rate")]
    cells += [_number(figures.ratio(row)), _number(figures.share_of_limit(row))]
    return cells + _usage(row)


def _usage(row: Row) -> list[str]:
    """What it cost: the columns of `USAGE`."""
    disturbed = sum(result.foreign_cores > DISTURBED_CORES for result in row.good)
    runs = f"{len(row.good)} of {len(row.results)}"
    return [
        _number(row.middle(lambda result: result.broker_cpu_s_per_million)),
        _number(row.middle(lambda result: result.client_cpu_s_per_million)),
        _number(row.middle(lambda result: result.rss_anon_mib)),
        _number(row.middle(lambda result: result.rss_file_mib)),
        _number(row.middle(lambda result: result.written_per_body_byte)),
        _number(row.middle(lambda result: result.syncs_per_thousand)),
        f"{runs}, {disturbed} disturbed" if disturbed else runs,
    ]


def _idle(rows: Sequence[Row]) -> str:
    head = ["step", "peer", "consumers", "added RssAnon MiB", "share of a core", "runs"]
    return _table(
        head,
        [
            [
                row.step.name,
                row.title,
                str(row.step.count),
                _number(row.middle(extra("added_rss_anon_mib"))),
                _number(row.middle(extra("broker_cores"))),
                f"{len(row.good)} of {len(row.results)}",
            ]
            for row in rows
        ],
    )


def _failures(figures: Figures) -> Iterator[str]:
    for row in figures.rows:
        for error in dict.fromkeys(result.error for result in row.results if result.error):
            yield f"- {row.step.name}, {row.title}: {' '.join(error.split())}"


def _p999(result: Result) -> float | None:
    return result.latency.p999_us if result.latency else None


def _three(found: Spread | None) -> list[str]:
    if found is None:
        return ["", "", ""]
    return [_number(found.low), _number(found.middle), _number(found.high)]


def _number(value: float | None) -> str:
    """At most three digits behind the point, and no more than make sense."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
