"""The plugin: one options struct, three hooks.

Everything here works per request or per batch. Only topics that are to be signed pay for decoding
their messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec

from cometmq.batch import Batch, amend, decode_records, text_hash
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Refuse, Replace, SessionInfo
from cometmq.plugins import Plugin

CHANGES = frozenset({"SEND", "TOPIC_CREATE", "TOPIC_ALTER", "TOPIC_DELETE"})
SENDER = "sender"
"""The property that bears the sender's name in signed topics."""


class TopicGuardOptions(msgspec.Struct, frozen=True):
    """Options of `[plugin.topic-guard]`. Topics may be patterns: `audit.*`."""

    owned: tuple[str, ...] = ()
    """Topics that only owners may send to, create, alter or delete."""
    owners: tuple[str, ...] = ()
    """Who owns them: principals, or client ids where no plugin authenticates."""
    request_max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Send requests above this size are refused; 0 = no bound of its own."""
    forbidden_tags: tuple[str, ...] = ()
    """A batch with a message of one of these tags is refused whole."""
    signed: tuple[str, ...] = ()
    """Topics whose messages get the property `sender`, whatever the client wrote there."""


class TopicGuard(Plugin):
    """Refuses writes to topics of others, too large requests and forbidden tags; signs messages.

    A client chooses its own client id: without a plugin that authenticates, `owners` keeps out
    mistakes, not enemies.
    """

    name = "topic-guard"
    options = TopicGuardOptions

    def __init__(self, options: TopicGuardOptions) -> None:
        self._options = options
        self._owners = frozenset(options.owners)
        self._forbidden = {text_hash(tag): tag for tag in options.forbidden_tags}

    @hookimpl
    def authorize(self, session: SessionInfo, operation: str, resource: str) -> Refuse | None:
        """Only owners change an owned topic."""
        if operation not in CHANGES or not _matches(resource, self._options.owned):
            return None
        who = _name(session)
        if who in self._owners:
            return None
        return Refuse(
            f"{who} does not own topic {resource}; ask for a place in the owners of topic-guard",
            code="NOT_AUTHORIZED",
        )

    @hookimpl
    def admit(self, operation: str, size_bytes: int) -> Refuse | None:
        """Large send requests are refused before anything is done for them."""
        bound = self._options.request_max_bytes
        if not bound or operation != "SEND" or size_bytes <= bound:
            return None
        return Refuse(
            f"a request of {size_bytes} bytes is above the bound of {bound}; send smaller batches",
            code="TOO_LARGE",
        )

    @hookimpl
    def before_append(self, session: SessionInfo, batch: Batch) -> Refuse | Replace | None:
        """Refuse batches with a forbidden tag; sign those of signed topics."""
        signed = _matches(batch.topic, self._options.signed)
        suspect = self._may_be_forbidden(batch)
        if not (signed or suspect):
            return None
        if batch.codec:
            return Refuse(
                f"messages for {batch.topic} are looked into here; send them without compression"
            )
        tag = self._forbidden_tag(batch) if suspect else None
        if tag:
            return Refuse(f"tag {tag} is forbidden in topic {batch.topic}; use another tag")
        if not signed:
            return None
        sender = {SENDER: _name(session)}
        records = [
            (born, body, tag, keys, {**properties, **sender})
            for born, body, tag, keys, properties in decode_records(batch)
        ]
        return Replace(amend(batch, records=records))

    def _may_be_forbidden(self, batch: Batch) -> bool:
        """The table has a hash of each tag, so that nothing is decoded; two tags may share one,
        so what it finds is looked at."""
        return not self._forbidden.keys().isdisjoint(batch.tag_hashes)

    def _forbidden_tag(self, batch: Batch) -> str | None:
        tags = {record[2] for record in decode_records(batch)}
        return next((tag for tag in self._forbidden.values() if tag in tags), None)


def _name(session: SessionInfo) -> str:
    return session.principal or session.client_id


def _matches(topic: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(topic, pattern) for pattern in patterns)
