"""What `mq cleanup` and the broker say to each other."""

from __future__ import annotations

import msgspec

from cometmq.protocol import UInt

CLEANUP_RUN = 1000
CLEANUP_STATUS = 1001


class RunCleanup(msgspec.Struct, array_like=True):
    """Do now what is done at the time of the day for it."""

    dry_run: bool = False
    """Only say what would go."""
    force: bool = False
    """The wall clock is right, whatever steps it made."""


class Gone(msgspec.Struct, array_like=True, frozen=True):
    """A segment that was deleted, or would be."""

    base: UInt
    size_bytes: UInt
    reason: str
    """`age`, `space` or `forced`."""
    newest_ms: int | None = None
    """The newest store time of its messages."""
    gone_ms: int = 0
    """When it went."""


class Raised(msgspec.Struct, array_like=True, frozen=True):
    """A queue whose min offset was raised by its topic's retention, or would be."""

    topic: str
    queue: UInt
    min_offset: UInt


class CleanupDone(msgspec.Struct, array_like=True):
    """The reply to a run."""

    gone: list[Gone] = []
    raised: list[Raised] = []
    clock_in_doubt_ms: UInt = 0
    """How far the wall clock is ahead of the time that ages were counted by."""


class AskStatus(msgspec.Struct, array_like=True):
    """How is the disk, and what was done about it?"""


class CleanupStatus(msgspec.Struct, array_like=True):
    """The reply to it."""

    bytes_total: UInt
    bytes_free: UInt
    used_percent: float
    space_percent: float
    forced_percent: float
    refuse_percent: float
    mark: str
    """The highest one passed: empty, `space`, `forced` or `refuse`."""
    full_in_s: float | None = None
    refused: UInt = 0
    """Sends refused since the start."""
    refused_s: float = 0.0
    """For how long altogether."""
    last_gone_ms: int = 0
    """When a segment was deleted last, ms since 1970; 0: not since the start."""
    deleted: dict[str, tuple[int, int]] = {}
    """Segments and bytes deleted since the start, by reason."""
    last: list[Gone] = []
    """The last ones that went, newest last."""
    clock_in_doubt_ms: UInt = 0
    clock_confirmed_in_ms: UInt = 0
    """When the wall clock is believed again."""
    stuck: str = ""
    """What can't be deleted, and why; empty when nothing is."""
    expired: UInt = 0
    """Messages that topics' own retention has let expire since the start."""
