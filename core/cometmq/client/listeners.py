"""Who gets which messages: the listeners of a consumer and the topics that they subscribe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cometmq.client.arguments import check_number
from cometmq.client.fetcher import Fetcher
from cometmq.errors import Refused
from cometmq.message import ReceivedMessage
from cometmq.tags import parse_tags, tag_expression

RUN_MAX = 1024
"""No run is longer, in messages."""

Handler = Callable[[ReceivedMessage], Any]
Pieces = list[tuple["Listener", Sequence[ReceivedMessage]]]


class Listener:
    """One subscription of a topic: its tags, and its handler or the consumer's iteration."""

    def __init__(
        self, topic: str, tags: str, handler: Handler | None, workers: int, orderly: bool
    ) -> None:
        check_number("workers", workers, least=1, most=1000, whole=True, error=Refused)
        if handler is not None and not callable(handler):
            raise Refused(f"handler={handler!r}: a function that takes a message is wanted")
        self.topic = topic
        self.tags = parse_tags(tags)
        self.handler = handler
        self.workers = workers
        self.orderly = orderly
        self.run_size = 1
        """So many messages are handed out together; grows while the handler is quick."""
        self.turn = 0
        """Which queue is looked at first."""
        self.signals = 0
        """Grows whenever there may be something to do."""


class Topic:
    """A subscribed topic: its listeners, and the one stream of fetches that serves them."""

    def __init__(self, name: str, fetcher: Fetcher) -> None:
        self.name = name
        self.fetcher = fetcher
        self.listeners: list[Listener] = []
        self.tags: frozenset[str] | None = frozenset()
        """What is read: the tags of all listeners, or those that a newer member has."""
        self.paused = False

    @property
    def orderly(self) -> bool:
        """Whether a queue's messages are handled one at a time."""
        return self.listeners[0].orderly

    @property
    def expression(self) -> str:
        """The tags that our own listeners want, as an expression."""
        wanted: set[str] = set()
        for listener in self.listeners:
            if listener.tags is None:
                return tag_expression(None)
            wanted |= listener.tags
        return tag_expression(wanted)

    def add(self, listener: Listener) -> None:
        """One more listener. Raises Refused when it does not fit the others."""
        if self.listeners and listener.orderly != self.orderly:
            raise Refused(
                f"the listeners of {self.name} must all be orderly or none of them: "
                "they share its queues"
            )
        self.listeners.append(listener)

    def use(self, expression: str) -> bool:
        """Read these tags from now on; returns whether that is a change."""
        tags = parse_tags(expression)
        if tags == self.tags:
            return False
        self.tags = tags
        self.fetcher.use_filter("" if tags is None else tag_expression(tags))
        return True

    def route(self, messages: Sequence[ReceivedMessage]) -> Pieces:
        """Messages by listener, in order; those that nobody wants are left out."""
        wanted = self.tags
        if wanted is not None:
            messages = [message for message in messages if message.tag in wanted]
        if not messages:
            return []
        if len(self.listeners) == 1:
            return [(self.listeners[0], messages)]
        pieces: list[tuple[Listener, list[ReceivedMessage]]] = []
        for message in messages:
            listener = self._listener_of(message.tag)
            if pieces and pieces[-1][0] is listener:
                pieces[-1][1].append(message)
            else:
                pieces.append((listener, [message]))
        return [*pieces]

    def _listener_of(self, tag: str) -> Listener:
        for listener in self.listeners:
            if listener.tags is None or tag in listener.tags:
                return listener
        # A tag that only a newer member of the group knows: it has to be handled all the same.
        return self.listeners[0]
