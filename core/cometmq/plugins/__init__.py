"""The plugin kernel: find, compose in order, check, call, count, and say who is to blame."""

from cometmq.plugins.compose import compose
from cometmq.plugins.composition import ComposedPlugin, Composition
from cometmq.plugins.contributions import by_key
from cometmq.plugins.discovery import GROUP, Candidate, Catalogue
from cometmq.plugins.plugin import Plugin

__all__ = [
    "GROUP",
    "Candidate",
    "Catalogue",
    "ComposedPlugin",
    "Composition",
    "Plugin",
    "by_key",
    "compose",
]
