"""`mq topic …`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from cometmq.cli.asking import ask_to_delete, yes_option
from cometmq.cli.output import broker_options, counted, print_json, print_table
from cometmq.cli.retention_options import changed, in_words, retention_options
from cometmq.client.admin import Admin
from cometmq.names import QUEUES_MAX
from cometmq.protocol import TopicDescription, TopicInfo

OFFSETS = """\
min: the first message still there; max: behind the last one that consumers see;
next: what the next message sent gets (beyond max: those between can't be read yet)"""


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


@topic.command()
@click.argument("name")
@click.option(
    "--queues",
    type=click.IntRange(1, QUEUES_MAX),
    metavar="N",
    default=4,
    show_default=True,
    help=f"How many message queues, 1 to {QUEUES_MAX}; order is kept within a queue.",
)
@broker_options
def create(name: str, queues: int, connect: str, timeout_s: float, as_json: bool) -> None:
    """Create topic NAME."""
    with Admin(connect, timeout=timeout_s) as admin:
        description = admin.create_topic(name, queues=queues)
    if as_json:
        print_json(description)
    else:
        click.echo(f"created {name} with {counted(description.info.queues, 'queue')}")


@topic.command("list")
@click.option("--prefix", default="", help="Only names that begin with this.")
@broker_options
def list_(prefix: str, connect: str, timeout_s: float, as_json: bool) -> None:
    """List topics."""
    with Admin(connect, timeout=timeout_s) as admin:
        topics = admin.list_topics(prefix)
    if as_json:
        print_json(topics)
    else:
        print_table(
            ["topic", "queues", "permissions"],
            [[info.topic, info.queues, _permissions(info)] for info in topics],
        )


@topic.command()
@click.argument("name")
@broker_options
def describe(name: str, connect: str, timeout_s: float, as_json: bool) -> None:
    """Show the queues of topic NAME, their offsets, its retention, bytes and horizon."""
    with Admin(connect, timeout=timeout_s) as admin:
        description = admin.describe_topic(name, usage=True)
    if as_json:
        print_json(description)
    else:
        _show(description)


@topic.command()
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, QUEUES_MAX), metavar="N", help="May only grow.")
@click.option("--readable/--not-readable", default=None, help="Whether consumers may read.")
@click.option("--writable/--not-writable", default=None, help="Whether producers may send.")
@retention_options
@broker_options
def alter(
    name: str,
    queues: int | None,
    readable: bool | None,
    writable: bool | None,
    connect: str,
    timeout_s: float,
    as_json: bool,
    **retention: int | str | None,
) -> None:
    """Change queue count, permissions or retention of topic NAME."""
    if not any(given is not None for given in (queues, readable, writable, *retention.values())):
        raise click.UsageError(
            "nothing to change; give --queues, --readable, --writable or --retention-time"
        )
    with Admin(connect, timeout=timeout_s) as admin:
        old = admin.describe_topic(name).info.retention
        description = admin.alter_topic(name, queues, readable, writable, changed(old, retention))
    if as_json:
        print_json(description)
    else:
        _show(description)


@topic.command()
@click.argument("name")
@yes_option
@broker_options
def delete(name: str, yes: bool, connect: str, timeout_s: float, as_json: bool) -> None:
    """Delete topic NAME with its messages and the groups' offsets in it."""
    if not yes:
        ask_to_delete(f"topic {name}", "all its messages")
    with Admin(connect, timeout=timeout_s) as admin:
        admin.delete_topic(name)
    if as_json:
        print_json({"deleted": name})
    else:
        click.echo(f"deleted {name}")


def _permissions(info: TopicInfo) -> str:
    return ("r" if info.readable else "-") + ("w" if info.writable else "-")


def _show(description: TopicDescription) -> None:
    info = description.info
    queues = counted(info.queues, "queue")
    click.echo(f"{info.topic}: {queues}, {_permissions(info)}, id {info.incarnation}")
    click.echo(f"retention: {in_words(info.retention)}")
    if description.size_bytes is not None:
        click.echo(f"holds {description.size_bytes:,} bytes, {_horizon(description.oldest_ms)}")
    print_table(
        ["queue", "min offset", "max offset", "next offset"],
        [[q.queue, q.min_offset, q.max_offset, q.next_offset] for q in description.queues],
    )
    click.echo(OFFSETS)
    if description.in_doubt:
        click.echo(f"IN DOUBT  the log may hold more: {description.in_doubt}")


def _horizon(oldest_ms: int | None) -> str:
    if oldest_ms is None:
        return "no messages"
    return f"since {datetime.fromtimestamp(oldest_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
