"""A heap of what is due some day, most of which is forgotten before."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify
from typing import Any, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])

STALE_FROM = 256
"""With fewer it isn't worth looking for those that are forgotten."""


class Heap(list[T]):
    """For `heapq`; whoever pushes looks whether there are more than `most`, and weeds. Else each
    poll that may wait for an hour and found something would be kept for that hour."""

    __slots__ = ("most",)

    def __init__(self) -> None:
        super().__init__()
        self.most = STALE_FROM

    def weed(self, is_wanted: Callable[[T], bool]) -> None:
        """Drop what nobody waits for; so much may come until it is worth it again."""
        self[:] = filter(is_wanted, self)
        heapify(self)
        self.most = STALE_FROM + 2 * len(self)
