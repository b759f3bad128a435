"""`compose`: from a config to a checked, ordered, callable set of plugins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any

import msgspec

from cometmq.config import Config
from cometmq.plugins.calls import HookCall, Running
from cometmq.plugins.composition import ComposedPlugin, Composition
from cometmq.plugins.discovery import Catalogue, installed
from cometmq.plugins.options import check_tables, parse_options
from cometmq.plugins.order import in_order
from cometmq.plugins.plugin import make
from cometmq.plugins.resolve import Member, Resolver, Wanted
from cometmq.plugins.verify import register, spec_arguments


def compose(
    config: Config,
    *,
    extra_plugins: Mapping[str, object] | None = None,
    entry_points: Iterable[EntryPoint] | None = None,
) -> Composition:
    """Import, order, set up and check the plugins that `config` enables.

    `extra_plugins` are plugin classes or objects by name, available as if they were installed
    (the config enables them like any other). `entry_points` stands in for the scan of installed
    distributions. Nothing of a plugin runs here but its import and its constructor. Raises
    PluginError and ConfigError, each naming plugin, distribution, version and the next step.
    """
    catalogue = Catalogue(
        installed() if entry_points is None else entry_points, extra_plugins or {}
    )
    check_tables(config, catalogue)
    members = in_order(Resolver(catalogue, config).resolve(), config.plugins.enable)
    options = [parse_options(member.declaration, config) for member in members]
    made = [make(it.declaration, given) for it, given in zip(members, options, strict=True)]
    candidates = [member.declaration.candidate for member in members]
    found = register(list(zip(candidates, made, strict=True)))

    arguments, state = spec_arguments(), Running()
    calls = [
        HookCall(candidate, hook, implementation, arguments[hook], state)
        for candidate in candidates
        for hook, implementation in found[candidate.name].items()
    ]
    plugins = [
        _composed(member, given, plugin, [hook for hook in arguments if hook in found[member.name]])
        for member, given, plugin in zip(members, options, made, strict=True)
    ]
    return Composition(plugins, calls, arguments, state)


def _composed(
    member: Member, options: msgspec.Struct | None, plugin: Any, hooks: Sequence[str]
) -> ComposedPlugin:
    candidate = member.declaration.candidate
    return ComposedPlugin(
        name=member.name,
        distribution=candidate.distribution,
        version=candidate.version,
        target=candidate.target,
        source=member.why,
        by_default=member.wanted is Wanted.STANDARD,
        options=options,
        hooks=tuple(hooks),
        slots=member.slots,
        plugin=plugin,
    )
