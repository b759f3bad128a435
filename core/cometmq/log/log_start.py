"""State view `log-start`: what was trimmed away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from cometmq.batch import Batch
from cometmq.log.records import Trim, read_records

_decoder = msgspec.msgpack.Decoder(Trim)


class LogStart:
    """The highest position that a trim named: the log begins there."""

    name = "log-start"
    kinds: Sequence[str] = ("trim",)

    def __init__(self) -> None:
        self.position = 0

    def apply(self, batch: Batch) -> None:
        """Take a trim."""
        for record in read_records(Trim, batch):
            self.position = max(self.position, record.position)

    def slices(self) -> Iterator[bytes]:
        """One number."""
        if self.position:
            yield msgspec.msgpack.encode(Trim(self.position))

    def load(self, data: bytes) -> None:
        """Join a shard."""
        self.position = max(self.position, _decoder.decode(data).position)

    def reset(self) -> None:
        """Nothing was trimmed."""
        self.position = 0
