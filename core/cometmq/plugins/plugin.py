"""What a plugin says about itself. Authors may derive from `Plugin`; any object with `name` does.

The class is published under the entry-point group `cometmq.plugins`. It is called as
`cls(options)` if it declares options, else as `cls()`. Its `@hookimpl` methods do the work.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from cometmq.plugins.discovery import Candidate, plugin_error


class Plugin:
    """Base with the declarations that the kernel reads; it adds types, no behaviour."""

    name: ClassVar[str]
    """The name of the entry point, of the table `[plugin.NAME]` and of `--plugins NAME`."""
    options: ClassVar[type[msgspec.Struct] | None] = None
    """A struct with a default, a type and a docstring for every option."""
    requires: ClassVar[tuple[str, ...]] = ()
    """Plugins that must be enabled too; they are, unless somebody takes them away."""
    before: ClassVar[tuple[str, ...]] = ()
    """Plugins that come later in every chain, if they are enabled."""
    after: ClassVar[tuple[str, ...]] = ()
    """Plugins that come earlier in every chain, if they are enabled."""
    bundle: ClassVar[tuple[str, ...]] = ()
    """Plugins that enabling this one enables; each may be taken away singly."""


class Declaration(msgspec.Struct, frozen=True):
    """A loaded plugin before it is made: what it said about itself, checked."""

    candidate: Candidate
    loaded: Any
    """What the entry point gave: a class to call, or a ready object."""
    options: type[msgspec.Struct] | None
    requires: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    bundle: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def help(self) -> str:
        """The docstring of the plugin, of its module if it has none."""
        kind = self.loaded if isinstance(self.loaded, type) else type(self.loaded)
        text = kind.__doc__ or sys.modules[kind.__module__].__doc__ or ""
        return inspect.cleandoc(text)


def declare(candidate: Candidate) -> Declaration:
    """Import a candidate and check its declarations. Raises PluginError."""
    loaded = candidate.load()
    name = getattr(loaded, "name", candidate.name)
    if name != candidate.name:
        raise plugin_error(
            candidate,
            f"calls itself {name!r}, not {candidate.name!r}",
            "give the attribute `name` and the entry point the same name",
        )
    options = getattr(loaded, "options", None)
    if options is not None and not _is(options, msgspec.Struct):
        raise plugin_error(
            candidate,
            f"has `options` = {options!r}, which is no msgspec.Struct class",
            "declare options as a subclass of msgspec.Struct, or leave the attribute out",
        )
    names = {kind: _names(candidate, loaded, kind) for kind in _RELATIONS}
    return Declaration(candidate=candidate, loaded=loaded, options=options, **names)


_RELATIONS = ("requires", "before", "after", "bundle")


def make(declaration: Declaration, options: msgspec.Struct | None) -> Any:
    """The plugin object itself. Raises PluginError if its constructor fails."""
    loaded: Callable[..., Any] = declaration.loaded
    if not isinstance(loaded, type):
        return loaded
    try:
        return loaded() if options is None else loaded(options)
    except Exception as error:
        raise plugin_error(
            declaration.candidate,
            f"can't be made: {type(error).__name__}: {error}",
            f"correct its options under [plugin.{declaration.name}], or take it out with "
            f"--plugins -{declaration.name}",
        ) from error


def _is(value: object, kind: type) -> bool:
    return isinstance(value, type) and issubclass(value, kind)


def _names(candidate: Candidate, loaded: object, kind: str) -> tuple[str, ...]:
    value = getattr(loaded, kind, ())
    if isinstance(value, tuple | list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise plugin_error(
        candidate,
        f"has `{kind}` = {value!r}, which is no tuple of plugin names",
        f"write {kind} = (NAME,), with the comma",
    )
