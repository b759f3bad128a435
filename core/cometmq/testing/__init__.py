"""The published test kit: an embedded broker, virtual time and disk, and a contract suite for
each interface that a third party may implement.

Imported lazily: the pytest plugin is loaded in every test run where CometMQ is installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cometmq.testing.embedded import EmbeddedBroker as EmbeddedBroker
    from cometmq.testing.environment import VirtualEnvironment as VirtualEnvironment
    from cometmq.testing.files import FaultyFiles as FaultyFiles
    from cometmq.testing.movable_clock import MovableClock as MovableClock
    from cometmq.testing.process import BrokerProcess as BrokerProcess
    from cometmq.testing.state_view_contract import StateViewContract as StateViewContract
    from cometmq.testing.storage_contract import StorageContract as StorageContract
    from cometmq.testing.strategy_contract import StrategyContract as StrategyContract
    from cometmq.testing.transport_contract import TransportContract as TransportContract

_PLACES = {
    "BrokerProcess": "process",
    "EmbeddedBroker": "embedded",
    "FaultyFiles": "files",
    "MovableClock": "movable_clock",
    "StateViewContract": "state_view_contract",
    "StorageContract": "storage_contract",
    "StrategyContract": "strategy_contract",
    "TransportContract": "transport_contract",
    "VirtualEnvironment": "environment",
}

__all__ = [
    "BrokerProcess",
    "EmbeddedBroker",
    "FaultyFiles",
    "MovableClock",
    "StateViewContract",
    "StorageContract",
    "StrategyContract",
    "TransportContract",
    "VirtualEnvironment",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
