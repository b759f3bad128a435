"""Reading ahead for whoever goes through an old part of the log.

The system reads ahead as well, but in the thread that asks, and here that is the loop's: for each
stretch it looks for free pages and waits for the disk's queue, while sends wait for the loop. So a
place that was cold begins a *stream*: what comes next is asked for in a thread, and what is on its
way is not looked for on the loop. A stream goes on from its second read, as long as enough of it
is read, in stretches that grow; queues are read in turn, so its reader may jump to and fro in it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from cometmq.environment import File, Threads
from cometmq_plugins.segments.files import Entry

logger = logging.getLogger("cometmq.storage")
_FIRST_BYTES = 1 << 20
_STREAMS = 16
_AT_ONCE = 2
"""So many threads read ahead at most: others are needed for what somebody waits for already."""
_BEHIND = 4
"""So many of the longest stretches behind its front still belong to a stream."""
_WORTH = 4
"""One part in so many must be read of what a reader passes for more to be asked for."""


class _Stream:
    """Somebody's way through one segment; places are bytes of its file."""

    __slots__ = ("asked", "entry", "fetching", "front", "low", "ready", "stretch", "used")

    def __init__(self, entry: Entry, at: int, end: int) -> None:
        self.entry = entry
        self.low = at
        self.ready = self.asked = end
        """What lies below `ready` has come, what lies below `asked` was asked for."""
        self.front = end
        """Where its reader was when the last stretch was asked for."""
        self.stretch = _FIRST_BYTES // 2
        self.used = 0
        """Bytes that were read since then."""
        self.fetching = False


class ReadAhead:
    """Stands between the storage and the files that it reads on the loop."""

    def __init__(self, threads: Threads, limit_bytes: int) -> None:
        """`limit_bytes`: no stretch is longer; 0 = leave it to the system."""
        self._threads = threads
        self._limit_bytes = limit_bytes
        self._streams: list[_Stream] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def read_now(self, entry: Entry, file: File, at: int, size: int) -> bytes | bytearray | None:
        """`File.read_now` of a segment's file."""
        stream = self._find(entry, at) if self._streams else None
        on_its_way = stream is not None and stream.fetching and at + size > stream.ready
        data = None if on_its_way else file.read_now(at, size)
        if stream is not None:
            self._passed(stream, file, at + size, size)
        elif data is None and self._limit_bytes:
            self._streams = [*self._streams[1 - _STREAMS :], _Stream(entry, at, at + size)]
        return data

    def close(self) -> None:
        """Forget all streams; what is being read comes to its end."""
        self._streams.clear()
        for task in self._tasks:
            task.cancel()

    def _find(self, entry: Entry, at: int) -> _Stream | None:
        for stream in self._streams:
            if stream.entry is entry and stream.low <= at <= stream.asked + stream.stretch:
                return stream
        return None

    def _passed(self, stream: _Stream, file: File, front: int, size: int) -> None:
        """Somebody reads `size` bytes up to `front`: ask for the next stretch once half of the
        last one is behind him."""
        stream.used += size
        if stream.fetching or front + stream.stretch // 2 < stream.asked:
            return
        entry = stream.entry
        end = entry.end - entry.base
        if stream.asked >= end or stream.used * _WORTH < front - stream.front:
            self._streams.remove(stream)
            return
        if len(self._tasks) >= _AT_ONCE:
            return
        stream.stretch = min(2 * stream.stretch, self._limit_bytes)
        start = stream.asked
        stream.asked = min(max(start, front) + stream.stretch, end)
        stream.low = max(stream.low, stream.asked - _BEHIND * self._limit_bytes)
        stream.front, stream.used, stream.fetching = front, 0, True
        task = asyncio.get_running_loop().create_task(self._fetch(stream, file, start))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(self, stream: _Stream, file: File, start: int) -> None:
        try:
            await self._threads.run(partial(file.read_ahead, start, stream.asked - start))
        except OSError as error:
            # It was only a help; whoever reads there will meet the error himself.
            logger.debug("reading ahead in %s failed: %s", stream.entry.path, error)
        stream.ready = stream.asked
        stream.fetching = False
