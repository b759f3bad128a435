"""Plugin `longpoll`: a fetch that finds nothing waits at the broker until there is something.

Without it a consumer of an idle queue has to ask again and again. A parked fetch is looked at
again only when a batch in one of its own queues has become readable (or a queue of it changed).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Metric, ParkedFetch
from cometmq.plugins import Plugin

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class LongpollOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `[plugin.longpoll]`."""

    wait_max_ms: PositiveInt = 20_000
    """No fetch waits longer than this, as RocketMQ's pull consumers do."""
    parked_max: PositiveInt = 50_000
    """So many may wait at once; the next ones are answered empty."""


class LongpollPlugin(Plugin):
    """Lets a fetch that found nothing wait at the broker until a message for it is readable."""

    name = "longpoll"
    options = LongpollOptions

    def __init__(self, options: LongpollOptions) -> None:
        self._options = options
        self._park: Any = None
        self._turned_away = 0

    @hookimpl
    def started(self, broker: Any) -> None:
        self._park = broker.park

    @hookimpl
    def fetch_wait(self, fetch: ParkedFetch) -> bool | None:
        if self._park is None or fetch.wait_ms <= 0 or not fetch.queues:
            return None
        wait_ms = min(fetch.wait_ms, self._options.wait_max_ms)
        if len(self._park) < self._options.parked_max and self._park.hold(
            fetch, fetch.queues, wait_ms
        ):
            return True
        self._turned_away += 1
        return None

    @hookimpl
    def readable_advanced(self, queues: Sequence[tuple[int, int]]) -> None:
        park = self._park
        if park is not None:
            for queue in queues:
                park.fire(queue)

    @hookimpl
    def metrics(self) -> Sequence[Metric]:
        return [
            Metric(
                "longpoll_turned_away",
                "Fetches that could not wait because too many did.",
                "counter",
                self._turned_away,
            )
        ]
