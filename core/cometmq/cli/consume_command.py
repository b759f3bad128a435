"""`mq consume`: print what a topic holds, from any place, once or for ever."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from contextlib import ExitStack
from datetime import datetime

import click

from cometmq.cli.consume_group import consume_as_member, tell_if_ignored
from cometmq.cli.json_lines import format_line
from cometmq.cli.output import Progress, broker_options
from cometmq.cli.passing import Stopped
from cometmq.client.admin import Admin
from cometmq.client.consumer import PullConsumer
from cometmq.errors import Damaged, Expired, LogInDoubt, Truncated, Unreadable

POLL_S = 0.5
PROBE_POLLS = 6
"""After so many empty polls in a row the broker is asked whether it is still there."""


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
@click.option(
    "--queue",
    "queues",
    type=click.IntRange(0, 65535),
    metavar="N",
    multiple=True,
    help="Only this queue; may be given several times.",
)
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N", help="Stop after so many messages."
)
@click.option(
    "--group", metavar="NAME", help="As a member of this group: what is printed is finished for it."
)
@click.option(
    "--tags",
    default="*",
    metavar="TAGS",
    help="With --group, only messages with one of these tags, as in 'paid || refunded'.",
)
@click.option("--follow", is_flag=True, help="Wait for more instead of stopping at the end.")
@broker_options
def consume(
    topic: str,
    start: str,
    queues: tuple[int, ...],
    count: int | None,
    group: str | None,
    tags: str,
    follow: bool,
    connect: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC, one a line.

    Bodies, or JSON with --json. Without --follow it stops at what was readable when it started.
    Nothing is committed, unless --group says for whom; then --from is only where a group begins
    that never subscribed TOPIC.
    """
    start_at = parse_start(start)
    if group is not None:
        if queues or isinstance(start_at, int):
            raise click.UsageError(
                "--group shares the queues itself and begins at earliest, latest or a time: "
                "give neither --queue nor an offset"
            )
        with Admin(connect, timeout=timeout_s) as admin:
            if _is_typed("start"):
                tell_if_ignored(admin, group, topic, start)
            consume_as_member(
                admin,
                connect,
                topic,
                group,
                start_at,
                tags,
                count,
                follow,
                timeout_s,
                as_json,
            )
        return
    if tags != "*":
        raise click.UsageError("--tags needs --group NAME")
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(connect, timeout=timeout_s))
        ends = _ends(admin, topic, queues)
        consumer = stack.enter_context(
            PullConsumer(connect, topic=topic, queues=list(ends), start=start_at, timeout=timeout_s)
        )
        if not as_json or follow:
            _tell_if_beyond(topic, start_at, ends, follow)
        watch = Watch(lambda: _ends(admin, topic, queues), None if follow else ends)
        stopped = Stopped(at_once=follow)
        _print(consumer, watch, stopped, count, as_json)
        stopped.finish()
        if count is None and (doubt := admin.describe_topic(topic).in_doubt):
            raise LogInDoubt(f"{topic} may hold more than could be read: {doubt}")


class Watch:
    """Knows where to stop, and notices when nothing comes because the broker is gone."""

    def __init__(self, look: Callable[[], dict[int, int]], ends: dict[int, int] | None) -> None:
        """`look` asks the broker for each queue's end; `ends` is where to stop, or None."""
        self.ends = ends
        self._look = look
        self._empty = 0

    def polled(self, found: bool) -> None:
        """After each poll. Raises Retryable when the broker is gone, but waits when following: the
        connection tells of that by itself."""
        self._empty = 0 if found else self._empty + 1
        if self.ends is None or self._empty < PROBE_POLLS:
            return
        self._empty = 0
        ends = self._look()
        # A cut may have taken what was readable when the command began.
        self.ends = {queue: min(end, ends.get(queue, 0)) for queue, end in self.ends.items()}

    def wanted(self, queue: int, offset: int) -> bool:
        """Whether a message belongs to what was readable when the command began."""
        return self.ends is None or offset < self.ends[queue]

    def at_end(self, consumer: PullConsumer, stopped: Collection[int]) -> bool:
        """Whether all of it was read that can be: nothing more comes of the queues `stopped`."""
        if self.ends is None:
            return False
        return all(
            queue in stopped or consumer.position(queue) >= end for queue, end in self.ends.items()
        )


def _tell_if_beyond(
    topic: str, start: str | int | datetime, ends: dict[int, int], follow: bool
) -> None:
    """Nothing to print may be what was wanted, or a slip of the finger: say where the ends are."""
    if not isinstance(start, int) or any(start <= end for end in ends.values()):
        return
    end = f"the end of {topic} (offset {max(ends.values())} comes next)"
    effect = "waiting for it" if follow else "nothing is printed"
    click.echo(f"mq: --from {start} is beyond {end}: {effect}", err=True)


def _is_typed(parameter: str) -> bool:
    """Whether the user gave it."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.COMMANDLINE


def _ends(admin: Admin, topic: str, queues: Collection[int]) -> dict[int, int]:
    """The offset behind the last readable message of each queue, or of those in `queues`."""
    found = {info.queue: info.max_offset for info in admin.describe_topic(topic).queues}
    missing = sorted(set(queues) - set(found))
    if missing:
        raise click.UsageError(
            f"{topic} has no queue {missing[0]}, "
            + (f"only 0 to {len(found) - 1}" if len(found) > 1 else "only 0")
        )
    return {queue: found[queue] for queue in sorted(set(queues or found))}


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
    consumer: PullConsumer, watch: Watch, stopped: Stopped, count: int | None, as_json: bool
) -> None:
    """Poll and print until `count` messages, or each queue's end, or for ever. A queue that can't
    be read any further keeps no other one from its end."""
    out = sys.stdout.buffer
    progress = Progress("read")
    left = count
    messages = size_bytes = 0
    try:
        while left != 0 and not watch.at_end(consumer, stopped.queues):
            limit = 1000 if left is None else min(1000, left)
            try:
                batch = consumer.poll(max_messages=limit, timeout=POLL_S)
            except (Truncated, Expired) as error:
                click.echo(f"mq: {error}", err=True)
                continue
            except (Damaged, Unreadable) as error:
                where = f"--queue {error.queue} --from {error.next_offset}"
                stopped.add(error, f"mq consume {error.topic} {where}")
                batch = []
            for message in batch:
                if not watch.wanted(message.queue, message.offset):
                    continue
                out.write((format_line(message) if as_json else message.body) + b"\n")
                messages += 1
                size_bytes += len(message.body)
                left = None if left is None else left - 1
            if batch:
                out.flush()
            watch.polled(bool(batch))
            progress.update(messages, size_bytes)
    finally:
        progress.close()
