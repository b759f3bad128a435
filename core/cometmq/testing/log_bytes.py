"""Segments built batch by batch in memory, to test what reads a log without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cometmq.batch import (
    Batch,
    Kind,
    RecordTuple,
    encode_control,
    encode_messages,
    parse,
    seed,
    stamp,
)
from cometmq.environment import Buffer
from cometmq.interfaces import Segment


class LogBytes:
    """A log in memory that any test may write to and damage. It reads as a `Storage` does, side
    files too, but knows no folder, no space and no sync.

    `segment_bytes` has the bytes of each segment by its base; `end` is where the next batch goes.
    """

    def __init__(self, log_id: bytes = b"\x01\x02\x03\x04\x05\x06\x07\x08") -> None:
        self.log_id = log_id
        self.seed = seed(log_id)
        self.epoch = 1
        self.end = 0
        self.store_time = 1_700_000_000_000
        self.segment_bytes: dict[int, bytearray] = {}
        self.next_offsets: dict[tuple[int, int], int] = {}
        self.sides: dict[tuple[int, str], bytes] = {}
        self.reads = 0
        self.cold = False
        """True: the page cache has nothing, `read_now` gives None."""

    def begin(self) -> Batch:
        """Open a new segment with its segment-start batch."""
        self.segment_bytes[self.end] = bytearray()
        start = [self.log_id, self.epoch, "node", self.end, self.end, self.store_time]
        return self.control(Kind.SEGMENT_START, [start])

    def checkpoint(self) -> None:
        """Append a head checkpoint of one empty slice and its end."""
        base = max(self.segment_bytes)
        self.control(Kind.CHECKPOINT_SLICE, [["topics", b"", base]])
        self.control(Kind.CHECKPOINT_END, [[base]])

    def messages(
        self, incarnation: int = 1, queue: int = 0, count: int = 1, body: bytes = b"body"
    ) -> Batch:
        """Append a batch of `count` messages; offsets go on where the queue ended."""
        records: list[RecordTuple] = [(self.store_time, body, "", (), {}) for _ in range(count)]
        key = incarnation, queue
        base = self.next_offsets.get(key, 0)
        self.next_offsets[key] = base + count
        return self.append(encode_messages("topic", queue, records), key, base)

    def control(self, kind: int, records: Sequence[Any]) -> Batch:
        """Append a control batch."""
        return self.append(encode_control(kind, records), (0, 0), 0)

    def append(
        self, buffer: bytearray, key: tuple[int, int], base_offset: int, flags: int = 0
    ) -> Batch:
        """Stamp a sealed batch for (incarnation, queue) and append it."""
        stamp(
            buffer,
            log_id_seed=self.seed,
            position=self.end,
            epoch=self.epoch,
            synced_before=0,
            base_offset=base_offset,
            store_time=self.store_time,
            incarnation=key[0],
            queue=key[1],
            flags=flags,
        )
        self.segment_bytes[max(self.segment_bytes)] += buffer
        self.end += len(buffer)
        return parse(bytes(buffer))

    def flip(self, position: int) -> None:
        """Change one byte of the log."""
        base = self._base_of(position)
        self.segment_bytes[base][position - base] ^= 0xFF

    def segments(self) -> list[Segment]:
        """As `Storage.segments`."""
        return [
            Segment(base, len(data), f"{base:020}.seg")
            for base, data in sorted(self.segment_bytes.items())
        ]

    def read(self, position: int, size: int) -> bytes:
        """As `Storage.read`; counted in `reads`."""
        self.reads += 1
        base = self._base_of(position)
        return bytes(self.segment_bytes[base][position - base : position - base + size])

    def read_now(self, position: int, size: int) -> bytes | None:
        """As `Storage.read_now`."""
        return None if self.cold else self.read(position, size)

    def write_side(self, base: int, suffix: str, chunks: Sequence[Buffer]) -> None:
        """As `Storage.write_side`."""
        self.sides[base, suffix] = b"".join(chunks)

    def read_side(self, base: int, suffix: str) -> bytes | None:
        """As `Storage.read_side`."""
        return self.sides.get((base, suffix))

    def remove_side(self, base: int, suffix: str) -> None:
        """As `Storage.remove_side`."""
        self.sides.pop((base, suffix), None)

    def _base_of(self, position: int) -> int:
        return max(base for base in self.segment_bytes if base <= position)
