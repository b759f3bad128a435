"""What a producer can be told, checked."""

from __future__ import annotations

from typing import Literal

import msgspec

from cometmq.client.arguments import check_number
from cometmq.client.codecs import shrinker
from cometmq.client.validation import check_level
from cometmq.errors import ConfigError
from cometmq.interfaces import Level


class ProducerOptions(msgspec.Struct, frozen=True):
    """Settings of a producer; see `Producer`."""

    level: Level | None = None
    linger_ms: float = 5
    batch_bytes: int = 256 << 10
    buffer_bytes: int = 32 << 20
    when_full: Literal["block", "raise"] = "block"
    send_timeout: float = 30.0
    compression: str | None = None
    compression_level: int | None = None

    def __post_init__(self) -> None:
        check_level(self.level)
        if self.when_full not in ("block", "raise"):
            raise ConfigError(f"when_full={self.when_full!r}: choose 'block' or 'raise'")
        for name in ("batch_bytes", "buffer_bytes"):
            check_number(name, getattr(self, name), above=0, whole=True)
        check_number("send_timeout", self.send_timeout, above=0)
        check_number("linger_ms", self.linger_ms, least=0)
        shrinker(self.compression, self.compression_level)  # raises what a producer can't have
