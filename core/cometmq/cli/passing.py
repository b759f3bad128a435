"""What a queue that can't be read any further is in the words of the command line."""

from __future__ import annotations

from collections.abc import Collection

import click

from cometmq.errors import Damaged, Unreadable

Stopping = Damaged | Unreadable
"""What stops one queue, and only a step of a person goes past it."""


def told(error: Stopping, command: str) -> str:
    """What stopped a queue; `command` goes past it, as a seek does in Python."""
    return (
        f"queue {error.queue} of {error.topic} can't be read before offset {error.next_offset} "
        f"({error.__cause__ or error}); `{command}` goes past it"
    )


class Stopped:
    """The queues that a command reads no further, while it goes on with the others."""

    def __init__(self, *, at_once: bool) -> None:
        """`at_once`: whoever follows for ever hears of each when it stops, others at the end."""
        self._at_once = at_once
        self._found: dict[int, Stopping] = {}
        self._texts: list[str] = []

    @property
    def queues(self) -> Collection[int]:
        """Their numbers."""
        return self._found.keys()

    def add(self, error: Stopping, command: str) -> None:
        """A queue stopped; what is known already changes nothing."""
        if error.queue in self._found:
            return
        text = told(error, command)
        self._found[error.queue] = error
        self._texts.append(text)
        if self._at_once:
            click.echo(f"mq: {text}", err=True)

    def finish(self) -> None:
        """At the command's end: raises Damaged or Unreadable, one for all queues that stopped."""
        if self._found and not self._at_once:
            first = next(iter(self._found.values()))
            raise type(first)(
                "; ".join(self._texts),
                topic=first.topic,
                queue=first.queue,
                next_offset=first.next_offset,
            )
