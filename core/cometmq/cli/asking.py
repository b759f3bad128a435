"""Commands that destroy something ask a person first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def yes_option(function: F) -> F:
    """`--yes`: the command does not ask."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(function)


def ask_to_delete(what: str, loss: str) -> None:
    """Return if a person agrees that `what` and `loss` go. Raises ClickException, and UsageError
    when nobody is there."""
    try:
        agreed = click.confirm(f"delete {what} and {loss}?", err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)  # behind the question
        raise click.UsageError(
            f"nobody is there to be asked, so {what} was not deleted; "
            "--yes deletes without a question"
        ) from None
    if not agreed:
        raise click.ClickException(f"{what} was not deleted: the answer was no")
