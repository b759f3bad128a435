"""What all subcommands share: results as text or JSON, errors as one sentence, progress."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import click
import msgspec

from cometmq.advice import advice
from cometmq.errors import Closed, CometError, OutcomeUnknown, Retryable

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_ADDRESS = "tcp://127.0.0.1:7800"


def connect_option(function: F) -> F:
    """`--connect ADDRESS`, else `MQ_CONNECT`, else the default address of `mq run`. Whoever waits
    for a broker hears of it on stderr."""

    @functools.wraps(function)
    def told(*args: Any, **options: Any) -> Any:
        logger = logging.getLogger("cometmq.client.presence")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        # Who reads JSON gets one object on stderr, the error; who follows would get nothing.
        silent = options.get("as_json") and not options.get("follow")
        logger.handlers = [logging.NullHandler() if silent else _Presence()]
        return function(*args, **options)

    return click.option(
        "--connect",
        metavar="ADDRESS",
        envvar="MQ_CONNECT",
        default=DEFAULT_ADDRESS,
        show_default=True,
        show_envvar=True,
        help="Where the broker is.",
    )(cast(F, told))


class _Presence(logging.Handler):
    """A line on stderr when the broker is away or back: one, however many connections tell it."""

    def __init__(self) -> None:
        super().__init__()
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg != self._last:
            self._last = record.msg
            click.echo(f"mq: {record.getMessage()}", err=True)


def json_option(function: F) -> F:
    """`--json`: one JSON document (or one a line) on stdout instead of text."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def _timeout_option(function: F) -> F:
    """`--timeout SECONDS` for one answer of the broker."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0.1),
        metavar="SECONDS",
        default=10.0,
        show_default=True,
        help="How long to wait for an answer of the broker; 0.1 or more.",
    )(function)


def broker_options(function: F) -> F:
    """`--connect`, `--timeout` and `--json`: what every command takes that asks a broker."""
    return connect_option(_timeout_option(json_option(function)))


def print_json(value: Any) -> None:
    """One JSON document on one line; structs become objects, bytes base64."""
    click.echo(json.dumps(msgspec.to_builtins(_objects(value))))


def _objects(value: Any) -> Any:
    """Array structs as objects: names are for people and scripts, positions for the wire."""
    if isinstance(value, msgspec.Struct):
        return {name: _objects(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: _objects(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_objects(item) for item in value]
    return value


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns padded to their widest cell; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [
        max([len(head), *(len(row[column]) for row in cells)]) for column, head in enumerate(heads)
    ]
    right = [
        bool(rows) and all(isinstance(row[column], int | float) for row in rows)
        for column in range(len(heads))
    ]
    for line in [list(heads), *cells]:
        padded = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def counted(number: int, noun: str) -> str:
    """`1 queue`, `4,096 queues`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def exit_code_of(error: Exception) -> int | None:
    """The exit code for an error that has its own sentence, None for one that is a bug."""
    if isinstance(error, click.ClickException):
        return error.exit_code
    if isinstance(error, OutcomeUnknown | Retryable | TimeoutError):
        return 3
    if isinstance(error, CometError | Closed | OSError):
        return 1
    return None


def print_error(error: Exception, as_json: bool) -> None:
    """One sentence (which names the next step) on stderr."""
    text = _sentence(error)
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and not as_json:
        click.echo(error.format_message(), err=True)  # a page of help, no sentence
    elif as_json:
        code = getattr(error, "code", type(error).__name__)
        click.echo(json.dumps({"error": text, "code": code}), err=True)
    else:
        click.echo(f"mq: {text}", err=True)


def _sentence(error: Exception) -> str:
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx is not None else "mq"
        text = error.format_message().rstrip(".")
        if isinstance(error, click.NoSuchOption) and command == "mq":
            text += " before the command: options of a command stand after it"
        mark = "" if text.endswith(("?", "?)")) else ";"  # click may ask what was meant
        return f"{text}{mark} `{command} --help` says what is allowed"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.filename and error.strerror:
        told = f"{error.filename}: {error.strerror}"
        return f"{told}; {advice(error)}" if isinstance(error, PermissionError) else told
    return str(error)


class Progress:
    """A line on stderr that says how far a long work is; silent unless stderr is a terminal."""

    INTERVAL_S = 0.2

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._start_s = time.monotonic()
        self._next_s = self._start_s

    def update(self, messages: int, size_bytes: int) -> None:
        """Say it again if the last time is a while ago."""
        now_s = time.monotonic()
        if not self._shown or now_s < self._next_s:
            return
        self._next_s = now_s + self.INTERVAL_S
        rate = messages / max(now_s - self._start_s, 1e-9)
        line = f"{self._verb} {messages:,} messages, {size_bytes / 1e6:,.1f} MB, {rate:,.0f}/s"
        click.echo(f"\r{line}\x1b[K", nl=False, err=True)

    def elapsed_s(self) -> float:
        """Seconds since the work began."""
        return time.monotonic() - self._start_s

    def close(self) -> None:
        """Remove the line."""
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)
