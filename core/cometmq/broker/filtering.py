"""Filters in the broker: what of a batch goes out to who wants only some of its messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cometmq.batch import BatchError, cut, parse, verify_producer
from cometmq.broker.names import shown
from cometmq.broker.refusals import Rejected
from cometmq.group_interfaces import Filter, Selector
from cometmq.protocol import Status

FILTER_MAX = 4096
CUT_BELOW = 0.5
"""A batch of which a smaller share matches is cut; else it goes out as it lies, the cheaper way."""
PARSED_MAX = 1000
"""Parsed expressions remembered."""


class Filters:
    """All filter languages of this broker."""

    def __init__(self, brought: Iterable[tuple[str, Sequence[Filter]]]) -> None:
        """`brought`: filters by the plugin that brings them, in order."""
        self._filters = [each for _, filters in brought for each in filters]
        self._parsed: dict[str, Selector] = {}

    def selector(self, expression: str) -> Selector | None:
        """What an expression selects; None for no expression. Raises Rejected, Refused."""
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
        for each in self._filters:
            found = each.parse(expression)
            if found is not None:
                if len(self._parsed) >= PARSED_MAX:
                    self._parsed.clear()
                self._parsed[expression] = found
                return found
        raise Rejected(
            Status.REFUSED,
            f"no plugin of this broker knows the filter {shown(expression)}: fetch without one and "
            "let the client filter",
        )


def filtered(
    selector: Selector, batches: Sequence[memoryview], log_id_seed: int, limit: int
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
        keep = selector.select(batch)
        if keep is None or len(keep) == batch.count:
            found.append(view)
        elif not keep:
            continue
        elif batch.codec or len(keep) >= CUT_BELOW * batch.count:
            found.append(view)
        else:
            found.append(memoryview(cut(batch, keep, log_id_seed=log_id_seed)))
    return found
