"""What the plugins of listening transports tell of their connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

from cometmq.interfaces import Metric


class CountingListener(Protocol):
    """A listener that counts its connections."""

    address: str
    counters: Counter[str]
    """Connections that were dropped or failed, by reason."""

    @property
    def connections(self) -> int:
        """How many are open now, silent ones included."""


def connection_metrics(plugin: str, listeners: Iterable[CountingListener]) -> Iterator[Metric]:
    """Open connections, and what was dropped by reason, for each address."""
    for listener in listeners:
        labels = {"address": listener.address}
        yield Metric(
            f"{plugin}_connections",
            "Open connections, silent ones included.",
            "gauge",
            listener.connections,
            labels,
        )
        for reason, count in sorted(listener.counters.items()):
            yield Metric(
                f"{plugin}_dropped_total",
                "Connections dropped or failed, by reason.",
                "counter",
                count,
                {**labels, "reason": reason},
            )
