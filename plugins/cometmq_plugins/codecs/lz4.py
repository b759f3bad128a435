"""lz4: less small than zstd, and faster."""

from __future__ import annotations

import lz4.block

from cometmq.environment import Buffer
from cometmq.errors import ConfigError

_HIGHEST = 12


class Lz4Codec:
    """One lz4 block a batch, without the length that some put before it. Level 0, the default, is
    the fast way; 1 to 12 search longer for less, which costs the producer alone."""

    def __init__(self, level: int | None = None) -> None:
        """Raises ConfigError for a level that lz4 doesn't have."""
        self._level = level or 0
        if not 0 <= self._level <= _HIGHEST:
            raise ConfigError(
                f"compression_level={level}: lz4 has 0 (fast, the default) to {_HIGHEST}"
            )

    def compress(self, data: Buffer) -> bytes:
        """See `cometmq.interfaces.Codec`."""
        mode = "high_compression" if self._level else "default"
        found: bytes = lz4.block.compress(
            data, mode=mode, compression=self._level, store_size=False
        )
        return found

    def decompress(self, data: Buffer, size_bytes: int) -> bytes:
        """See `cometmq.interfaces.Codec`."""
        try:
            found: bytes = lz4.block.decompress(data, uncompressed_size=size_bytes)
        except lz4.block.LZ4BlockError as error:
            raise ValueError(f"no block of at most {size_bytes} bytes: {error}") from error
        return found
