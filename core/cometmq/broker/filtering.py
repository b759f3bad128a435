"""Filters in the broker: what of a batch goes out to who wants only some of its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cometmq.batch import Batch, BatchError, cut, parse, verify_producer
from cometmq.broker.names import shown
from cometmq.broker.refusals import Rejected
from cometmq.errors import FAILURES, CometError, PluginFailure
from cometmq.group_interfaces import Filter, Selector
from cometmq.protocol import Status

FILTER_MAX = 4096
CUT_BELOW = 0.5
"""A batch of which a smaller share matches is cut; else it goes out as it lies, the cheaper way."""
PARSED_MAX = 1000
"""Parsed expressions remembered."""


Blame = Callable[[str, BaseException], PluginFailure]
"""Of a plugin, by its name, for what one of its filters did."""


class Chosen(NamedTuple):
    """An expression, understood, and the plugin that did."""

    selector: Selector
    plugin: str
    blame: Blame

    def cut(self, view: memoryview, batch: Batch, log_id_seed: int) -> memoryview | None:
        """What is to be sent of an intact batch. Raises PluginFailure."""
        try:
            keep = self.selector.select(batch)
            if keep is None or len(keep) == batch.count:
                return view
            if not keep:
                return None
            if batch.codec or len(keep) >= CUT_BELOW * batch.count:
                return view
            return memoryview(cut(batch, keep, log_id_seed=log_id_seed))
        except FAILURES as error:
            raise self.blame(self.plugin, error) from error


class Filters:
    """All filter languages of this broker."""

    def __init__(self, brought: Iterable[tuple[str, Sequence[Filter]]], blame: Blame) -> None:
        """`brought`: filters by the plugin that brings them, in order."""
        self._filters = [(plugin, each) for plugin, filters in brought for each in filters]
        self._blame = blame
        self._parsed: dict[str, Chosen] = {}

    def chosen(self, expression: str) -> Chosen | None:
        """What an expression selects; None for no expression. Raises Rejected, Refused,
        PluginFailure."""
        if not expression:
            return None
        found = self._parsed.get(expression)
        if found is not None:
            return found
        if len(expression) > FILTER_MAX:
            raise Rejected(
                Status.TOO_LARGE,
                f"a filter of {len(expression)} characters, {FILTER_MAX} are allowed: make it "
                "shorter, or let the client filter",
            )
        for plugin, each in self._filters:
            selector = self._parse(plugin, each, expression)
            if selector is not None:
                found = Chosen(selector, plugin, self._blame)
                if len(self._parsed) >= PARSED_MAX:
                    self._parsed.clear()
                self._parsed[expression] = found
                return found
        raise Rejected(
            Status.REFUSED,
            f"no plugin of this broker knows the filter {shown(expression)}: fetch without one and "
            "let the client filter",
        )

    def _parse(self, plugin: str, each: Filter, expression: str) -> Selector | None:
        try:
            selector = each.parse(expression)
            if selector is not None and not callable(getattr(selector, "select", None)):
                raise TypeError(f"its filter gave {selector!r:.80}, which selects nothing")
        except CometError:
            raise  # what the sender is to hear
        except FAILURES as error:
            raise self._blame(plugin, error) from error
        return selector


def filtered(
    chosen: Chosen, batches: Sequence[memoryview], log_id_seed: int, limit: int
) -> list[memoryview]:
    """What is to be sent of these batches: none of what can't match, the rest whole or cut.

    Damage is not judged here: a batch that is not intact goes out whole, its consumer finds out.
    """
    found: list[memoryview] = []
    for view in batches:
        try:
            batch = parse(view, limit=limit)
            # Or damage could hide a message by its tag's hash, and a cut would seal it anew.
            verify_producer(batch)
        except BatchError:
            found.append(view)
            continue
        wanted = chosen.cut(view, batch, log_id_seed)
        if wanted is not None:
            found.append(wanted)
    return found
