"""What the rules say, as functions of facts alone: no clock, no disk, no log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from cometmq_plugins.cleanup.options import CleanupOptions

Mark = Literal["", "space", "forced", "refuse"]
Reason = Literal["age", "space", "forced"]
"""Why a segment goes: it is its time; it is old and the disk is rather full; the disk is full."""

HOUR_MS = 3_600_000


class SegmentFacts(NamedTuple):
    """A sealed segment as the rules see it."""

    base: int
    end: int
    """Position behind its last byte, where the next one begins."""
    newest_ms: int | None
    """The newest store time of its messages; None without any."""


def mark_of(used_percent: float, options: CleanupOptions) -> Mark:
    """The highest mark that a disk this full has passed."""
    if used_percent >= options.refuse_percent:
        return "refuse"
    if used_percent >= options.forced_percent:
        return "forced"
    return "space" if used_percent > options.space_percent else ""


def worth_closing(
    bytes_total: int, bytes_free: int, file_bytes: int, data_bytes: int, options: CleanupOptions
) -> bool:
    """Whether the last segment that is left is to be closed, so that it can go: sends are refused
    because of it, so it would never close by itself.

    Of its file of `file_bytes`, `data_bytes` came after its head, which the next one gets too. It
    is closed only if the disk is then below the mark of refusals (else its messages would go for
    nothing), and if most of its file is data (else the next file would be as large).
    """
    then = used_percent(bytes_total, bytes_free + data_bytes)
    now = used_percent(bytes_total, bytes_free)
    return then < options.refuse_percent <= now and 2 * data_bytes > file_bytes


def used_percent(bytes_total: int, bytes_free: int) -> float:
    """0 to 100; a disk of no size is full."""
    return 100.0 * (bytes_total - bytes_free) / bytes_total if bytes_total else 100.0


def is_old(segments: Sequence[SegmentFacts], now_ms: int, max_age_ms: float) -> bool:
    """Whether the first of these segments (oldest first) is too old.

    One without messages is old from the beginning: nobody misses it, and each start leaves one.
    Else age counts from the newest store time that is not in the future. Where a segment has only
    such as are still to come, it is as old as the one behind it, which is younger; and the one
    that is written to is always young.
    """
    if segments and segments[0].newest_ms is None:
        return True
    for segment in segments:
        if segment.newest_ms is not None and segment.newest_ms <= now_ms:
            return now_ms - segment.newest_ms > max_age_ms
    return False


def reason_to_go(mark: Mark, *, due: bool, old: bool, held: bool) -> Reason | None:
    """Why the oldest sealed segment goes now, or None if it stays.

    `due`: it is the time of the day for it; `old`: see `is_old`; `held`: a topic's own retention
    still wants something of it, which only a full disk overrules.
    """
    if mark in ("forced", "refuse"):
        return "forced"
    if old and not held:
        if due:
            return "age"
        if mark == "space":
            return "space"
    return None
