"""The `mq` command: one module per subcommand, imported only when it is called."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from importlib.metadata import entry_points

import click

from cometmq.cli.output import exit_code_of, print_error

COMMANDS = {
    "run": "cometmq.cli.run_command:run",
    "info": "cometmq.cli.info_command:info",
    "topic": "cometmq.cli.topic_command:topic",
    "produce": "cometmq.cli.produce_command:produce",
    "consume": "cometmq.cli.consume_command:consume",
    "group": "cometmq.cli.group_command:group",
    "log": "cometmq.cli.log_command:log",
    "doctor": "cometmq.cli.doctor_command:doctor",
    "plugins": "cometmq.cli.plugins_command:plugins",
    "config": "cometmq.cli.config_command:config",
    "bench": "cometmq.cli.bench_command:bench",
}
"""Subcommand to `module:object`; the order is the order of `mq --help`."""


class LazyGroup(click.Group):
    """Looks a subcommand up by name, so that `mq produce` does not pay for the broker's imports.
    Those of plugins are published under the entry-point group `cometmq.commands`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS | _contributed())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = COMMANDS.get(cmd_name) or _contributed().get(cmd_name)
        if target is None:
            return None
        module, _, name = target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            close = difflib.get_close_matches(name, known)
            hint = f"close to {' or '.join(close)}" if close else f"known are {', '.join(known)}"
            raise click.UsageError(f"there is no command {name!r} ({hint})", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of a pipe (`mq consume … | head`) had enough; that is no failure of ours.
            # What is still buffered goes nowhere, or the interpreter's last flush would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)
        return result


def _contributed() -> dict[str, str]:
    """Subcommands that installed plugins bring; the core's own names are not theirs to take."""
    found = {entry.name: entry.value for entry in entry_points(group="cometmq.commands")}
    return {name: value for name, value in sorted(found.items()) if name not in COMMANDS}


def _command_path(words: list[str]) -> str:
    """`mq topic alter`: the command that the words are of, as far as there is one. Click does not
    say it of an option that lacks its value."""
    path = "mq"
    command: click.Command | None = cli
    for word in words:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
        if command is not None:
            path += f" {word}"
    return path


def _tell_version(context: click.Context) -> None:
    from cometmq import native  # only here: every command starts with this file
    from cometmq.version import __version__

    how = "with its module in C" if native.loaded else "in plain Python"
    click.echo(f"mq, version {__version__}, {how}")
    context.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, asked: _tell_version(context) if asked else None,
    help="Show the version, and whether the module in C is there, and exit.",
)
def cli() -> None:
    """CometMQ: a durable message broker that a team composes out of plugins."""


def main() -> None:
    """Entry point of `mq`: every error is one sentence on stderr and an exit code, no traceback.

    Exit codes: 0 done; 1 refused or failed; 2 the command line is wrong; 3 the broker can't be
    reached or did not answer in time; 130 interrupted.
    """
    as_json = "--json" in sys.argv
    try:
        # Without its standalone mode click returns the code that a command exits with.
        code = cli.main(prog_name="mq", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(130)
    except Exception as error:
        if isinstance(error, click.UsageError) and error.ctx is None:
            error.ctx = click.Context(cli, info_name=_command_path(sys.argv[1:]))
        failed = exit_code_of(error)
        if failed is None:
            raise
        print_error(error, as_json)
        sys.exit(failed)
