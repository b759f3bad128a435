"""`mq consume --group`: print messages as a member of a group, which are finished once printed."""

from __future__ import annotations

import signal
import sys
from datetime import datetime

import click

from cometmq.cli.json_lines import format_line
from cometmq.cli.output import Progress
from cometmq.cli.passing import Stopped
from cometmq.client.admin import Admin
from cometmq.client.group_consumer import Consumer
from cometmq.client.handout import HeldMessage
from cometmq.errors import CometError, Damaged, Unreadable

POLL_S = 0.2
FOLLOW_WAIT_S = 15.0
FLUSH_MESSAGES = 1000


class GroupPrinter:
    """Prints what a member gets, and knows when its group is through."""

    def __init__(
        self,
        consumer: Consumer,
        admin: Admin,
        group: str,
        topic: str,
        stopped: Stopped,
        as_json: bool,
    ) -> None:
        """`stopped` are the queues of this member that are read no further."""
        self.messages = 0
        self.stopped = stopped
        self._consumer = consumer
        self._admin = admin
        self._group = group
        self._topic = topic
        self._as_json = as_json
        self._out = sys.stdout.buffer
        self._printed: list[HeldMessage] = []
        self._size_bytes = 0

    def print_until(self, count: int | None, ends: dict[int, int] | None) -> None:
        """Print `count` messages, or all before `ends`, or for ever."""
        progress = Progress("read")
        try:
            while count is None or self.messages < count:
                message = self._consumer.receive(0.0 if self._printed else POLL_S)
                if message is not None:
                    self._print(message)
                    progress.update(self.messages, self._size_bytes)
                    continue
                self._finish()
                if ends is not None and self._through(ends):
                    return
        finally:
            progress.close()
            self._finish()

    def _print(self, message: HeldMessage) -> None:
        line = format_line(message) if self._as_json else message.body
        self._out.write(line + b"\n")
        self.messages += 1
        self._size_bytes += len(message.body)
        self._printed.append(message)
        if len(self._printed) >= FLUSH_MESSAGES:
            self._finish()

    def _finish(self) -> None:
        """What was printed is out, so it is finished."""
        if self._printed:
            self._out.flush()
            for message in self._printed:
                message.ack()
            self._printed.clear()

    def _through(self, ends: dict[int, int]) -> bool:
        """Whether the group, all its members together, has finished everything before `ends`.
        Raises Retryable when the broker is gone, and what stopped once nothing else is left
        of what this member holds."""
        self._consumer.commit()
        committed = self._admin.committed(self._group, self._topic)
        behind = {queue for queue, end in ends.items() if (committed.get(queue) or 0) < end}
        if not behind:
            return True
        held = {queue for _, queue in self._consumer.queues}
        if not (behind & held).difference(self.stopped.queues):
            self.stopped.finish()
        return False


def tell_if_ignored(admin: Admin, group: str, topic: str, start: str) -> None:
    """A group that has read the topic before goes on where it was: say so to who typed `start`."""
    if any(offset is not None for offset in admin.committed(group, topic).values()):
        click.echo(
            f"mq: --from {start} is only for a group that never read {topic}; {group} has, and "
            f"goes on where it was. Move it: mq group reset {group} --topic {topic} --to {start}",
            err=True,
        )


def _interrupt(number: int, frame: object) -> None:
    """Do as at a ctrl-C, also where none is heard."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.raise_signal(signal.SIGINT)


def consume_as_member(
    admin: Admin,
    connect: str,
    topic: str,
    group: str,
    start: str | datetime,
    tags: str,
    count: int | None,
    follow: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Join `group`, print messages of `topic`, leave.

    Raises Refused, Retryable, and without `follow` Damaged and Unreadable.
    """
    stopped = Stopped(at_once=follow)
    # Who is asked to end leaves the group as at a ctrl-C, so that nobody waits for its queues.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so it is behind the `&` of a script
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # where a ctrl-C is others'
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)

    def warn(error: CometError) -> None:
        if isinstance(error, Damaged | Unreadable):
            place = f"--topic {topic} --queue {error.queue} --to {error.next_offset}"
            stopped.add(error, f"mq group reset {group} {place}")
        else:
            click.echo(f"mq: {error}", err=True)

    described = admin.describe_topic(topic)
    ends = {info.queue: info.max_offset for info in described.queues}
    with Consumer(
        connect,
        group=group,
        start=start,
        # Who only waits for the end is to hear soon that a filter left out all that was there.
        fetch_wait=FOLLOW_WAIT_S if follow else POLL_S,
        timeout=timeout_s,
        on_error=warn,
    ) as consumer:
        printer = GroupPrinter(consumer, admin, group, topic, stopped, as_json)
        consumer.subscribe(topic, tags=tags)
        printer.print_until(count, None if follow else ends)
