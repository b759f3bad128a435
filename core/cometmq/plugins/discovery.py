"""Which plugins there are: entry points of installed distributions, and objects given directly.

Nothing is imported here before it is asked for. The order in which a folder lists its
distributions has no meaning, so nothing depends on it.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import Any

from cometmq.config.values import did_you_mean
from cometmq.errors import PluginError

GROUP = "cometmq.plugins"
"""The entry-point group under which plugins are published."""


class Candidate:
    """A plugin that could be enabled; not imported yet."""

    def __init__(self, name: str, distribution: str, version: str, target: str, given: Any) -> None:
        self.name = name
        self.distribution = distribution
        self.version = version
        self.target = target
        """`module:attribute`, or the class of an object given directly."""
        self._given = given

    @classmethod
    def of(cls, entry_point: EntryPoint) -> Candidate:
        """From an installed distribution."""
        dist = entry_point.dist
        name, version = (dist.name, dist.version) if dist else ("unknown distribution", "?")
        return cls(entry_point.name, name, version, entry_point.value, entry_point)

    @classmethod
    def given(cls, name: str, plugin: object) -> Candidate:
        """From an object (or class) in this process."""
        kind = plugin if isinstance(plugin, type) else type(plugin)
        return cls(name, "given directly", "", f"{kind.__module__}:{kind.__qualname__}", plugin)

    def __str__(self) -> str:
        return f"plugin `{self.name}` ({f'{self.distribution} {self.version}'.strip()})"

    def load(self) -> Any:
        """Import it. Raises PluginError naming what failed."""
        if not isinstance(self._given, EntryPoint):
            return self._given
        try:
            return self._given.load()
        except Exception as error:
            raise plugin_error(
                self,
                f"can't be imported from {self.target}: {type(error).__name__}: {error}",
                "install what it needs, or do without it: name it no more, or, where it is on by "
                f"default, take it out with --plugins -{self.name}",
            ) from error


def plugin_error(candidate: Candidate, what: str, next_step: str) -> PluginError:
    """The one form of all set-up errors of a plugin: who, what, what to do next."""
    return PluginError(f"{candidate} {what}; {next_step}")


class Catalogue:
    """All candidates by name; one given directly stands before an installed one of its name."""

    def __init__(
        self, entry_points: Iterable[EntryPoint], extra_plugins: Mapping[str, object]
    ) -> None:
        self._installed: dict[str, list[Candidate]] = {}
        for entry_point in entry_points:
            candidate = Candidate.of(entry_point)
            self._installed.setdefault(candidate.name, []).append(candidate)
        self._given = {name: Candidate.given(name, it) for name, it in extra_plugins.items()}

    @property
    def names(self) -> list[str]:
        return sorted({*self._installed, *self._given})

    def __contains__(self, name: str) -> bool:
        return name in self._given or name in self._installed

    def find(self, name: str, said_by: str) -> Candidate:
        """The candidate of a name that `said_by` wants. Raises PluginError if there is none, or
        if two distributions publish it."""
        if name in self._given:
            return self._given[name]
        found = self._installed.get(name, [])
        if not found:
            raise PluginError(
                f"there is no plugin `{name}` ({said_by}); {did_you_mean(name, self.names)} "
                "Install the distribution that has it, or correct the name"
            )
        if len(found) > 1:
            both = " and ".join(sorted(str(candidate) for candidate in found))
            raise PluginError(
                f"two distributions publish the same name: {both}; uninstall one of them"
            )
        return found[0]


@functools.cache
def installed() -> tuple[EntryPoint, ...]:
    """The entry points of our group; the scan (2 ms) is done once a process."""
    return tuple(importlib.metadata.entry_points(group=GROUP))
