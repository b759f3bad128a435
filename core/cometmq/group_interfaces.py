"""What plugins bring for consumer groups: rebalance strategies and filters.

Read with `hookspecs.py` as `interfaces.py` is, of which this is the part about groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from cometmq.batch import Batch


# --- rebalance strategies (contribution) --------------------------------------------------------


class StrategyQueue(NamedTuple):
    """A message queue that somebody of the group has to read."""

    topic: str
    queue: int
    room: str = ""
    """Where its broker runs, if that is known."""


class StrategyMember(msgspec.Struct, frozen=True):
    """A member that may read any of the queues it is asked about."""

    name: str
    """Unique in its group."""
    held: frozenset[StrategyQueue] = frozenset()
    """What it holds now; may name queues that are not asked about."""
    room: str = ""
    """Where it runs; empty: it didn't say."""


class Strategy(Protocol):
    """Decides which member reads which queue. It only advises: safety is in the claims.

    The contract (proven by `cometmq.testing.StrategyContract`): `assign` depends on its arguments
    alone, not on the order of either, and gives each queue to at most one of the members.
    """

    name: str
    """What a consumer asks for, as in `sticky`."""

    def assign(
        self, members: Sequence[StrategyMember], queues: Collection[StrategyQueue]
    ) -> Mapping[StrategyQueue, str]:
        """Queue to member's name; a queue that is left out is read by nobody. There is at least
        one member and one queue."""


# --- filters (contribution) ---------------------------------------------------------------------


class Selector(Protocol):
    """One parsed filter expression."""

    def select(self, batch: Batch) -> Sequence[int] | None:
        """Places (0 to count - 1, growing) of the records that may match, without decoding any;
        None: all may. The consumer filters exactly what it gets."""


class Filter(Protocol):
    """A language of filter expressions."""

    def parse(self, expression: str) -> Selector | None:
        """Read an expression (not empty). None: it is of another language. Raises Refused for one
        of this language that is wrong."""
