"""A log over a file system that misbehaves to order: for tests of the log and of what uses it."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, ParamSpec

from cometmq.batch import Batch, RecordTuple, encode_messages, parse
from cometmq.environment import Environment
from cometmq.interfaces import FlushPolicy, Level, StateView, Storage
from cometmq.log import Appended, Log, LogSettings, Outcome, RecoveryReport
from cometmq.log.positions import PositionName
from cometmq.log.scan import scan_segment
from cometmq.testing.clock import VirtualClock
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.files import FaultyFiles

P = ParamSpec("P")
DATA = "/data"

MakeStorage = Callable[[Environment, str], Storage]
MakePolicy = Callable[[], FlushPolicy]


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Let an async test run in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class LogKit:
    """Opens logs on one disk, crashes them, and looks at what they left.

    `environment` has the clock, and `environment.files` the faults. Each `open` makes a new `Log`
    on what the disk holds; the one before is left as a kill would leave it.
    """

    def __init__(self, make_storage: MakeStorage, make_policy: MakePolicy) -> None:
        self.environment = VirtualEnvironment()
        self._make_storage = make_storage
        self._make_policy = make_policy
        self.log: Log
        self.storage: Storage
        self.report: RecoveryReport

    async def open(
        self, *, views: Sequence[StateView] = (), settings: LogSettings | None = None
    ) -> Log:
        """A log that has been opened; its report is in `report`."""
        self.storage = self._make_storage(self.environment, DATA)
        log = Log(
            self.storage, self._make_policy(), self.environment, views=views, settings=settings
        )
        self.report = await log.open()
        self.log = log
        await self.settle()
        return log

    async def settle(self, seconds: float = 0) -> None:
        """Let everything run that can, while the clock goes on by `seconds`."""
        await self.environment.clock.run_for(seconds)

    def append(
        self,
        queue: int = 0,
        count: int = 1,
        *,
        incarnation: int = 1,
        body: bytes = b"body",
    ) -> Appended:
        """Append a batch of messages to a queue, without writing it."""
        record: RecordTuple = (1_700_000_000_000, body, "", (), {})
        batch = parse(encode_messages("topic", queue, [record] * count))
        return self.log.append(batch, incarnation=incarnation, queue=queue)

    def wait(self, level: Level | PositionName, appended: Appended) -> list[Outcome]:
        """A list that gets the outcome, once it is there."""
        outcomes: list[Outcome] = []
        self.log.wait(level, appended.end, outcomes.append)
        return outcomes

    async def send(self, queue: int = 0, count: int = 1, *, body: bytes = b"body") -> Appended:
        """Append, write, and wait until it is on disk."""
        appended = self.append(queue, count, body=body)
        outcomes = self.wait("disk", appended)
        self.log.write()
        await self.settle()
        assert outcomes == [Outcome.REACHED], f"a send to queue {queue} ended as {outcomes}"
        return appended

    def kill(self) -> None:
        """End the broker's process: what it wrote stays in the page cache."""
        self.storage.close()
        self._boot(self.environment.files)

    def crash(self, dice: Random | None = None) -> None:
        """Cut the power: what was synced stays, and of the rest what the dice say."""
        self._boot(self.environment.files.crash(dice))

    def _boot(self, files: FaultyFiles) -> None:
        """A new process, to which no timer of an old one comes."""
        old = self.environment
        clock = VirtualClock(old.clock.wall_ms(), old.clock.monotonic_s())
        self.environment = VirtualEnvironment(clock=clock, random=old.random, files=files)

    # --- what lies on the disk ------------------------------------------------------------------

    def batches(self) -> list[Batch]:
        """All intact batches of the log, up to the first place that has none."""
        found: list[Batch] = []
        seed = self.log._writer.seed
        for segment in self.storage.segments():
            for _, item in scan_segment(self.storage.read, segment.base, segment.size, seed):
                if isinstance(item, Batch):
                    found.append(item)
        return found

    def kinds(self) -> list[int]:
        """The kind of each batch."""
        return [batch.kind for batch in self.batches()]

    def paths(self, suffix: str = ".seg") -> list[str]:
        """The files of the log with this suffix, oldest first."""
        names = self.environment.files.list(f"{DATA}/log")
        return [f"{DATA}/log/{name}" for name in names if name.endswith(suffix)]

    def content(self) -> dict[str, bytes]:
        """Every file below the data folder but the lock, trailing zeros left out."""
        files = self.environment.files
        found: dict[str, bytes] = {}
        for folder in (DATA, f"{DATA}/log", f"{DATA}/cut"):
            for name in files.list(folder):
                path = f"{folder}/{name}"
                if files.exists(path) and name not in ("lock", "log", "cut"):
                    found[path] = files.read_file(path).rstrip(b"\0")
        return found

    def overwrite(self, position: int, data: bytes) -> None:
        """Change bytes of the log on the disk, behind everybody's back."""
        path = [p for p in self.paths() if _base(p) <= position][-1]
        file = self.environment.files.open(path)
        file.write(position - _base(path), [data])
        file.sync_blocking()
        file.close()

    def flip(self, position: int) -> None:
        """Change one byte of the log on the disk."""
        path = [p for p in self.paths() if _base(p) <= position][-1]
        old = self.environment.files.read_file(path)[position - _base(path)]
        self.overwrite(position, bytes([old ^ 0xFF]))

    def shorten(self, position: int) -> None:
        """Let the log on the disk end at `position`, as if the rest had never been written."""
        files = self.environment.files
        for path in reversed(self.paths()):
            if _base(path) >= position:
                files.unlink(path)
                continue
            file = files.open(path)
            file.truncate(position - _base(path))
            file.sync_blocking()
            file.close()
            break
        files.sync_folder(f"{DATA}/log")


def _base(path: str) -> int:
    return int(os.path.basename(path).partition(".")[0])


async def two_segments(kit: LogKit, *, clean: bool) -> None:
    """Leave two queues in two segments with whole checkpoints, all of it on the disk; with
    `clean` a mark ends the log, else it was killed."""
    log = await kit.open(settings=LogSettings(mark_idle_ms=100))
    await kit.send(0, 2)
    await kit.send(1, 1)
    await kit.send(0, 1)
    log.roll()
    await kit.settle(1)
    await kit.send(0, 2)
    await kit.send(1, 2)
    if clean:
        await log.close()
    kit.kill()
    files = kit.environment.files
    for path in [*kit.content(), f"{DATA}/log/reserve"]:
        files.open(path).sync_blocking()
    for folder in (DATA, f"{DATA}/log"):
        files.sync_folder(folder)
