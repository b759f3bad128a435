"""Plugin `dedup`: a send that is repeated is stored once and gets the same answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from cometmq.batch import Batch
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Answer, Metric, Refuse, StateView
from cometmq.protocol.sends import SEQUENCES
from cometmq_plugins.dedup.decide import decide
from cometmq_plugins.dedup.view import Key, Producers

_FORGOTTEN_AT_ONCE = 1000

Positive = Annotated[int, msgspec.Meta(ge=1)]


class DedupOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `[plugin.dedup]`."""

    idle_s: Positive = 3600
    """A producer that sent nothing to a queue for so long is forgotten there. Keep it above the
    `send_timeout` of every producer."""
    places_max: Positive = 100_000
    """So many pairs of producer and queue are remembered; a producer beyond is refused."""


class DedupPlugin:
    """Remembers the last batches of each producer in each queue: a repeat is answered with the
    place of the first copy, a gap and an old epoch are refused.
    """

    name = "dedup"
    options = DedupOptions

    def __init__(self, options: DedupOptions) -> None:
        self._options = options
        self._view = Producers(options.idle_s * 1000)
        self._repeats = 0
        self._refused: Counter[str] = Counter()

    @hookimpl
    def state_views(self) -> Sequence[StateView]:
        return [self._view]

    @hookimpl
    def features(self) -> Sequence[str]:
        return [SEQUENCES]

    @hookimpl
    def before_append(self, batch: Batch) -> Answer | Refuse | None:
        producer = batch.producer
        if producer is None:
            return None
        number, epoch, sequence = producer
        key = batch.topic, batch.queue_claim, number
        if self._view.follows(key, epoch, sequence):
            return None
        decision = decide(self._view, key, batch, (epoch, sequence))
        if decision is None and sequence == 0:
            decision = self._full(key)
        if isinstance(decision, Answer):
            self._repeats += 1
        elif decision is not None:
            self._refused[decision.code] += 1
        return decision

    @hookimpl
    def metrics(self) -> Iterable[Metric]:
        yield Metric("dedup_repeats", "Repeats answered.", "counter", self._repeats)
        yield Metric("dedup_places", "Producers by queue.", "gauge", len(self._view))
        for code, count in sorted(self._refused.items()):
            yield Metric("dedup_refused", "Batches refused.", "counter", count, {"code": code})

    def _full(self, key: Key) -> Refuse | None:
        """Whether a producer that begins has to be refused because too many are remembered."""
        view = self._view
        if len(view) < self._options.places_max or view.last(key) is not None:
            return None
        view.forget_idle(_FORGOTTEN_AT_ONCE)
        if len(view) < self._options.places_max:
            return None
        return Refuse(
            f"{len(view)} producers, counted by queue, sent something in the last "
            f"{self._options.idle_s} s, the most that this broker remembers: use fewer and "
            "longer-lived producers, or raise plugin.dedup.places_max",
            code="LIMIT_REACHED",
        )
