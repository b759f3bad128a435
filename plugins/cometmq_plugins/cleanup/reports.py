"""What cleanup says of itself: for `mq info`, `mq cleanup status`, and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from cometmq.interfaces import Metric
from cometmq_plugins.cleanup.messages import CleanupStatus


def in_words(seconds: float) -> str:
    """A length of time, roughly: `40 s`, `6 h`, `12 d`."""
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def status_lines(status: CleanupStatus) -> dict[str, str]:
    """The lines of `mq info`."""
    marks = "/".join(
        f"{percent:g}"
        for percent in (status.space_percent, status.forced_percent, status.refuse_percent)
    )
    used = f"{status.used_percent:.1f} %" if status.bytes_total else "not known how much"
    disk = f"{used} used, marks {marks} %"
    if status.mark:
        disk += f", past the mark {status.mark}"
    if status.full_in_s is not None:
        disk += f", full in {in_words(status.full_in_s)} at this rate"
    lines = {"disk": disk, "cleanup": _done(status)}
    if status.expired:
        many = f"{status.expired:,} message" + ("" if status.expired == 1 else "s")
        lines["retention"] = f"{many} expired since the start by the retention of topics"
    if status.stuck:
        lines["stuck"] = status.stuck
    if status.refused:
        lines["refused"] = f"{status.refused} sends, for {in_words(status.refused_s)} altogether"
    if status.clock_in_doubt_ms:
        ahead = in_words(status.clock_in_doubt_ms / 1000)
        wait = in_words(status.clock_confirmed_in_ms / 1000)
        lines["clock"] = (
            f"{ahead} ahead of what is believed; ages count by it in {wait}, or after "
            "`mq cleanup run --force`"
        )
    return lines


def metrics(status: CleanupStatus) -> Iterator[Metric]:
    """The numbers."""
    if status.bytes_total:
        text = "Of the log's file system."
        yield Metric("disk_used_percent", text, "gauge", status.used_percent)
    if status.full_in_s is not None:
        text = "Until the log's file system is full, at the rate of late."
        yield Metric("disk_full_in_seconds", text, "gauge", status.full_in_s)
    yield Metric(
        "disk_sends_refused", "Sends refused because the disk is full.", "counter", status.refused
    )
    yield Metric(
        "disk_refusing_seconds", "How long sends were refused.", "counter", status.refused_s
    )
    for reason, (segments, size_bytes) in status.deleted.items():
        labels = {"reason": reason}
        yield Metric("segments_deleted", "Deleted by cleanup.", "counter", segments, labels)
        yield Metric("segment_bytes_deleted", "Deleted by cleanup.", "counter", size_bytes, labels)
    yield Metric(
        "deletion_stuck",
        "1 while a file of the log can't be deleted, else 0.",
        "gauge",
        int(bool(status.stuck)),
    )
    yield Metric(
        "clock_in_doubt_ms",
        "How far the wall clock is ahead of what is believed.",
        "gauge",
        status.clock_in_doubt_ms,
    )


def _done(status: CleanupStatus) -> str:
    total = {reason: counts for reason, counts in status.deleted.items() if counts[0]}
    if not total:
        return "nothing deleted since the start"
    counts = ", ".join(
        f"{segments} by {reason} ({size_bytes / 1e6:,.1f} MB)"
        for reason, (segments, size_bytes) in total.items()
    )
    at = datetime.fromtimestamp(status.last_gone_ms / 1000, UTC)
    return f"segments deleted since the start: {counts}; last at {at:%Y-%m-%d %H:%M:%S} UTC"
