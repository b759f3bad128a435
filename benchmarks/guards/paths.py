"""The paths that are guarded, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.guards import broker_paths, client_paths
from benchmarks.guards.counting import Counters, Measure
from benchmarks.guards.idle_plugins import THREE

Path = Callable[[Counters, Measure], None]

MESSAGES = 256
"""In a full batch: 1 KiB each."""
_on_a_broker = broker_paths.on_a_broker

PATHS: Mapping[str, Path] = {
    "publish-full": partial(_on_a_broker, broker_paths.publish(MESSAGES)),
    "publish-one": partial(_on_a_broker, broker_paths.publish(1)),
    "publish-one-with-plugins": partial(_on_a_broker, broker_paths.publish(1), plugins=THREE),
    "publish-synced": partial(_on_a_broker, broker_paths.publish_synced),
    "publish-64-in-a-drain": partial(_on_a_broker, broker_paths.many_sends(64)),
    "fetch-1-mib": partial(_on_a_broker, broker_paths.fetch(4, 250)),
    "park-and-wake": partial(_on_a_broker, broker_paths.wake),
    "send-one": client_paths.send_one,
    "send-soon": client_paths.send_soon(100),
    "open-64-batches": client_paths.open_batches(64),
    "flush": client_paths.flush(100),
    "send-many": client_paths.send_many(100),
    "poll": client_paths.poll(MESSAGES),
}
