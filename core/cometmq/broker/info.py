"""What the broker says of itself to people: the lines at its start, its plugins, its numbers."""

from __future__ import annotations

from collections.abc import Iterable

from cometmq.interfaces import Metric
from cometmq.log import RecoveryReport
from cometmq.plugins import Composition
from cometmq.version import __version__


def plugin_rows(composition: Composition) -> list[dict[str, str]]:
    """One row a plugin, in order, with the calls and errors of its hooks."""
    counters = composition.counters()
    rows = []
    for plugin in composition.plugins:
        counts = counters[plugin.name]
        rows.append(
            {
                "name": plugin.name,
                "version": plugin.version,
                "distribution": plugin.distribution,
                "source": plugin.source,
                "calls": ", ".join(f"{hook} {calls}" for hook, (calls, _) in counts.items()),
                "errors": str(sum(errors for _, errors in counts.values())),
            }
        )
    return rows


def plugin_metrics(composition: Composition) -> list[Metric]:
    """Calls and errors of every hook of every plugin."""
    found: list[Metric] = []
    for plugin, hooks in composition.counters().items():
        for hook, (calls, errors) in hooks.items():
            labels = {"plugin": plugin, "hook": hook}
            found.append(Metric("plugin_calls", "Calls of a hook.", "counter", calls, labels))
            found.append(Metric("plugin_errors", "Of them, failed.", "counter", errors, labels))
    return found


def metric_values(metrics: Iterable[Metric]) -> dict[str, float]:
    """Numbers by name, labels in braces."""
    return {_full_name(metric): metric.value for metric in metrics}


def status_lines(composition: Composition) -> dict[str, str]:
    """What the plugins say of themselves, a line each; a later one's label wins."""
    lines: dict[str, str] = {}
    for _, contributed in composition.collect_sound("status"):
        lines.update(contributed)
    return lines


def banner_lines(
    name: str,
    addresses: Iterable[str],
    data: str,
    persistent: bool,
    composition: Composition,
    level: str,
    could_lose: str,
    report: RecoveryReport,
) -> list[str]:
    """What `mq run` prints: who, where, what is in it, what a power cut could take, and what the
    start found and did."""
    lines = [
        f"CometMQ {__version__}, name {name}",
        f"listening on {', '.join(addresses)}",
        f"data in {data}" if persistent else "data in memory only",
        f"plugins {', '.join(plugin.name for plugin in composition.plugins if plugin.hooks)}",
        f"level {level}: {could_lose}",
    ]
    return [*lines, *recovery_lines(report)]


def recovery_lines(report: RecoveryReport) -> list[str]:
    """What a start found that is not as it should be, and what it did about it."""
    lines = [
        f"cut a torn tail of {cut.size} bytes at position {cut.position} ({cut.reason}); "
        + (f"the bytes are kept in {cut.kept}" if cut.kept else "it held nothing but zeros")
        for cut in report.cuts
    ]
    served = "all others are served"
    if report.in_doubt:
        served = "but at the end of a queue they may look as if they had never been there"
    lines += [
        f"DAMAGE at position {damage.position} of {damage.file}: {damage.reason}; the messages "
        f"there answer DAMAGED, {served}"
        for damage in report.damage
    ]
    if report.missing_below:
        lines.append(
            f"segments before position {report.missing_below} are missing, though nothing was "
            "trimmed there; their messages answer EXPIRED"
        )
    if report.in_doubt:
        lines.append(f"READ-ONLY, the log is in doubt: {report.in_doubt}")
    return lines


def _full_name(metric: Metric) -> str:
    if not metric.labels:
        return metric.name
    labels = ",".join(f'{label}="{value}"' for label, value in sorted(metric.labels.items()))
    return f"{metric.name}{{{labels}}}"
