"""Check every `@hookimpl` method against its spec, before anything runs.

pluggy lets a misspelt hook pass, and never passes an argument that has a default; and it orders
calls in its own way. So the rules here are stricter, and say what to write instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pluggy

from cometmq import hookspecs
from cometmq.config.values import did_you_mean
from cometmq.errors import PluginError
from cometmq.plugins.discovery import Candidate

PROJECT = hookspecs.hookimpl.project_name


def spec_arguments() -> dict[str, tuple[str, ...]]:
    """Hook name to the names of its arguments, both in the order of `hookspecs.py`."""
    callers = vars(_manager().hook)
    return {name: tuple(callers[name].spec.argnames) for name in vars(hookspecs) if name in callers}


def hook_names(plugin: object) -> tuple[str, ...]:
    """Names of the hooks that a plugin (its class will do) claims to implement, sorted."""
    return tuple(sorted(_claimed(plugin)))


def register(plugins: list[tuple[Candidate, Any]]) -> dict[str, dict[str, pluggy.HookImpl]]:
    """Check and register all plugins: plugin name to hook to implementation. Raises PluginError
    naming plugin, distribution, version, hook and the next step."""
    manager = _manager()
    found: dict[str, dict[str, pluggy.HookImpl]] = {}
    for candidate, plugin in plugins:
        _check(candidate, plugin)
        try:
            manager.register(plugin, candidate.name)
        except (ValueError, pluggy.PluginValidationError) as error:
            raise PluginError(f"{candidate} can't be registered: {error}; correct it") from error
        callers = manager.get_hookcallers(plugin) or []
        found[candidate.name] = {
            caller.name: implementation
            for caller in callers
            for implementation in caller.get_hookimpls()
            if implementation.plugin is plugin
        }
    return found


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _claimed(plugin: object) -> dict[str, tuple[str, pluggy.HookimplOpts]]:
    """Hook name to (method name, marker options)."""
    manager = pluggy.PluginManager(PROJECT)
    claimed = {}
    for attribute in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, attribute)
        if options is not None:
            claimed[options.get("specname") or attribute] = (attribute, options)
    return claimed


def _check(candidate: Candidate, plugin: object) -> None:
    specs = spec_arguments()
    claimed = _claimed(plugin)
    for hook, (attribute, options) in claimed.items():
        if hook not in specs:
            raise _error(candidate, hook, f"is no hook; {did_you_mean(hook, specs)}")
        if any(options[way] for way in ("hookwrapper", "wrapper", "tryfirst", "trylast")):
            raise _error(
                candidate,
                hook,
                "is marked as a wrapper, tryfirst or trylast, which CometMQ has not; use a plain "
                "@hookimpl, and `before` or `after` on the plugin for the order",
            )
        _check_signature(candidate, hook, getattr(plugin, attribute), specs[hook])
    for hook in specs:
        if hook not in claimed and inspect.isroutine(inspect.getattr_static(plugin, hook, None)):
            raise _error(candidate, hook, "has the name of a hook but no mark; add @hookimpl")


def _check_signature(
    candidate: Candidate, hook: str, method: Callable[..., Any], arguments: tuple[str, ...]
) -> None:
    taken = f"it may take {', '.join(arguments)}" if arguments else "it takes no arguments"
    for parameter in inspect.signature(method).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise _error(candidate, hook, f"takes `{parameter}`; use plain arguments only: {taken}")
        if parameter.name not in arguments:
            guess = f" {did_you_mean(parameter.name, arguments)}" if arguments else ""
            raise _error(candidate, hook, f"has no argument `{parameter.name}`;{guess} ({taken})")
        if parameter.default is not parameter.empty:
            raise _error(
                candidate,
                hook,
                f"gives its argument `{parameter.name}` a default, but it is always passed; "
                "remove the default",
            )
    is_async = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
    if is_async and hook not in hookspecs.AWAITED:
        raise _error(candidate, hook, "is async, but nobody awaits it; make it a plain def")


def _error(candidate: Candidate, hook: str, what: str) -> PluginError:
    return PluginError(f"{candidate}: hook `{hook}` {what}")
