"""Syncing: what a flush policy is given, and the only place that moves `synced`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cometmq.advice import advice
from cometmq.environment import Environment
from cometmq.errors import CometError, LogStopped
from cometmq.interfaces import Storage
from cometmq.log.positions import Positions


class LogSyncer:
    """One sync at a time; each moves `synced` to what was appended when it was called."""

    def __init__(
        self,
        storage: Storage,
        positions: Positions,
        environment: Environment,
        on_synced: Callable[[], None],
        on_failed: Callable[[str], None],
    ) -> None:
        """`on_failed` gets a sentence, once; after it the log is stopped for good."""
        self.environment = environment
        self._storage = storage
        self._positions = positions
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._running: asyncio.Event | None = None
        self._started = 0
        self._finished = 0
        self._took_s = 0.0
        self._targets: list[int] = []
        self._failure = ""

    @property
    def appended(self) -> int:
        """The position up to which bytes are in the page cache."""
        return self._positions.appended

    @property
    def synced(self) -> int:
        """The position up to which bytes are on disk."""
        return self._positions.synced

    async def sync(self) -> float:
        """See `cometmq.interfaces.Syncer`. Raises LogStopped after a failure, now or before."""
        ticket = self._started + 1
        while self._finished < ticket:
            self._check()
            if self._running is None:
                await self._sync_once()
            else:
                await self._running.wait()
        return self._took_s

    def sync_blocking(self) -> float:
        """See `cometmq.interfaces.Syncer`. Raises LogStopped after a failure, now or before."""
        self._check()
        self._targets.append(self._positions.appended)
        try:
            took_s = self._storage.sync_blocking()
        except (OSError, CometError) as error:
            self._targets.pop()
            raise self._fail(error) from error
        self._arrive(self._targets.pop())
        return took_s

    def cut(self, position: int) -> None:
        """What lies behind `position` is gone: no running sync may claim it."""
        self._targets = [min(target, position) for target in self._targets]

    async def _sync_once(self) -> None:
        self._running = asyncio.Event()
        self._started += 1
        # Only one asynchronous sync runs, so its target is the list's first.
        self._targets.insert(0, self._positions.appended)
        try:
            self._took_s = await self._storage.sync()
        except (OSError, CometError) as error:
            self._targets.pop(0)
            raise self._fail(error) from error
        except BaseException:
            self._targets.pop(0)
            raise
        else:
            self._arrive(self._targets.pop(0))
        finally:
            self._finished = self._started
            self._running.set()
            self._running = None

    def _arrive(self, target: int) -> None:
        self._positions.move_synced(target)
        self._on_synced()

    def _check(self) -> None:
        if self._failure:
            raise LogStopped(self._failure)

    def _fail(self, error: Exception) -> LogStopped:
        if not self._failure:
            self._failure = (
                f"a sync of the log failed ({error}); what was written since the last good one may"
                f" be lost, so the log takes nothing more: {advice(error)}, then start again"
            )
            self._on_failed(self._failure)
        return LogStopped(self._failure)
