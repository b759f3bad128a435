"""`mq consume`: print what a topic holds, from any place, once or for ever."""

from __future__ import annotations

import sys
from datetime import datetime

import click

from cometmq.cli.json_lines import format_line
from cometmq.cli.output import Progress, connect_option, json_option, timeout_option
from cometmq.client.admin import Admin
from cometmq.client.consumer import PullConsumer
from cometmq.errors import Expired, Truncated

POLL_S = 0.5


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="earliest|latest|TIME|OFFSET",
    help="TIME as 2026-05-01T12:00 (local, or with an offset); OFFSET is a number, for each queue.",
)
@click.option("--queue", "queues", type=click.IntRange(0, 65535), multiple=True, help="Only these.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option("--follow", is_flag=True, help="Wait for more instead of stopping at the end.")
@connect_option
@timeout_option
@json_option
def consume(
    topic: str,
    start: str,
    queues: tuple[int, ...],
    count: int | None,
    follow: bool,
    connect: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC: bodies, one a line, or JSON lines with --json.

    Without --follow it stops at what was readable when it started. Nothing is committed.
    """
    start_at = parse_start(start)
    with Admin(connect, timeout=timeout_s) as admin:
        description = admin.describe_topic(topic)
    wanted = list(queues) or [info.queue for info in description.queues]
    ends = {info.queue: info.max_offset for info in description.queues if info.queue in wanted}
    missing = sorted(set(wanted) - set(ends))
    if missing:
        raise click.UsageError(
            f"{topic} has queues 0 to {len(description.queues) - 1}, not {missing}"
        )
    with PullConsumer(connect, topic=topic, queues=wanted, start=start_at) as consumer:
        _print(consumer, None if follow else ends, count, as_json)


def parse_start(text: str) -> str | int | datetime:
    """`earliest`, `latest`, an offset, or a time. Raises UsageError with the forms allowed."""
    if text in ("earliest", "latest"):
        return text
    if text.isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise click.UsageError(
            f"--from {text!r} is none of earliest, latest, an offset (42), "
            "a time (2026-05-01T12:00)"
        ) from None


def _print(
    consumer: PullConsumer, ends: dict[int, int] | None, count: int | None, as_json: bool
) -> None:
    """Poll and print until `count` messages, or each queue's end, or for ever."""
    out = sys.stdout.buffer
    progress = Progress("read")
    left = count
    messages = size_bytes = 0
    try:
        while left != 0 and not _at_end(consumer, ends):
            limit = 1000 if left is None else min(1000, left)
            try:
                batch = consumer.poll(max_messages=limit, timeout=POLL_S)
            except (Truncated, Expired) as error:
                click.echo(f"mq: {error}", err=True)
                continue
            for message in batch:
                if ends is not None and message.offset >= ends[message.queue]:
                    continue
                out.write((format_line(message) if as_json else message.body) + b"\n")
                messages += 1
                size_bytes += len(message.body)
                left = None if left is None else left - 1
            if batch:
                out.flush()
            progress.update(messages, size_bytes)
    finally:
        progress.close()


def _at_end(consumer: PullConsumer, ends: dict[int, int] | None) -> bool:
    if ends is None:
        return False
    return all(consumer.position(queue) >= end for queue, end in ends.items())
