"""Deleting segments: one after the other, oldest first, as the rules say."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

from cometmq.environment import Clock
from cometmq.errors import DiskRefused
from cometmq.interfaces import Segment
from cometmq.log import Log
from cometmq_plugins.cleanup.disk import Disk, DiskWatch
from cometmq_plugins.cleanup.messages import Gone
from cometmq_plugins.cleanup.options import CleanupOptions
from cometmq_plugins.cleanup.retention import Key, Retainer
from cometmq_plugins.cleanup.rules import (
    HOUR_MS,
    Mark,
    Reason,
    SegmentFacts,
    is_old,
    mark_of,
    reason_to_go,
    used_percent,
    worth_closing,
)
from cometmq_plugins.cleanup.trusted_time import TrustedTime

logger = logging.getLogger(__name__)

REMEMBERED = 100
"""Of the segments that went last."""
REASONS: tuple[Reason, ...] = ("age", "space", "forced")
FREED_WITHIN_S = 3.0
"""Longer it is not waited for space to become free."""
PAUSE_MIN_S = 0.001
HURRY = 20
"""So much faster it is deleted while the disk is full."""
READY_AGAIN_S = 0.005
"""How often it is looked whether a segment that was begun can be the log's first."""


class Cleaner:
    """Applies the rules to one log. One run at a time; others wait for it."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        options: CleanupOptions,
        watch: DiskWatch,
        trusted: TrustedTime,
        retainer: Retainer,
        looked: Callable[[], None],
    ) -> None:
        """`looked` hears when the disk was looked at."""
        self._log = log
        self._clock = clock
        self._options = options
        self._watch = watch
        self._trusted = trusted
        self._retainer = retainer
        self._looked = looked
        self._lock = asyncio.Lock()
        self.last: deque[Gone] = deque(maxlen=REMEMBERED)
        self.deleted: dict[str, tuple[int, int]] = {reason: (0, 0) for reason in REASONS}
        """Segments and bytes by reason."""
        self.stuck = ""
        """What can't be deleted, and why; empty when nothing is."""
        self._begun: dict[int, Gone] = {}
        """By base: what is to be said of segments once they are gone."""

    @property
    def busy(self) -> bool:
        """Whether it runs now."""
        return self._lock.locked()

    async def run(self, *, due: bool) -> list[Gone]:
        """Delete what has to go now. `due`: it is the time of the day for old segments. Raises
        LogError, OSError; what was deleted before that is deleted, and with DiskRefused nothing
        more is given up until the files are gone."""
        went: list[Gone] = []
        async with self._lock:
            try:
                if not (self._log.in_doubt or self._log.stopped):
                    await self._deleted(self._log.finish_trim())
            finally:
                disk = self._look()
            if not (due or disk.mark):
                return went
            while not (self._log.in_doubt or self._log.stopped):
                others = self._others(disk)
                removed = await self._remove_oldest(disk, due)
                if not removed:
                    if await self._close_last(disk):
                        continue
                    break
                went.extend(removed)
                disk = await self._pause(disk, others, sum(gone.size_bytes for gone in removed))
        return went

    async def plan(self, expired: Mapping[Key, int]) -> list[Gone]:
        """What a run at the time of the day for it would delete now, once min offsets are raised
        to `expired`."""
        disk, kept_from = self._watch.look(), await self._retainer.wanted_from(expired)
        segments = self._sealed()
        free, planned = disk.bytes_free, list[Gone]()
        for at, segment in enumerate(segments):
            mark = mark_of(used_percent(disk.bytes_total, free), self._options)
            old = await self._is_old(segments[at:], mark, due=True)
            held = kept_from is not None and segment.end > kept_from
            reason = reason_to_go(mark, due=True, old=old, held=held)
            if reason is None:
                break
            planned.append(await self._told(segment, reason))
            free += segment.end - segment.base
        if len(planned) == len(segments) and self._closing_helps(disk.bytes_total, free):
            last = SegmentFacts(self._log.segments()[-1].base, self._log.appended, None)
            planned.append(await self._told(last, "forced"))
        return planned

    async def _deleted(self, deletion: Awaitable[list[Segment]]) -> list[Gone]:
        """Note what a deletion deletes, also of what was begun before; tell of a failure once."""
        try:
            segments = await deletion
        except DiskRefused as error:
            if str(error) != self.stuck:
                self.stuck = str(error)
                logger.error("%s", error)
            raise
        self.stuck = ""
        # What a start before this one left was nobody's here.
        removed = [self._begun.pop(it.base) for it in segments if it.base in self._begun]
        for gone in removed:
            self._note(gone)
        return removed

    async def _remove_oldest(self, disk: Disk, due: bool) -> list[Gone]:
        """Delete the oldest segment if it has to go, or the fewest that can go at once: where a
        crash left a segment without a whole checkpoint, the log can't begin."""
        segments = self._sealed()
        for at, segment in enumerate(segments):
            old = await self._is_old(segments[at:], disk.mark, due=due)
            # Asked each time: in a long run, people alter what is to be kept.
            kept_from = await self._retainer.wanted_from() if old else None
            held = kept_from is not None and segment.end > kept_from
            reason = reason_to_go(disk.mark, due=due, old=old, held=held)
            if reason is None:
                break
            self._begun[segment.base] = await self._told(segment, reason)
            removed = await self._deleted(self._log.trim(segment.end))
            if removed:
                return removed
        return []

    def _closing_helps(self, bytes_total: int, bytes_free: int) -> bool:
        """Whether the segment that is written to, were it the only one, ought to be closed."""
        head = self._log.head_end
        if head is None:
            return False
        file_bytes, data_bytes = self._log.segments()[-1].size, self._log.appended - head
        return worth_closing(bytes_total, bytes_free, file_bytes, data_bytes, self._options)

    async def _close_last(self, disk: Disk) -> bool:
        """Close the last segment that is left, if it has to go; False if not, or if the next one
        is not ready to be the first: then the next run finds two."""
        log, clock = self._log, self._clock
        if len(log.segments()) != 1 or not self._closing_helps(disk.bytes_total, disk.bytes_free):
            return False
        if not log.roll():
            return False
        logger.warning("closed the last segment that was left, so that its space can be freed")
        until_s = clock.monotonic_s() + FREED_WITHIN_S
        while log.head_end is None or log.settled < log.head_end:
            if log.stopped or clock.monotonic_s() >= until_s:
                return False
            await clock.sleep(READY_AGAIN_S)
        return True

    async def _is_old(self, segments: Sequence[SegmentFacts], mark: Mark, *, due: bool) -> bool:
        """Whether the first of these is too old; False where nobody needs to know."""
        if mark in ("forced", "refuse") or not (due or mark):
            return False
        now_ms, known = self._trusted.now_ms(), list[SegmentFacts]()
        for segment in segments:
            newest_ms = await self._log.newest_time(segment.base)
            known.append(segment._replace(newest_ms=newest_ms))
            if newest_ms is not None and newest_ms <= now_ms:
                break
        return is_old(known, now_ms, self._options.max_age_hours * HOUR_MS)

    def _sealed(self) -> list[SegmentFacts]:
        """All but the one that is written to."""
        bases = [segment.base for segment in self._log.segments()]
        return [SegmentFacts(base, end, None) for base, end in zip(bases, bases[1:], strict=False)]

    async def _told(self, segment: SegmentFacts, reason: Reason) -> Gone:
        newest_ms = await self._log.newest_time(segment.base)
        size_bytes = segment.end - segment.base
        return Gone(segment.base, size_bytes, reason, newest_ms, self._clock.wall_ms())

    def _note(self, gone: Gone) -> None:
        count, size_bytes = self.deleted[gone.reason]
        self.deleted[gone.reason] = count + 1, size_bytes + gone.size_bytes
        self.last.append(gone)
        logger.info(
            "deleted the segment at position %d, %d bytes: %s",
            gone.base,
            gone.size_bytes,
            gone.reason,
        )

    async def _pause(self, then: Disk, others_then: int, removed_bytes: int) -> Disk:
        """The pace: the few sends that one deletion delays are rare among those in between. Where
        a file system frees what was deleted only later, the next segment is not to pay for it:
        wait a while until most of `removed_bytes` is not counted as used any more.
        """
        hurry = HURRY if then.mark in ("forced", "refuse") else 1
        pause_s = self._options.pause_ms / 1000 / hurry
        until_s = self._clock.monotonic_s() + FREED_WITHIN_S
        while True:
            await self._clock.sleep(max(pause_s, PAUSE_MIN_S))
            disk = self._look()
            freed = self._others(disk) <= others_then + removed_bytes // 2
            if freed or self._clock.monotonic_s() >= until_s:
                return disk

    def _others(self, disk: Disk) -> int:
        """Bytes in use that are not those of segments, which may grow meanwhile."""
        mine = sum(segment.size for segment in self._log.segments())
        return disk.bytes_total - disk.bytes_free - mine

    def _look(self) -> Disk:
        disk = self._watch.look()
        self._looked()
        return disk
