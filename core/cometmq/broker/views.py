"""State views that plugins bring."""

from __future__ import annotations

from cometmq.errors import PluginError
from cometmq.interfaces import StateView
from cometmq.plugins import Composition


def contributed_views(composition: Composition) -> list[StateView]:
    """All of them, in order. Raises PluginError when two have one name."""
    owners: dict[str, str] = {}
    views: list[StateView] = []
    for plugin, contributed in composition.collect("state_views"):
        for view in contributed:
            if view.name in owners:
                raise PluginError(
                    f"plugin {plugin} brings a state view {view.name!r}, and so does plugin "
                    f"{owners[view.name]}: take one out with --plugins -{plugin}, or have its "
                    "author rename the view"
                )
            owners[view.name] = plugin
            views.append(view)
    return views
