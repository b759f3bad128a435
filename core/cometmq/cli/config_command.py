"""`mq config`: is it right, and where does each value come from?"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from cometmq.broker.preflight import preflight
from cometmq.cli.composing import read_settings, settings_options
from cometmq.cli.output import json_option, print_json
from cometmq.config import Config, unknown_variables
from cometmq.plugins import Composition, compose


@click.group()
def config() -> None:
    """Check settings, or show them with their sources."""


@config.command()
@settings_options
@json_option
def check(path: str | None, names: str, as_json: bool) -> None:
    """Say `ok`, or what to mend in the settings (exit code 1).

    Enabled plugins are imported and their options checked; nothing is opened or bound.
    """
    settings = read_settings(path, names)
    composition = compose(settings)
    preflight(settings, composition)
    enabled = [plugin.name for plugin in composition.plugins]
    idle = sorted(set(settings.plugin) - set(enabled))
    unknown = unknown_variables(os.environ)
    if as_json:
        print_json({"ok": True, "plugins": enabled, "idle": idle, "unknown": unknown})
        return
    click.echo("ok")
    for name in idle:
        click.echo(f"note: [plugin.{name}] has no effect, because {name} is not enabled", err=True)
    for name in unknown:
        click.echo(
            f"note: the variable {name} sets nothing; settings are MQ_SECTION__KEY, with two "
            "underscores",
            err=True,
        )


@config.command()
@settings_options
@json_option
def show(path: str | None, names: str, as_json: bool) -> None:
    """Print all settings as TOML, each with its source."""
    settings = read_settings(path, names)
    composition = compose(settings)
    tables = list(_tables(settings, composition))
    if as_json:
        print_json(
            {
                title: {
                    key: {"value": value, "source": str(settings.source(f"{title}.{key}"))}
                    for key, value in values.items()
                }
                for title, values in tables
            }
        )
        return
    unset = {"broker.level": f": {composition.slot('flush_policy').default_level}, by the plugins"}
    for number, (title, values) in enumerate(tables):
        click.echo(f"{'' if number == 0 else chr(10)}[{title}]")
        for line in _lines(settings, title, values, unset):
            click.echo(line)


def _tables(settings: Config, composition: Composition) -> Iterator[tuple[str, dict[str, Any]]]:
    """Table titles and their values: the sections, then the options of every plugin, and tables
    of plugins that are not enabled as they are written."""
    for section in ("broker", "log", "limits", "plugins"):
        yield section, _fields(getattr(settings, section))
    options = {it.name: it.options for it in composition.plugins if it.options is not None}
    for name, given in options.items():
        yield f"plugin.{name}", _fields(given)
    for name, table in settings.plugin.items():
        if name not in options:
            yield f"plugin.{name}", table


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    """By name even where the struct travels as an array."""
    return {name: msgspec.to_builtins(getattr(struct, name)) for name in struct.__struct_fields__}


def _lines(
    settings: Config, title: str, values: dict[str, Any], unset: dict[str, str]
) -> Iterator[str]:
    """`unset`: what is meant where there is no value, by dotted key."""
    texts = {
        key: f"# {key} is not set{unset.get(f'{title}.{key}', '')}"
        if value is None
        else f"{key} = {_toml(value)}"
        for key, value in values.items()
    }
    width = max((len(text) for text in texts.values()), default=0)
    for key, text in texts.items():
        yield f"{text.ljust(width)}  # {settings.source(f'{title}.{key}')}"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(key)} = {_toml(it)}" for key, it in value.items()) + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)
