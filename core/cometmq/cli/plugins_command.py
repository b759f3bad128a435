"""`mq plugins`: what is enabled, in which order, and what else could be."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator

import click
import msgspec

from cometmq.cli.composing import read_settings, settings_options
from cometmq.cli.output import json_option, print_json, print_table
from cometmq.config.values import describe
from cometmq.errors import PluginError
from cometmq.hookspecs import SLOTS
from cometmq.plugins import Catalogue, Composition, compose
from cometmq.plugins.discovery import installed
from cometmq.plugins.plugin import Declaration, declare
from cometmq.plugins.verify import hook_names

AVAILABLE = "available"


class Listed(msgspec.Struct, frozen=True):
    """One line of `mq plugins`."""

    name: str
    version: str
    distribution: str
    source: str
    """Why it is enabled, or `available`."""
    slots: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    error: str = ""
    """Why it can't be enabled, if it can't."""


class Option(msgspec.Struct, frozen=True):
    """One option of a plugin."""

    name: str
    allowed: str
    required: bool
    default: object = None
    help: str = ""


class Shown(msgspec.Struct, frozen=True):
    """What `mq plugins show` says."""

    name: str
    distribution: str
    version: str
    target: str
    help: str
    options: list[Option]
    hooks: tuple[str, ...]
    slots: tuple[str, ...]
    requires: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    bundle: tuple[str, ...]


@click.group(invoke_without_command=True)
@settings_options
@json_option
@click.pass_context
def plugins(context: click.Context, path: str | None, names: str, as_json: bool) -> None:
    """List plugins, the enabled ones first, in their order."""
    if context.invoked_subcommand is not None:
        return
    composition = compose(read_settings(path, names))
    listed = [*_enabled(composition), *_available(composition)]
    if as_json:
        print_json(listed)
        return
    heads = ("name", "version", "distribution", "source", "slots", "hooks")
    print_table(
        heads,
        [
            (
                it.name,
                it.version,
                it.distribution,
                it.source,
                ", ".join(it.slots) or "-",
                it.error or ", ".join(it.hooks) or "-",
            )
            for it in listed
        ],
    )


@plugins.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show one plugin: what it does, its options, hooks and requirements."""
    declaration = declare(Catalogue(installed(), {}).find(name, "asked for"))
    shown = _shown(declaration)
    if as_json:
        print_json(shown)
        return
    click.echo(f"{shown.name}  ({shown.distribution} {shown.version}, {shown.target})\n")
    click.echo(shown.help or "(no description)")
    click.echo(f"\noptions, in [plugin.{shown.name}]:" if shown.options else "\noptions: none")
    for option in shown.options:
        default = "needed" if option.required else f"default {_text(option.default)}"
        click.echo(f"  {option.name}: {option.allowed}; {default}")
        if option.help:
            click.echo(textwrap.indent(textwrap.fill(option.help, 90), "      "))
    for field in ("hooks", "slots", "requires", "before", "after", "bundle"):
        words = getattr(shown, field)
        if words:
            click.echo(f"{field}: {', '.join(words)}")


def _enabled(composition: Composition) -> Iterator[Listed]:
    for it in composition.plugins:
        yield Listed(it.name, it.version, it.distribution, it.source, it.slots, it.hooks)


def _available(composition: Composition) -> Iterator[Listed]:
    """The rest, imported to see their hooks; one that can't be says why in its line."""
    catalogue = Catalogue(installed(), {})
    enabled = {plugin.name for plugin in composition.plugins}
    for name in catalogue.names:
        if name in enabled:
            continue
        try:
            declaration = declare(catalogue.find(name, "listed"))
        except PluginError as error:
            yield Listed(name, "?", "?", AVAILABLE, error=_told(error))
            continue
        candidate, hooks = declaration.candidate, hook_names(declaration.loaded)
        slots = tuple(hook for hook in hooks if hook in SLOTS)
        yield Listed(name, candidate.version, candidate.distribution, AVAILABLE, slots, hooks)


def _told(error: PluginError) -> str:
    """Of something that is not installed only what, and how to have it: the line says the rest."""
    cause = error.__cause__
    return str(cause if isinstance(cause, ModuleNotFoundError) else error)


def _shown(declaration: Declaration) -> Shown:
    candidate, hooks = declaration.candidate, hook_names(declaration.loaded)
    return Shown(
        name=declaration.name,
        distribution=candidate.distribution,
        version=candidate.version,
        target=candidate.target,
        help=declaration.help,
        options=[] if declaration.options is None else list(_options(declaration.options)),
        hooks=hooks,
        slots=tuple(hook for hook in hooks if hook in SLOTS),
        requires=declaration.requires,
        before=declaration.before,
        after=declaration.after,
        bundle=declaration.bundle,
    )


def _options(kind: type[msgspec.Struct]) -> Iterator[Option]:
    helps = _field_docs(kind)
    for field in msgspec.structs.fields(kind):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if field.required:
            default = None
        yield Option(
            name=field.name,
            allowed=describe(field.type),
            required=field.required,
            default=msgspec.to_builtins(default),
            help=helps.get(field.name, ""),
        )


def _text(default: object) -> str:
    """As it would stand in mq.toml."""
    return json.dumps(msgspec.to_builtins(default), ensure_ascii=False)


def _field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The text below each field, which only the source still has. A class without source (made
    at run time, or shipped as bytecode) has none."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):
        return {}
    docs: dict[str, str] = {}
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    for pair in zip(body, body[1:], strict=False):
        match pair:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = " ".join(text.split())
    return docs
