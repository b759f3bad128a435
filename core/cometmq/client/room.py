"""The bounded buffer of a producer: bytes taken by open batches and by those on their way."""

from __future__ import annotations

from collections import deque

from cometmq.client.batching import Batch
from cometmq.client.engine import Engine
from cometmq.client.flows import Waitable
from cometmq.client.pages import keep_pages
from cometmq.errors import BufferFull

STEP_BYTES = 4 << 10
"""What a batch takes at a time of a buffer that is half full. What one has and does not need is
missing for all others, which then go before they are full."""


class Room:
    """So many bytes, taken and given back; whoever finds none waits or is told so."""

    def __init__(self, engine: Engine, size_bytes: int, *, block: bool) -> None:
        self.used_bytes = 0
        self._engine = engine
        self._size_bytes = size_bytes
        self._block = block
        self._waiting: deque[Waitable[None]] = deque()
        keep_pages()

    def take(self, size_bytes: int) -> bool:
        """Take bytes if they are there; a message larger than the whole buffer goes alone."""
        if self.used_bytes and self.used_bytes + size_bytes > self._size_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def grow(self, batch: Batch, size_bytes: int) -> bool:
        """Let a batch take so many bytes more; False: it is full, or the buffer is. In any thread,
        without a lock: there is no call in it at which another one could come between."""
        limit = batch.limit_bytes
        more = STEP_BYTES if size_bytes < STEP_BYTES else size_bytes
        if limit + more > batch.most_bytes:
            more = batch.most_bytes - limit
        used = self.used_bytes + more
        if batch.size_bytes + size_bytes > limit + more or used > self._size_bytes or batch.closed:
            return False
        self.used_bytes = used
        batch.limit_bytes = limit + more
        batch.reserved_bytes += more
        return True

    def give(self, size_bytes: int) -> None:
        """Give bytes back; those who wait try again."""
        self.used_bytes -= size_bytes
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, deque()
        for waitable in waiting:
            waitable.resolve(None)

    async def wait(self, deadline_s: float) -> None:
        """Until something was given back. Raises BufferFull: too late, or told not to wait."""
        if self._block:
            change: Waitable[None] = Waitable()
            self._waiting.append(change)
            if await self._engine.until(change, deadline_s):
                return
            self._waiting.remove(change)
        raise BufferFull(
            f"the producer's buffer of {self._size_bytes:,} bytes is full of messages that "
            f"{self._engine.address} has not acknowledged; send slower, or raise buffer_bytes",
            code="BUFFER_FULL",
        )
