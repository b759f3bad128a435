"""Plugin `cleanup`: old segments go, a disk that fills is freed, and sends are refused in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cometmq.broker.cron import Cron
from cometmq.errors import CometError, DiskRefused, LogError, LogInDoubt
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Job, Metric, PluginOperation, Refuse, SessionInfo
from cometmq.log import RecoveryReport
from cometmq_plugins.cleanup import reports
from cometmq_plugins.cleanup.cleaner import Cleaner
from cometmq_plugins.cleanup.disk import DiskWatch
from cometmq_plugins.cleanup.marks import MarkTeller
from cometmq_plugins.cleanup.messages import (
    CLEANUP_RUN,
    CLEANUP_STATUS,
    AskStatus,
    CleanupDone,
    CleanupStatus,
    RunCleanup,
)
from cometmq_plugins.cleanup.options import CleanupOptions
from cometmq_plugins.cleanup.refusing import Refusing
from cometmq_plugins.cleanup.retention import Key, Retainer
from cometmq_plugins.cleanup.rules import HOUR_MS
from cometmq_plugins.cleanup.trusted_time import TrustedTime

logger = logging.getLogger(__name__)

DAILY_JITTER_S = 30.0
"""Brokers that share a disk don't all delete in the same moment."""


class CleanupPlugin:
    """Deletes old segments at 04:00, or once the disk is rather full, and the oldest ones whatever
    their age when it is full; beyond that sends are refused. Looks after topics' own retention.
    """

    name = "cleanup"
    options = CleanupOptions

    def __init__(self, options: CleanupOptions) -> None:
        self._options = options
        self._work: _Work | None = None

    @hookimpl
    def jobs(self) -> Sequence[Job]:
        options = self._options
        check_s, retain_s = options.check_interval_s, options.retention_interval_s
        return [
            Job("cleanup-watch", self._watch, interval_s=check_s),
            Job("cleanup-space", self._space, interval_s=check_s, jitter_s=check_s / 10),
            Job("cleanup-retention", self._retain, interval_s=retain_s, jitter_s=retain_s / 10),
            Job(
                "cleanup-daily",
                self._daily,
                cron=options.at,
                timezone=options.timezone,
                jitter_s=DAILY_JITTER_S,
            ),
        ]

    @hookimpl
    def operations(self) -> Sequence[PluginOperation]:
        return [
            PluginOperation(CLEANUP_RUN, "CLEANUP_RUN", RunCleanup, self._run),
            PluginOperation(CLEANUP_STATUS, "CLEANUP_STATUS", AskStatus, self._status),
        ]

    @hookimpl
    def metrics(self) -> Iterable[Metric]:
        return [] if self._work is None else list(reports.metrics(self._work.status()))

    @hookimpl
    def status(self) -> Mapping[str, str] | None:
        return None if self._work is None else reports.status_lines(self._work.status())

    @hookimpl
    def started(self, broker: Any) -> None:
        self._work = _Work(broker, self._options)
        try:
            self._work.look()
        except (LogError, OSError) as error:
            # It is looked again soon, and then it is the job's failure, which is counted.
            logger.warning("disk and clock can't be judged yet (%s); sends go on", error)

    @hookimpl
    def stopping(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.stop()

    @hookimpl
    def admit(self, operation: str, size_bytes: int) -> Refuse | None:
        work = self._work
        if operation != "SEND" or work is None:
            return None
        return work.admit(size_bytes)

    # --- what is called now and then; before the broker has started nothing can be done -----------

    def _watch(self) -> None:
        if self._work is not None:
            self._work.look()

    async def _space(self) -> None:
        if self._work is not None:
            await self._work.free_space()

    async def _retain(self) -> None:
        if self._work is not None:
            await self._work.retain()

    async def _daily(self) -> None:
        if self._work is not None:
            await self._work.clean_daily()

    async def _run(self, session: SessionInfo, header: RunCleanup) -> CleanupDone:
        assert self._work is not None, "operations come once the broker has started"
        return await self._work.run_now(header)

    def _status(self, session: SessionInfo, header: AskStatus) -> CleanupStatus:
        assert self._work is not None, "operations come once the broker has started"
        return self._work.status()


class _Work:
    """The parts, for one running broker."""

    def __init__(self, broker: Any, options: CleanupOptions) -> None:
        clock, log = broker.environment.clock, broker.log
        report = broker.report or RecoveryReport(0)
        self._options = options
        self._log = log
        self._watch = DiskWatch(clock, log.space, options)
        self._trusted = TrustedTime(log, clock, report, options.clock_confirm_hours * HOUR_MS)
        self._retainer = Retainer(broker, self._trusted)
        self._marks = MarkTeller(broker.composition, options)
        self._refusing = Refusing(clock, options)
        self.cleaner = Cleaner(
            log, clock, options, self._watch, self._trusted, self._retainer, self._looked
        )
        self._due = _missed(options, report.store_time, clock.wall_ms())
        self._hurried: asyncio.Task[None] | None = None
        self._expired = 0

    def look(self) -> None:
        """Look at clock and disk. Raises OSError, LogError."""
        try:
            self._trusted.now_ms()
        finally:
            self._watch.look()
            self._looked()

    def admit(self, size_bytes: int) -> Refuse | None:
        """Whether a send may go on, by the last look that was possible."""
        try:
            looked = self._watch.spend(size_bytes)
        except OSError:
            # The job that looks fails as well: that is logged and counted, and sends go on.
            looked = False
        if looked:
            self._looked()
            if self._watch.now.mark in ("forced", "refuse"):
                self._hurry()
        return self._refusing.answer()

    async def free_space(self) -> None:
        """What the disk asks for; also what was missed while the broker was off, or failed at its
        time, until a run for it succeeds."""
        known = self.cleaner.stuck
        try:
            await self.cleaner.run(due=self._due)
        except DiskRefused as error:
            if str(error) != known:
                raise
            # It was told of, and `mq cleanup status` goes on telling; the next look tries again.
            return
        self._due = False

    async def clean_daily(self) -> None:
        """It is the time of the day for old segments."""
        self._due = True
        await self.free_space()

    async def retain(self) -> None:
        """Raise the min offsets of topics with a retention of their own."""
        if not (self._log.in_doubt or self._log.stopped):
            self._raise(await self._retainer.expired())

    async def run_now(self, header: RunCleanup) -> CleanupDone:
        """What an operator asks for. Raises LogInDoubt: then nothing may be deleted."""
        if self._log.in_doubt:
            raise LogInDoubt(f"nothing is deleted while the log is in doubt: {self._log.in_doubt}")
        if header.force and not header.dry_run:
            self._trusted.confirm()
        expired = await self._retainer.expired()
        raised = self._retainer.named(expired)
        if header.dry_run:
            gone = await self.cleaner.plan(expired)
        else:
            self._raise(expired)
            gone = await self.cleaner.run(due=True)
        return CleanupDone(gone, raised, self._trusted.in_doubt_ms)

    def status(self) -> CleanupStatus:
        """How things are, by the last look."""
        disk, options, last = self._watch.now, self._options, list(self.cleaner.last)
        return CleanupStatus(
            bytes_total=disk.bytes_total,
            bytes_free=disk.bytes_free,
            used_percent=disk.used_percent,
            space_percent=options.space_percent,
            forced_percent=options.forced_percent,
            refuse_percent=options.refuse_percent,
            mark=disk.mark,
            full_in_s=self._watch.full_in_s(),
            refused=self._refusing.count,
            refused_s=self._refusing.seconds(),
            last_gone_ms=last[-1].gone_ms if last else 0,
            deleted=dict(self.cleaner.deleted),
            last=last,
            clock_in_doubt_ms=self._trusted.in_doubt_ms,
            clock_confirmed_in_ms=self._trusted.confirmed_in_ms,
            stuck=self.cleaner.stuck,
            expired=self._expired,
        )

    def stop(self) -> None:
        """Begin nothing more."""
        if self._hurried is not None:
            self._hurried.cancel()
        try:
            self._trusted.keep()
        except LogError as error:
            logger.warning("the log was not told how the clock is doubted: %s", error)

    def _raise(self, expired: dict[Key, int]) -> None:
        self._log.raise_min_offsets(expired)
        self._expired += self._retainer.count(expired)

    def _looked(self) -> None:
        disk = self._watch.now
        self._refusing.update(disk)
        self._marks.update(disk, self._watch.full_in_s())

    def _hurry(self) -> None:
        """The disk fills faster than the job comes."""
        if not self.cleaner.busy and (self._hurried is None or self._hurried.done()):
            self._hurried = asyncio.get_running_loop().create_task(self._free_in_a_hurry())

    async def _free_in_a_hurry(self) -> None:
        try:
            await self.free_space()
        except (CometError, OSError) as error:
            # The job comes again in a moment, and its failures are counted.
            logger.error("freeing space failed: %s", error)


def _missed(options: CleanupOptions, last_use_ms: int, now_ms: int) -> bool:
    """Whether the time of the day for old segments passed while nobody used this log."""
    if not last_use_ms:
        return False
    due = Cron(options.at, options.timezone).after(datetime.fromtimestamp(last_use_ms / 1000, UTC))
    return due is not None and due <= datetime.fromtimestamp(now_ms / 1000, UTC)
