"""What waits to be sent on one connection: frames and their headers, gathered, never joined if
they are large."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from cometmq import native
from cometmq.environment import Buffer
from cometmq_transports.zmtp.wire import MORE, header

JOIN_BELOW_BYTES = 4 << 10
"""Smaller frames are copied: a buffer of one's own costs more than so many bytes."""
BUFFER_COST_BYTES = 128
"""What a waiting buffer takes besides its bytes, so that very many small ones are not free."""
GATHER_MAX = 256
_framed = native.framed


def gather(frames: Sequence[Buffer]) -> list[Buffer]:
    """One message as it leaves. Large frames are not copied, so they must not be changed."""
    if _framed is not None and (plain := _framed(frames, JOIN_BELOW_BYTES)) is not None:
        return [plain]
    if len(frames) == 1 and len(frames[0]) < JOIN_BELOW_BYTES:
        return [header(len(frames[0])) + frames[0]]
    gathered: list[Buffer] = []
    last = len(frames) - 1
    small: list[Buffer] = []
    for number, frame in enumerate(frames):
        size = len(frame)
        small.append(header(size, MORE if number < last else 0))
        if size < JOIN_BELOW_BYTES:
            small.append(frame)
        else:
            gathered += (b"".join(small), frame)
            small = []
    if small:
        gathered.append(b"".join(small))
    return gathered


class Outbox:
    """Buffers in the order in which they have to leave."""

    __slots__ = ("_buffers", "cost_bytes")

    def __init__(self) -> None:
        self._buffers: deque[Buffer] = deque()
        self.cost_bytes = 0
        """What the waiting buffers take of our memory, roughly."""

    def __bool__(self) -> bool:
        return bool(self._buffers)

    def put(self, frames: Sequence[Buffer]) -> None:
        """Append one message. Large frames are not copied, so they must not be changed."""
        for data in gather(frames):
            self.put_raw(data)

    def put_raw(self, data: Buffer) -> None:
        """Append bytes as they are."""
        self._buffers.append(data)
        self.cost_bytes += len(data) + BUFFER_COST_BYTES

    def gathered(self) -> list[Buffer]:
        """What one call may send: the first of them."""
        return list(islice(self._buffers, GATHER_MAX))

    def sent(self, size: int) -> None:
        """The first `size` bytes of what was gathered have left."""
        buffers = self._buffers
        if len(buffers) == 1 and size == len(buffers[0]):
            self.clear()
            return
        while buffers:
            first = buffers[0]
            if size < len(first):
                break
            buffers.popleft()
            size -= len(first)
            self.cost_bytes -= len(first) + BUFFER_COST_BYTES
        if size:
            buffers[0] = memoryview(buffers[0])[size:]
            self.cost_bytes -= size

    def clear(self) -> None:
        """Forget all of it."""
        self._buffers.clear()
        self.cost_bytes = 0
