"""Group commit, what both flush policies do: one sync at a time serves all who wait."""

from __future__ import annotations

import asyncio
import logging

from cometmq.environment import Timer
from cometmq.errors import LogError
from cometmq.interfaces import Level, Syncer

logger = logging.getLogger("cometmq.flush")
_TRUST = 0.5
"""Weight of a new, shorter measure of a sync; a longer one is believed at once."""


class GroupCommit:
    """A `cometmq.interfaces.FlushPolicy`.

    Who comes while a sync runs waits for the next one, which starts at once. What nobody waits
    for is synced within `interval_ms`. A failed sync is never repeated.
    """

    def __init__(self, level: Level, interval_ms: int, sync_in_loop_below_us: int = 0) -> None:
        """`sync_in_loop_below_us`: a lone waiter gets his sync in the loop's thread, without two
        hand-overs, as long as syncs take less than that; 0 = never."""
        self.default_level = level
        self.interval_ms = interval_ms
        self._below_s = sync_in_loop_below_us / 1e6
        self._sync_s = float("inf")
        self._syncer: Syncer | None = None
        self._running: asyncio.Task[None] | None = None
        self._again = False
        self._timer: Timer | None = None
        self._ended = False

    def start(self, syncer: Syncer) -> None:
        """Work for this log from now on."""
        self._syncer = syncer

    def appended(self, awaited: bool, alone: bool) -> None:
        """Sync for who waits; else see that it is done in time."""
        if self._ended:
            return
        if not awaited:
            if self._timer is None:
                self._arm()
        elif alone and self._running is None and self._sync_s < self._below_s:
            self._sync_in_loop()
        else:
            self.demand()

    def demand(self) -> None:
        """Somebody waits: start a sync, or one more behind the one that runs."""
        if self._running is not None:
            self._again = True
        elif not self._ended:
            self._running = asyncio.get_running_loop().create_task(self._sync_while_awaited())

    async def stop(self) -> None:
        """Wait for the sync that runs and sync what is left."""
        if self._timer is not None:
            self._timer.cancel()
        if self._running is not None:
            await self._running
        syncer = self._started()
        if not self._ended and syncer.synced < syncer.appended:
            self._running = asyncio.get_running_loop().create_task(self._sync_while_awaited())
            await self._running
        self._ended = True

    async def _sync_while_awaited(self) -> None:
        syncer = self._started()
        try:
            while True:
                self._again = False
                self._measured(await syncer.sync())
                if not self._again:
                    break
        except (OSError, LogError) as error:
            self._failed(error)
        finally:
            self._running = None
        self._arm()

    def _sync_in_loop(self) -> None:
        try:
            self._measured(self._started().sync_blocking())
        except (OSError, LogError) as error:
            self._failed(error)

    def _measured(self, seconds: float) -> None:
        """What the disk took, and not what was done besides: the way to a thread and back is what
        a sync in the loop saves, and it takes longest where all are busy."""
        if seconds < self._sync_s < float("inf"):
            seconds = self._sync_s + (seconds - self._sync_s) * _TRUST
        self._sync_s = seconds

    def _failed(self, error: Exception) -> None:
        if not self._ended:
            self._ended = True
            logger.error("the log is no longer synced: %s", error)

    def _arm(self) -> None:
        """Look again when the interval is over, if there is anything to be synced."""
        syncer = self._started()
        if self._timer is None and not self._ended and syncer.synced < syncer.appended:
            clock = syncer.environment.clock
            due_s = clock.monotonic_s() + self.interval_ms / 1000
            self._timer = clock.call_at(due_s, self._due)

    def _due(self) -> None:
        self._timer = None
        syncer = self._started()
        if syncer.synced < syncer.appended:
            self.demand()

    def _started(self) -> Syncer:
        if self._syncer is None:
            raise AssertionError("a flush policy is used before its start")
        return self._syncer
