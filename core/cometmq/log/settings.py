"""Settings of the log, and what a start reports."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cometmq.interfaces import Level
from cometmq.log.records import ClockAhead


class LogSettings(msgspec.Struct, frozen=True):
    """How the log is kept; every value has a default that suits a server."""

    segment_bytes: int = 1 << 30
    """A segment closes at this size; the drain that crosses it is still written to it."""
    segment_batches: int = 500_000
    """A segment closes at this many batches, once it is 20 times its head checkpoint."""
    segment_age_s: float = 86_400.0
    """A segment closes this long after its first message."""
    max_unsynced_bytes: int = 256 << 20
    """Beyond this, sends of level `memory` wait for the disk too."""
    mark_idle_ms: int = 100
    """A mark is written when nothing came for this long after a sync."""
    checkpoint_step_bytes: int = 64 << 10
    """About how much of a checkpoint is encoded at once."""
    background_ms: int = 5
    """How often an idle log does a step of its checkpoint."""
    level: Level | None = None
    """The broker's default level; None leaves it to the flush policy."""
    drop_state: Sequence[str] = ()
    """Names of absent state views whose state is given up, for good."""


class Cut(msgspec.Struct, frozen=True):
    """A torn tail that was cut off."""

    position: int
    size: int
    """Bytes in all files behind the position, prepared zeros included."""
    kept: str
    """Where the bytes were kept."""
    reason: str


class Damage(msgspec.Struct, frozen=True):
    """Bytes that were whole once and are not any more."""

    position: int
    file: str
    reason: str


class RecoveryReport(msgspec.Struct, frozen=True):
    """What a start found, and what it did about it."""

    epoch: int
    replayed_batches: int = 0
    replayed_from: int = 0
    """Position of the segment whose head checkpoint was loaded."""
    cuts: Sequence[Cut] = ()
    damage: Sequence[Damage] = ()
    missing_below: int = 0
    """Segments before this position are gone without a trim; 0 when nothing is missing."""
    in_doubt: str = ""
    """Why the log is read-only, and what to do; empty when it is not."""
    rewritten_bytes: int = 0
    """How much was not provably on disk and was written again."""
    trimmed_segments: int = 0
    """Segments of a trim that had been begun and was finished now."""
    store_time: int = 0
    """That of the last batch found, ms since 1970: about when the log was last in use; 0 when there
    was none."""
    clock: ClockAhead = ClockAhead()
    """What the log said of the clock that this was stamped by."""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Where a batch went."""

    position: int
    end: int
    """Position behind it: what a sender waits for."""
    base_offset: int
    store_time: int
    """Milliseconds since 1970."""
