"""A file system in memory that can misbehave: full, broken, slow, or without power.

It remembers what was synced. `crash()` gives a new file system in a state that a power cut may
leave: everything synced is there, of the rest anything or nothing, torn at sectors.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random as Dice
from typing import Literal

from cometmq.environment import Buffer
from cometmq.memory_files import Content, MemoryFile, MemoryFiles

SECTOR_BYTES = 512
"""What a disk writes as a whole or not at all."""

Operation = Literal[
    "create", "open", "read", "write", "allocate", "truncate", "sync", "rename", "unlink",
    "sync_folder",
]  # fmt: skip


class PowerCut(Exception):
    """The power went out; nothing may catch this but the test."""


@dataclass
class Fault:
    """An error to be raised by the file layer."""

    operation: Operation
    error_number: int
    name: str
    skip: int
    times: int | None
    after_bytes: int


class TrackedContent(Content):
    """Bytes that remember which of their changes a sync has made durable."""

    def __init__(self, data: Buffer = b"", size: int = 0) -> None:
        super().__init__(data, size)
        self._durable = Content(data, size)
        self._pending: deque[tuple[int, bytes | None]] = deque()
        self._settled = 0

    def put(self, at: int, part: Buffer) -> None:
        super().put(at, part)
        self._pending.append((at, bytes(part)))

    def resize(self, size: int) -> None:
        super().resize(size)
        self._pending.append((size, None))

    def mark(self) -> int:
        """How many changes there have been so far."""
        return self._settled + len(self._pending)

    def settle(self, mark: int) -> None:
        """The changes up to `mark` are durable now."""
        while self._settled < mark:
            _apply(self._durable, *self._pending.popleft())
            self._settled += 1

    def after_power_cut(self, dice: Dice | None) -> TrackedContent:
        """What is durable, and of the rest what the dice say."""
        left = Content(self._durable.data, self._durable.size)
        for at, part in self._pending if dice else ():
            _apply_in_doubt(left, at, part, dice or Dice())
        return TrackedContent(left.data, left.size)


def _apply(content: Content, at: int, part: bytes | None) -> None:
    if part is None:
        content.resize(at)
    else:
        content.put(at, part)


def _apply_in_doubt(content: Content, at: int, part: bytes | None, dice: Dice) -> None:
    chance = dice.choice((0.0, 0.5, 1.0))
    if part is None:
        if dice.random() < chance:
            content.resize(at)
        return
    end = at + len(part)
    while at < end:
        stop = min(end, at - at % SECTOR_BYTES + SECTOR_BYTES)
        if dice.random() < chance:
            content.put(at, part[len(part) - (end - at) : len(part) - (end - stop)])
        at = stop


class FaultyFile(MemoryFile):
    """A handle that asks for faults first, and tells its content what is durable."""

    _files: FaultyFiles
    _content: TrackedContent

    def write(self, at: int, buffers: Sequence[Buffer]) -> None:
        fault = self._files.fault("write", self._path)
        if fault is not None:
            data = b"".join(buffers)[: fault.after_bytes]
            if data:
                super().write(at, [data])
            raise self._files.error(fault.error_number, self._path)
        super().write(at, buffers)

    def read(self, at: int, size: int) -> bytes:
        self._files.check("read", self._path)
        return super().read(at, size)

    def read_now(self, at: int, size: int) -> bytes | bytearray | None:
        return None if self._files.cold else self.read(at, size)

    def allocate(self, at: int, size: int) -> None:
        self._files.check("allocate", self._path)
        super().allocate(at, size)

    def truncate(self, size: int) -> None:
        self._files.check("truncate", self._path)
        super().truncate(size)

    async def sync(self) -> float:
        mark = self._content.mark()
        await asyncio.sleep(0)
        await self._files.wait_if_held()
        self._sync(mark)
        return 0.0

    def sync_blocking(self) -> float:
        if self._files.holding:
            raise RuntimeError("syncs are held back, and a blocking one would wait for ever")
        self._sync(self._content.mark())
        return 0.0

    def _sync(self, mark: int) -> None:
        self._files.check("sync", self._path)
        self._files.synced += 1
        self._content.settle(mark)


_Change = dict[str, TrackedContent | None]


class FaultyFiles(MemoryFiles):
    """Files in memory with faults to order. `capacity_bytes` may be changed at any time."""

    _names: dict[str, TrackedContent]  # type: ignore[assignment]

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        super().__init__(capacity_bytes)
        self.cold = False
        """True: nothing is in the page cache, so `read_now` never answers."""
        self.synced = 0
        """Successful syncs of files."""
        self.holding = False
        self._held: deque[asyncio.Future[None]] = deque()
        self._faults: list[Fault] = []
        self._power_left: int | None = None
        self._durable_names: dict[str, TrackedContent] = {}
        self._pending_names: list[tuple[str, _Change]] = []

    # --- faults ---------------------------------------------------------------------------------

    def fail(
        self,
        operation: Operation,
        error_number: int,
        *,
        name: str = "",
        skip: int = 0,
        times: int | None = 1,
        after_bytes: int = 0,
    ) -> None:
        """Let `operation` on files whose path contains `name` fail: after `skip` good ones,
        `times` times (None = for ever). A write puts down `after_bytes` bytes first."""
        self._faults.append(Fault(operation, error_number, name, skip, times, after_bytes))

    def mend(self) -> None:
        """No more faults."""
        self._faults.clear()

    def cut_power_after(self, operations: int) -> None:
        """Raise PowerCut instead of the next change of the disk but `operations`, and of any
        later one."""
        self._power_left = operations

    def hold_syncs(self) -> None:
        """From now on syncs of files begin but don't end."""
        self.holding = True

    def release_syncs(self, count: int | None = None) -> None:
        """Let the oldest `count` held syncs end; without a count all, and hold no more."""
        if count is None:
            self.holding = False
            count = len(self._held)
        for _ in range(count):
            held = self._held.popleft()
            if not held.done():
                held.get_loop().call_soon_threadsafe(held.set_result, None)

    @property
    def held(self) -> int:
        """Syncs that wait for `release_syncs`."""
        return len(self._held)

    async def wait_if_held(self) -> None:
        """Used by the files."""
        if self.holding:
            self._held.append(asyncio.get_running_loop().create_future())
            await self._held[-1]

    def fault(self, operation: Operation, path: str) -> Fault | None:
        """The fault that is due for this operation, counted; raises PowerCut when it is time."""
        if operation not in ("open", "read") and self._power_left is not None:
            if self._power_left == 0:
                raise PowerCut(f"at {operation} of {path}")
            self._power_left -= 1
        for fault in self._faults:
            if fault.operation != operation or fault.name not in path:
                continue
            if fault.skip > 0:
                fault.skip -= 1
            elif fault.times is None or fault.times > 0:
                fault.times = None if fault.times is None else fault.times - 1
                return fault
        return None

    def check(self, operation: Operation, path: str) -> None:
        """Raise the fault that is due, if any."""
        fault = self.fault(operation, path)
        if fault is not None:
            raise self.error(fault.error_number, path)

    # --- files ----------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        self.check("create" if create else "open", path)
        if create:
            self._create(path)
            self._renamed({path: self._names[path]})
        return FaultyFile(self, path, self._content(path), writable=True)

    def open_for_reading(self, path: str) -> FaultyFile:
        self.check("open", path)
        return FaultyFile(self, path, self._content(path), writable=False)

    def rename(self, old: str, new: str) -> None:
        self.check("rename", old)
        super().rename(old, new)
        self._renamed({old: None, new: self._names[new]})

    def unlink(self, path: str) -> None:
        self.check("unlink", path)
        super().unlink(path)
        self._renamed({path: None})

    def sync_folder(self, path: str) -> None:
        self.check("sync_folder", path)
        super().sync_folder(path)
        for folder, change in self._pending_names:
            if folder == path:
                _change_names(self._durable_names, change)
        self._pending_names = [one for one in self._pending_names if one[0] != path]

    def crash(self, dice: Dice | None = None) -> FaultyFiles:
        """The file system after a power cut now: without dice exactly what was synced, else also
        some of what was not. This one stays as it is."""
        names = dict(self._durable_names)
        for folder in sorted({folder for folder, _ in self._pending_names}) if dice else ():
            mine = [change for place, change in self._pending_names if place == folder]
            # Journals keep the order of changes in one folder.
            for change in mine[: (dice or Dice()).randint(0, len(mine))]:
                _change_names(names, change)
        after = FaultyFiles(self.capacity_bytes)
        after._folders = set(self._folders)
        after._names = {path: held.after_power_cut(dice) for path, held in sorted(names.items())}
        after._durable_names = dict(after._names)
        return after

    def _renamed(self, change: _Change) -> None:
        self._pending_names.append((os.path.dirname(next(iter(change))), change))

    def _new_content(self) -> TrackedContent:
        return TrackedContent()

    def _content(self, path: str) -> TrackedContent:
        content = super()._content(path)
        assert isinstance(content, TrackedContent)
        return content


def _change_names(names: dict[str, TrackedContent], change: _Change) -> None:
    for path, content in change.items():
        if content is None:
            names.pop(path, None)
        else:
            names[path] = content
