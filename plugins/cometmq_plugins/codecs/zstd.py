"""zstd: small at a fair speed. The standard library has it since Python 3.14, a backport before."""

from __future__ import annotations

import sys

from cometmq.environment import Buffer
from cometmq.errors import ConfigError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LOWEST, _HIGHEST = zstd.CompressionParameter.compression_level.bounds()
# A batch is at most 16 MiB: what asks for a larger window only wants our memory.
_BOUND = {int(zstd.DecompressionParameter.window_log_max): 24}

_NO_MEMORY = "not enough memory"
"""In the only word that the library gives: its errors have no number here."""


class ZstdCodec:
    """One zstd frame a batch. Levels are zstd's own, 3 by default; 22 is the smallest and slowest,
    those below 0 are the fastest."""

    def __init__(self, level: int | None = None) -> None:
        """Raises ConfigError for a level that zstd doesn't have."""
        if level is not None and not _LOWEST <= level <= _HIGHEST:
            raise ConfigError(
                f"compression_level={level}: zstd has {_LOWEST} to {_HIGHEST}, 3 by default"
            )
        self._compressor = zstd.ZstdCompressor(level)

    def compress(self, data: Buffer) -> bytes:
        """See `cometmq.interfaces.Codec`."""
        return self._compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)

    def decompress(self, data: Buffer, size_bytes: int) -> bytes:
        """See `cometmq.interfaces.Codec`."""
        decompressor = zstd.ZstdDecompressor(options=_BOUND)
        try:
            found = decompressor.decompress(data, max_length=size_bytes)
        except zstd.ZstdError as error:
            if _NO_MEMORY in str(error):  # it says nothing about the piece
                raise MemoryError(str(error)) from error
            raise ValueError(str(error)) from error
        if not decompressor.eof:
            raise ValueError(
                f"the frame is cut off after {len(found)} bytes"
                if len(found) < size_bytes
                else f"the frame does not end with {size_bytes} bytes"
            )
        if decompressor.unused_data:
            raise ValueError("there is something behind the frame")
        return found
