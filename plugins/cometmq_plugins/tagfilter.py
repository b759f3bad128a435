"""Plugin `tagfilter`: the broker sends only batches, or parts of them, that may have wanted tags.

It looks at the tag hashes in a batch's own table and decodes nothing. Two tags may share a hash, so
the consumer compares the text of what it gets.
"""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.batch import Batch, text_hash
from cometmq.group_interfaces import Filter, Selector
from cometmq.hookspecs import hookimpl
from cometmq.plugins import Plugin
from cometmq.tags import parse_tags


class TagSelector:
    """Wants the records with certain tag hashes; None wants all."""

    def __init__(self, hashes: frozenset[int] | None) -> None:
        self._hashes = hashes

    def select(self, batch: Batch) -> Sequence[int] | None:
        """See `Selector.select`."""
        wanted = self._hashes
        if wanted is None:
            return None
        found = batch.tag_hashes
        if wanted.isdisjoint(found):
            return ()
        return [place for place, tag in enumerate(found) if tag in wanted]


class TagFilter:
    """The language `A || B`, `*`."""

    def parse(self, expression: str) -> Selector | None:
        """See `Filter.parse`."""
        tags = parse_tags(expression)
        return TagSelector(None if tags is None else frozenset(map(text_hash, tags)))


class TagFilterPlugin(Plugin):
    """Filters by tag in the broker, so that bytes on the wire follow the matches."""

    name = "tagfilter"

    @hookimpl
    def filters(self) -> Sequence[Filter]:
        return [TagFilter()]
