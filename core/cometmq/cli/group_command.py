"""`mq group …`: list, describe, reset and delete consumer groups, their lag and their members."""

from __future__ import annotations

import click

from cometmq.cli.asking import ask_to_delete, yes_option
from cometmq.cli.consume_command import parse_start
from cometmq.cli.output import broker_options, counted, print_json, print_table
from cometmq.client.admin import Admin
from cometmq.client.group_administration import UNDO
from cometmq.client.offsets import Start
from cometmq.protocol import GroupDescription, GroupQueueInfo, GroupResetPart, MemberInfo


@click.group()
def group() -> None:
    """List, describe, reset and delete consumer groups."""


@group.command("list")
@click.option("--prefix", default="", help="Only names that begin with this.")
@broker_options
def list_(prefix: str, connect: str, timeout_s: float, as_json: bool) -> None:
    """List groups."""
    with Admin(connect, timeout=timeout_s) as admin:
        groups = admin.list_groups(prefix)
    if as_json:
        print_json(groups)
    else:
        print_table(
            ["group", "members", "topics", "lag"],
            [[each.group, each.members, each.topics, each.lag] for each in groups],
        )


@group.command()
@click.argument("name")
@broker_options
def describe(name: str, connect: str, timeout_s: float, as_json: bool) -> None:
    """Show members and queues of group NAME."""
    described = _described(connect, timeout_s, name)
    if as_json:
        print_json(described)
        return
    click.echo(_headline(described))
    if described.members:
        _show_members(described.members)
    _show_queues(described.queues)


@group.command()
@click.argument("name")
@broker_options
def lag(name: str, connect: str, timeout_s: float, as_json: bool) -> None:
    """Show how far group NAME is behind, by topic."""
    described = _described(connect, timeout_s, name)
    topics: dict[str, list[GroupQueueInfo]] = {}
    for queue in described.queues:
        topics.setdefault(queue.topic, []).append(queue)
    rows = [
        (topic, sum(each.lag for each in queues), max(each.lag_ms for each in queues))
        for topic, queues in topics.items()
    ]
    if as_json:
        print_json([{"topic": topic, "lag": lag, "lag_ms": lag_ms} for topic, lag, lag_ms in rows])
    else:
        print_table(
            ["topic", "lag", "oldest"], [[topic, lag, _age(lag_ms)] for topic, lag, lag_ms in rows]
        )


@group.command()
@click.argument("name")
@broker_options
def members(name: str, connect: str, timeout_s: float, as_json: bool) -> None:
    """Show who consumes for group NAME."""
    described = _described(connect, timeout_s, name)
    if as_json:
        print_json(described.members)
    elif described.members:
        _show_members(described.members)
    else:
        click.echo(f"group {name} has no members now")


@group.command()
@click.argument("name")
@click.option(
    "--to",
    metavar="earliest|latest|TIME|OFFSET",
    help="Where to go: TIME as 2026-07-01T12:00:00Z, OFFSET a number, the same in every queue.",
)
@click.option("--undo", is_flag=True, help="Back to where the last reset began.")
@click.option("--topic", metavar="TOPIC", help="Only in this topic; else in all that it reads.")
@click.option(
    "--queue",
    "queues",
    type=click.IntRange(0, 65535),
    multiple=True,
    metavar="N",
    help="Only this queue of the topic; may be given several times.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be moved.")
@click.option("--force", is_flag=True, help="Take the queues away from active members.")
@broker_options
def reset(
    name: str,
    to: str | None,
    undo: bool,
    topic: str | None,
    queues: tuple[int, ...],
    dry_run: bool,
    force: bool,
    connect: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Move the offsets of group NAME."""
    if (to is None) != undo:
        raise click.UsageError("a reset needs one goal: give --to, or --undo")
    if queues and topic is None:
        raise click.UsageError("--queue is a queue of a topic: give --topic too")
    goal = UNDO if to is None else _goal(to)
    with Admin(connect, timeout=timeout_s) as admin:
        parts = admin.reset_group(name, goal, topic, queues, dry_run=dry_run, force=force)
    if as_json:
        print_json({"done": not dry_run, "parts": parts})
    else:
        _show_reset(parts, dry_run)


@group.command()
@click.argument("name")
@yes_option
@click.option("--force", is_flag=True, help="Even while members are active.")
@broker_options
def delete(
    name: str, yes: bool, force: bool, connect: str, timeout_s: float, as_json: bool
) -> None:
    """Forget group NAME and all that it committed; its messages stay."""
    if not yes:
        ask_to_delete(f"group {name}", "all that it committed")
    with Admin(connect, timeout=timeout_s) as admin:
        admin.delete_group(name, force=force)
    if as_json:
        print_json({"deleted": name})
    else:
        click.echo(f"deleted group {name}")


def _described(connect: str, timeout_s: float, name: str) -> GroupDescription:
    with Admin(connect, timeout=timeout_s) as admin:
        return admin.describe_group(name)


def _goal(text: str) -> Start:
    try:
        return parse_start(text)
    except click.UsageError:
        raise click.UsageError(
            f"--to {text!r} is none of earliest, latest, an offset (42) or a time "
            "(2026-07-01T12:00:00Z)"
        ) from None


def _headline(described: GroupDescription) -> str:
    words = [f"{described.group}: {counted(len(described.members), 'member')}"]
    if described.members:
        words.append(f"strategy {described.strategy}, generation {described.generation}")
    if described.mode:
        words.append(f"consumes by {described.mode}")
    if described.can_undo:
        words.append("its last reset can be undone")
    return ", ".join(words)


def _show_members(members: list[MemberInfo]) -> None:
    print_table(
        ["member", "host", "timeout", "subscribes", "queues"],
        [
            [
                each.member,
                each.host,
                f"{each.session_timeout_ms / 1000:g} s",
                ", ".join(
                    f"{sub.topic}:{sub.filter}" if sub.filter else sub.topic
                    for sub in each.subscriptions
                ),
                len(each.advised),
            ]
            for each in members
        ],
    )


def _show_queues(queues: list[GroupQueueInfo]) -> None:
    print_table(
        ["topic", "queue", "committed", "max offset", "lag", "oldest", "owner"],
        [
            [
                each.topic,
                each.queue,
                each.committed,
                each.max_offset,
                each.lag,
                _age(each.lag_ms),
                each.owner or "-",
            ]
            for each in queues
        ],
    )


def _show_reset(parts: list[GroupResetPart], dry_run: bool) -> None:
    print_table(
        ["topic", "queue", "from", "to"],
        [[each.topic, each.queue, each.old_offset, each.new_offset] for each in parts],
    )
    moved = counted(len(parts), "queue")
    click.echo(f"would move {moved}; nothing was changed" if dry_run else f"moved {moved}")


def _age(lag_ms: int) -> str:
    return f"{lag_ms / 1000:,.1f} s" if lag_ms else "-"
