"""`mq produce`: every line of a file or of stdin becomes a message."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO

import click

from cometmq.batch.layout import CODECS
from cometmq.cli.json_lines import parse_line
from cometmq.cli.output import Progress, broker_options, counted, print_json
from cometmq.client.batching import Receipt
from cometmq.client.producer import Producer
from cometmq.errors import CometError, OutcomeUnknown, Refused, Retryable
from cometmq.interfaces import Level
from cometmq.message import Message

FAILURES_SHOWN = 10


@dataclass
class Failure:
    """Lines in a row that failed for one reason."""

    first: int
    last: int
    reason: str

    def __str__(self) -> str:
        if self.first == self.last:
            return f"line {self.first:,}: {self.reason}"
        return f"lines {self.first:,} to {self.last:,}: {self.reason}"


class Tally:
    """What became of the lines: counts, and the first failures with their line numbers."""

    def __init__(self, timeout_s: float) -> None:
        self.acked = 0
        self.failed = 0
        self.size_bytes = 0
        """Of the lines that were acked, without their newlines."""
        self.failures: list[Failure] = []
        self.unanswered = False
        """The broker was given its time and did not take or answer a line: stop reading."""
        self._timeout_s = timeout_s
        self._open: deque[tuple[int, Receipt, int]] = deque()

    def sent(self, number: int, receipt: Receipt, size_bytes: int) -> None:
        """A line is on its way; settles those at the head whose answer is there."""
        self._open.append((number, receipt, size_bytes))
        while self._open and self._open[0][1].done():
            self._settle()

    def settle_all(self) -> None:
        """Wait for the answers that are still out."""
        while self._open:
            self._settle()

    def refused(self, number: int, error: Exception) -> None:
        """A line that was not stored, or of which nothing is known."""
        self.failed += 1
        self.unanswered |= isinstance(error, Retryable | OutcomeUnknown | TimeoutError)
        last = self.failures[-1] if self.failures else None
        if last is not None and (last.last, last.reason) == (number - 1, str(error)):
            last.last = number
        elif len(self.failures) < FAILURES_SHOWN:
            self.failures.append(Failure(number, number, str(error)))

    def _settle(self) -> None:
        number, receipt, size_bytes = self._open.popleft()
        try:
            receipt.result(timeout=self._timeout_s)
        except (CometError, TimeoutError) as error:
            self.refused(number, error)
        else:
            self.acked += 1
            self.size_bytes += size_bytes


@click.command()
@click.argument("topic")
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="A line is a body, or a JSON object with body, tag, keys, properties, sharding_key.",
)
@click.option("--tag", default="", help="Tag of every message (form `lines`).")
@click.option("--key", "keys", multiple=True, help="Key of every message (form `lines`).")
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of every message (form `lines`).",
)
@click.option("--sharding-key", help="Same key, same queue, order kept (form `lines`).")
@click.option("--level", type=click.Choice(["memory", "disk", "quorum"]), help="Ack level.")
@click.option("--compression", type=click.Choice(CODECS[1:]), help="Compress the batches.")
@click.option(
    "--compression-level", type=int, metavar="N", help="Smaller or faster, as the codec counts."
)
@broker_options
def produce(
    topic: str,
    file: str | None,
    form: str,
    tag: str,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    sharding_key: str | None,
    level: Level | None,
    compression: str | None,
    compression_level: int | None,
    connect: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Send each line of FILE (or of stdin) to TOPIC.

    Exit code 1 if a line was refused, 3 if the broker does not answer: then the rest isn't sent.
    """
    if compression_level is not None and compression is None:
        raise click.UsageError(
            f"--compression-level {compression_level} without --compression compresses nothing"
        )
    given = _parse_properties(properties)

    def message_of(line: bytes) -> Message:
        if form == "json":
            return parse_line(topic, line)
        return Message(topic, line, tag=tag, keys=keys, properties=given, sharding_key=sharding_key)

    tally = Tally(timeout_s)
    progress = Progress("sent")
    number = 0
    with ExitStack() as stack:
        source = stack.enter_context(open(file, "rb")) if file else _stdin()
        stack.callback(progress.close)
        producer = stack.enter_context(
            Producer(
                connect,
                level=level,
                send_timeout=timeout_s,
                compression=compression,
                compression_level=compression_level,
            )
        )
        for number, line in _lines(source):
            try:
                tally.sent(number, producer.send_soon(message_of(line)), len(line))
            except Refused as error:
                tally.refused(number, error)
            progress.update(tally.acked, tally.size_bytes)
            if tally.unanswered:
                break
        tally.settle_all()
    _report(topic, tally, number, progress.elapsed_s(), as_json)


def _stdin() -> BinaryIO:
    if sys.stdin.isatty():
        click.echo("every line is a message; ctrl-D ends", err=True)
    return sys.stdin.buffer


def _lines(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line without its newline), every other byte kept."""
    for number, line in enumerate(source, 1):
        yield number, line[:-1] if line.endswith(b"\n") else line


def _parse_properties(given: tuple[str, ...]) -> dict[str, str]:
    properties: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--property wants NAME=VALUE, not {item!r}")
        properties[name] = value
    return properties


def _report(topic: str, tally: Tally, sent: int, elapsed_s: float, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": topic,
                "acked": tally.acked,
                "failed": tally.failed,
                "bytes": tally.size_bytes,
                "seconds": round(elapsed_s, 3),
                "failures": [str(failure) for failure in tally.failures],
            }
        )
    else:
        click.echo(
            f"{counted(tally.acked, 'message')}, {counted(tally.size_bytes, 'byte')} to {topic} "
            f"in {elapsed_s:.2f} s",
            err=True,
        )
        for failure in tally.failures:
            click.echo(f"mq: {failure}", err=True)
    if tally.unanswered:
        raise TimeoutError(
            f"the broker did not answer in time, so nothing behind line {sent:,} was sent, and "
            f"{counted(tally.failed, 'line')} before it may be missing; send those and the rest "
            "again when it does"
        )
    if tally.failed:
        raise click.ClickException(
            f"{counted(tally.failed, 'line')} not stored; mend what is named above and send them "
            "again"
        )
