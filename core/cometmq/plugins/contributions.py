"""What several plugins bring, each thing under a key that only one may have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from cometmq.errors import PluginError

K = TypeVar("K")
T = TypeVar("T")


def by_key(kind: str, brought: Iterable[tuple[str, K, T]]) -> dict[K, T]:
    """Things by their keys, in order. `brought` has (plugin, key, thing); `kind` is what people
    call such a thing. Raises PluginError when two plugins bring one for the same key."""
    found: dict[K, T] = {}
    owners: dict[K, str] = {}
    for plugin, key, thing in brought:
        if key in found:
            who = f"plugins {owners[key]} and {plugin} both bring"
            if owners[key] == plugin:
                who = f"plugin {plugin} brings twice"
            raise PluginError(
                f"{who} the {kind} {key}: take one out with --plugins -{plugin}, or have its "
                "author choose another one"
            )
        owners[key] = plugin
        found[key] = thing
    return found
