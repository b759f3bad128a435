"""Messages of one queue on their way through a handler: handed out, finished and put back in runs,
so that nothing but a counter is touched for each message."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cometmq.client.cursor import Place
from cometmq.client.listeners import Listener
from cometmq.message import ReceivedMessage

if TYPE_CHECKING:
    from cometmq.client.lane import Lane


class Run:
    """Consecutive messages for one listener. Whoever handles them counts `done` up."""

    __slots__ = (
        "acked",
        "attempts",
        "begun",
        "behind",
        "done",
        "lane",
        "left",
        "listener",
        "messages",
        "on_ack",
        "retry_at_s",
        "since_s",
        "start",
        "until_s",
    )

    def __init__(
        self,
        lane: Lane,
        listener: Listener,
        messages: Sequence[ReceivedMessage],
        start: Place,
        behind: Place,
    ) -> None:
        self.lane = lane
        self.listener = listener
        self.messages = messages
        self.start = start
        """Everything before it belongs to earlier runs."""
        self.behind = behind
        """The place once all is finished."""
        self.done = 0
        """So many are finished, from the first one on."""
        self.acked: bytearray | None = None
        """Which messages are finished, where they may finish in any order."""
        self.left: deque[ReceivedMessage] | None = None
        """What an iteration that is at it has not handed out yet."""
        self.on_ack: Callable[[Run], None] | None = None
        """Called for each ack while the queue is about to be released."""
        self.begun = False
        self.since_s = 0.0
        """When its last message was handed out."""
        self.until_s = 0.0
        """What has not begun by then is left to others."""
        self.attempts = 0
        """How often the first message has failed in a row."""
        self.retry_at_s = 0.0

    @property
    def finished(self) -> bool:
        """Whether all of it is handled."""
        self._count()
        return self.done >= len(self.messages)

    @property
    def place(self) -> Place:
        """Everything before it is handled."""
        if self.finished:
            return self.behind
        if not self.done:
            return self.start
        last = self.messages[self.done - 1]
        return Place(last.offset + 1, last.origin.epoch)

    def cut(self, count: int) -> Run:
        """Keep the first `count` messages; the rest as a run that has not begun."""
        messages = self.messages
        start = self.start
        if count:
            last = messages[count - 1]
            start = Place(last.offset + 1, last.origin.epoch)
        rest = Run(self.lane, self.listener, messages[count:], start, self.behind)
        self.messages = messages[:count]
        self.behind = start
        if self.acked is not None:
            del self.acked[count:]
        return rest

    def take_back(self) -> int:
        """Let an iteration hand out no more of it; returns how many messages it handed out.

        Safe while it goes on: each message is popped by one of us.
        """
        assert self.left is not None
        kept = 0
        while True:
            try:
                self.left.pop()
            except IndexError:
                return len(self.messages) - kept
            kept += 1

    def _count(self) -> None:
        if self.acked is not None:
            first = self.acked.find(0)
            self.done = len(self.acked) if first < 0 else first
