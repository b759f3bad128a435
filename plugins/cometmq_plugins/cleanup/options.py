"""Options of `[plugin.cleanup]`, checked as a whole."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import msgspec

from cometmq.broker.cron import Cron
from cometmq.errors import ConfigError

_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)

Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
Hours = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0.01, le=1_000_000_000)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=86_400_000)]


class CleanupOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `[plugin.cleanup]`. Percentages are of the file system that holds the log."""

    max_age_hours: Hours = 72.0
    """A segment whose newest message is older than this may go."""
    at: str = "0 4 * * *"
    """When such segments go: a cron line of five fields."""
    timezone: str = "local"
    """Whose wall time `at` means: a name as in `Europe/Berlin`, or `local`."""
    space_percent: Percent = 75.0
    """Fuller than this, such segments go at any time."""
    forced_percent: Percent = 85.0
    """As full as this, the oldest segments go whatever their age, until the disk is below."""
    refuse_percent: Percent = 90.0
    """As full as this, sends are refused until the disk is below."""
    retry_after_ms: Milliseconds = 1000
    """When a refused sender is to try again."""
    check_interval_s: Seconds = 1.0
    """How often the disk is looked at (oftener while it fills fast)."""
    retention_interval_s: Seconds = 10.0
    """How often topics with a retention of their own are looked at."""
    pause_ms: Milliseconds = 2000
    """Between one segment and the next that is deleted; a twentieth of it once the disk is as full
    as `forced_percent`."""
    clock_confirm_hours: Hours = 24.0
    """How long the wall clock must go on evenly after a step forward before ages count by it."""

    def __post_init__(self) -> None:
        if not self.space_percent <= self.forced_percent <= self.refuse_percent:
            raise ValueError(
                f"space_percent ({self.space_percent:g}), forced_percent "
                f"({self.forced_percent:g}) and refuse_percent ({self.refuse_percent:g}) must not "
                "fall: sends would be refused, or young segments deleted, before old ones go"
            )
        try:
            due = Cron(self.at, self.timezone).next(_ANY_TIME)
        except ConfigError as error:
            raise ValueError(f"at: {error}") from None
        if due is None:
            raise ValueError(
                f"at: cron is {self.at!r}, a date that no year has, so old segments would never go"
            )
