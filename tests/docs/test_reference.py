"""The reference pages name every command, option, setting and error code that exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

import cometmq
from cometmq.cli import cli
from cometmq.config import Config
from cometmq.protocol import Status

DOCS = Path(__file__).resolve().parents[2] / "docs"


def commands(group: click.Command, prefix: str = "mq") -> Iterator[tuple[str, click.Command]]:
    """(full name, command) of every command that does something."""
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from commands(command, f"{prefix} {name}")
        if not group.invoke_without_command:
            return
    yield prefix, group


def test_every_command_and_option_is_documented() -> None:
    page = (DOCS / "commands.md").read_text()
    missing = []
    for name, command in commands(cli):
        _, heading, rest = page.partition(f"\n## `{name}`")
        if not heading:
            missing.append(name)
            continue
        section = rest.partition("\n## ")[0] + page.partition("\n## ")[0]
        for parameter in command.params:
            option = max(parameter.opts, key=len)
            if isinstance(parameter, click.Option) and option not in section:
                missing.append(f"{name} {option}")
    assert not missing, f"docs/commands.md lacks {missing}"


def settings(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    """Dotted names of all settings of the config tree."""
    for field in msgspec.structs.fields(kind):
        if field.name == "sources":  # where values came from, not a setting
            continue
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from settings(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def test_every_setting_is_documented() -> None:
    page = (DOCS / "configuration.md").read_text()
    missing = [name for name in settings(Config) if f"`{name}`" not in page]
    assert not missing, f"docs/configuration.md lacks {missing}"


def codes_made_here() -> Iterator[str]:
    """Those that clients give their own exceptions."""
    for path in Path(cometmq.__path__[0]).rglob("*.py"):
        yield from re.findall(r'code="([A-Z_]+)"', path.read_text())


def test_every_error_code_is_documented() -> None:
    page = (DOCS / "errors.md").read_text()
    codes = {status.name for status in Status} | set(codes_made_here())
    missing = sorted(code for code in codes if f"`{code}`" not in page)
    assert not missing, f"docs/errors.md lacks {missing}"
