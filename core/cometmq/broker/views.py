"""State views that plugins bring."""

from __future__ import annotations

from cometmq.interfaces import StateView
from cometmq.plugins import Composition, by_key


def contributed_views(composition: Composition) -> list[StateView]:
    """All of them, in order. Raises PluginError when two have one name."""
    brought = (
        (plugin, view.name, view)
        for plugin, views in composition.collect("state_views")
        for view in views
    )
    return list(by_key("state view", brought).values())
