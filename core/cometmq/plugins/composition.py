"""A composed set of plugins: who is in, and the ways to call them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from cometmq.errors import CometError, PluginError, PluginFailure
from cometmq.plugins.calls import HookCall, Running

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ComposedPlugin(msgspec.Struct, frozen=True):
    """One enabled plugin, as `mq plugins` shows it."""

    name: str
    distribution: str
    version: str
    target: str
    """`module:attribute` it was loaded from."""
    source: str
    """Why it is in: `standard set`, `named`, `required by X`, `bundle X`."""
    by_default: bool
    """It is in although the user named neither it nor anything that brings it."""
    options: msgspec.Struct | None
    hooks: tuple[str, ...]
    slots: tuple[str, ...]
    plugin: Any
    """The object itself."""


class Composition:
    """All enabled plugins in their order, checked; made by `compose`."""

    def __init__(
        self,
        plugins: Sequence[ComposedPlugin],
        calls: Sequence[HookCall],
        arguments: Mapping[str, tuple[str, ...]],
        state: Running,
    ) -> None:
        self.plugins = tuple(plugins)
        self._arguments = arguments
        self._state = state
        self._calls: dict[str, list[HookCall]] = {hook: [] for hook in arguments}
        for call in calls:
            self._calls[call.hook].append(call)

    @property
    def running(self) -> tuple[str, str] | None:
        """(plugin, hook) that runs at this moment, None outside of hooks. For other threads."""
        return self._state.running

    @property
    def awaited(self) -> str | None:
        """What of a plugin was called and is being awaited, in words, the same object as long as
        it is; None if nothing is. For other threads."""
        return self._state.awaited

    def implementers(self, hook: str) -> tuple[str, ...]:
        """Names of the plugins that implement a hook, in order."""
        return tuple(call.candidate.name for call in self._calls[hook])

    def chain(self, hook: str) -> tuple[Callable[..., Any], ...]:
        """The implementations of a hook as functions, in order, to be kept and called directly.

        Each takes all arguments of the hook by position. It raises PluginFailure (plugin,
        distribution, version, hook; the original is its `__cause__`) for whatever the plugin
        raised. The caller decides what a result means and whether to go on.
        """
        return tuple(call.function for call in self._calls[hook])

    def slot(self, hook: str, **arguments: Any) -> Any:
        """What the one implementation of a slot returns. Raises PluginError if that is nothing,
        or not what the slot is for."""
        (call,) = self._calls[hook]
        result = call.checked(self._positional(hook, arguments))
        if result is None:
            raise PluginError(
                f"{call.candidate} returned nothing for the slot `{hook}`; it must return an "
                f"object, so take it out with --plugins -{call.candidate.name} or mend it"
            )
        return result

    def collect(self, hook: str, **arguments: Any) -> list[tuple[str, Any]]:
        """(plugin name, result) of every implementation that returned something, in order. Raises
        PluginFailure for one that raises or returns what the hook does not allow."""
        values = self._positional(hook, arguments)
        results = [(call.candidate.name, call.checked(values)) for call in self._calls[hook]]
        return [(name, result) for name, result in results if result is not None]

    def collect_sound(self, hook: str, **arguments: Any) -> list[tuple[str, Any]]:
        """The same, for questions that the others should answer all the same: one that fails is
        counted, logged and left out."""
        values = self._positional(hook, arguments)
        results: list[tuple[str, Any]] = []
        for call in self._calls[hook]:
            try:
                result = call.checked(values)
            except CometError as error:
                logger.error("%s: %s", hook, error, exc_info=error)
                continue
            if result is not None:
                results.append((call.candidate.name, result))
        return results

    async def call_each(self, hook: str, **arguments: Any) -> None:
        """Call all in order, awaiting each that is async before the next. The first error ends
        it."""
        values = self._positional(hook, arguments)
        for call in self._calls[hook]:
            await call.awaited(values)

    async def call_all_reversed(self, hook: str, **arguments: Any) -> None:
        """Call all, the last one first; one that fails keeps nobody else from being called. Raises
        an ExceptionGroup of what failed."""
        values = self._positional(hook, arguments)
        errors: list[Exception] = []
        for call in reversed(self._calls[hook]):
            try:
                await call.awaited(values)
            except CometError as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"plugins failed in hook `{hook}`", errors)

    async def named(self, what: str, awaitable: Awaitable[T]) -> T:
        """Await something that hangs if a plugin does; meanwhile `awaited` says `what`."""
        self._state.awaited = what
        try:
            return await awaitable
        finally:
            self._state.awaited = None

    def blame(self, hook: str, plugin: str, error: BaseException) -> PluginFailure:
        """What was brought by this hook of this plugin failed: it is counted there, and named."""
        (call,) = (each for each in self._calls[hook] if each.candidate.name == plugin)
        return call.blame(error)

    def counters(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Plugin name to hook to (calls, errors)."""
        counts: dict[str, dict[str, tuple[int, int]]] = {it.name: {} for it in self.plugins}
        for calls in self._calls.values():
            for call in calls:
                counts[call.candidate.name][call.hook] = (call.calls, call.errors)
        return counts

    def _positional(self, hook: str, arguments: Mapping[str, Any]) -> list[Any]:
        wanted = self._arguments[hook]
        if set(wanted) != set(arguments):
            raise TypeError(f"hook {hook} is called with {sorted(arguments)}, not {list(wanted)}")
        return [arguments[name] for name in wanted]
