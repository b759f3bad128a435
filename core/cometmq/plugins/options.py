"""Options of a plugin: its table in the file, checked against the struct that it declares."""

from __future__ import annotations

import msgspec

from cometmq.config import Config
from cometmq.config.values import convert, describe, did_you_mean, fail, show
from cometmq.plugins.discovery import Catalogue
from cometmq.plugins.plugin import Declaration


def parse_options(declaration: Declaration, config: Config) -> msgspec.Struct | None:
    """The options struct, or None for a plugin without options. Raises ConfigError: place of the
    value, plugin, distribution, version, option, what is allowed."""
    name, who = declaration.name, declaration.candidate
    table = config.plugin.get(name, {})
    if declaration.options is None:
        for key in table:
            fail(config.source(f"plugin.{name}.{key}"), f"{who} takes no options; remove `{key}`")
        return None
    fields = {field.name: field for field in msgspec.structs.fields(declaration.options)}
    values = {}
    for key, value in table.items():
        source = config.source(f"plugin.{name}.{key}")
        if key not in fields:
            fail(source, f"{who} has no option `{key}`; {did_you_mean(key, fields)}")
        try:
            values[key] = convert(value, fields[key].type, source)
        except ValueError:
            allowed = describe(fields[key].type)
            fail(source, f"option `{key}` of {who} is {show(value)}, but it must be {allowed}")
    return _build(declaration, declaration.options, values, config)


def _build(
    declaration: Declaration,
    options: type[msgspec.Struct],
    values: dict[str, object],
    config: Config,
) -> msgspec.Struct:
    name, who = declaration.name, declaration.candidate
    for field in msgspec.structs.fields(options):
        if field.required and field.name not in values:
            raise_at = config.source(f"plugin.{name}")
            fail(
                raise_at,
                f"{who} needs the option `{field.name}`, {describe(field.type)}; write it under "
                f"[plugin.{name}]",
            )
    try:
        return options(**values)
    except ValueError as error:
        places = [str(config.source(f"plugin.{name}.{key}")) for key in values]
        where = f" ({', '.join(dict.fromkeys(places))})" if places else ""
        fail(config.source(f"plugin.{name}"), f"options of {who} don't fit: {error}{where}")


def check_tables(config: Config, catalogue: Catalogue) -> None:
    """Every `[plugin.NAME]` belongs to a plugin that is there, enabled or not."""
    for name, table in config.plugin.items():
        if name not in catalogue:
            source = config.source(f"plugin.{name}.{next(iter(table))}")
            hint = did_you_mean(name, catalogue.names)
            fail(source, f"[plugin.{name}] belongs to no plugin that is installed; {hint}")
