"""What the hooks of the message path may answer; `interfaces` has these names too."""

from __future__ import annotations

from typing import Any

import msgspec


class Pass(msgspec.Struct, frozen=True, tag=True):
    """`before_append`: go on with the batch as it is."""


class Replace(msgspec.Struct, frozen=True, tag=True):
    """`before_append`: go on with these bytes (a sealed batch, see `cometmq.batch.amend`)."""

    batch: Any


class Refuse(msgspec.Struct, frozen=True, tag=True):
    """`authorize`, `admit`, `before_append`: answer the sender with this reason; `retry_after_ms`
    above 0 makes it retryable."""

    reason: str
    retry_after_ms: int = 0
    code: str = "REFUSED"


class Answer(msgspec.Struct, frozen=True, tag=True):
    """`before_append`: this batch is in the log already, here; append nothing. Its sender gets the
    answer that the first copy gets, once the log has its level up to `end`."""

    end: int
    """Position behind the batch that is there."""
    base_offset: int
    incarnation: int
    epoch: int
    """The log's epoch in which it was appended."""
    store_time: int


class Delay(msgspec.Struct, frozen=True, tag=True):
    """`admit`: handle this request `delay_ms` later."""

    delay_ms: int
