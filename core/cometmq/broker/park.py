"""Holding requests until a key fires or their time is over: a service that plugins build on."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from typing import Protocol

from cometmq.environment import Clock, Timer
from cometmq.heap import Heap

KEYS_PER_ITEM = 16
"""On average: one fetch may name thousands of queues, but not every one of them."""
TOGETHER = 128
"""Of its time a wait may lose one part in so many, so that those of many clients end together: a
thousand that wait in vain else wake the broker, and it them, one by one."""


class Waiting(Protocol):
    """What can be parked: it answers itself."""

    def retry(self) -> bool:
        """Look again: True if it was answered."""

    def answer_empty(self) -> None:
        """Answer that nothing came."""


class _Entry:
    """One parked request, by all its keys."""

    __slots__ = ("item", "keys")

    def __init__(self, item: Waiting, keys: Sequence[Hashable]) -> None:
        self.item: Waiting | None = item
        self.keys = keys


class Park:
    """Requests that wait, by key, in a bounded number, with one timer for all deadlines."""

    def __init__(self, clock: Clock, limit: int) -> None:
        """`limit` is how many may be parked at once, under at most `KEYS_PER_ITEM` times as many
        keys in all."""
        self._clock = clock
        self._limit = limit
        self._keys_limit = KEYS_PER_ITEM * limit
        self._keys = 0
        self._entries: dict[Waiting, _Entry] = {}
        self._by_key: dict[Hashable, dict[_Entry, None]] = {}
        self._deadlines: Heap[tuple[float, int, _Entry]] = Heap()
        self._count = 0
        self._timer: Timer | None = None
        self._timer_at = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def hold(self, item: Waiting, keys: Sequence[Hashable], timeout_ms: int) -> bool:
        """Keep `item` until a key fires and its `retry` says that it was answered, or until
        `timeout_ms` are over: then `answer_empty`. False: too many are parked, it was not kept."""
        if len(self._entries) >= self._limit:
            return False
        held = self._keys + len(keys)
        if held > self._keys_limit:
            return False
        self._keys = held
        step_s = timeout_ms / 1000 / TOGETHER
        deadline_s = self._clock.monotonic_s() + timeout_ms / 1000
        deadline_s -= deadline_s % step_s if step_s else 0.0
        entry = self._entries[item] = _Entry(item, keys)
        for key in keys:
            self._by_key.setdefault(key, {})[entry] = None
        self._count += 1
        deadlines = self._deadlines
        heappush(deadlines, (deadline_s, self._count, entry))
        if len(deadlines) > deadlines.most:
            deadlines.weed(lambda each: each[2].item is not None)
        if self._timer is None or deadline_s < self._timer_at:
            self._arm()
        return True

    def waiting(self, key: Hashable) -> bool:
        """True if somebody waits for this key."""
        return key in self._by_key

    def fire(self, key: Hashable) -> None:
        """Let everybody who waits for this key look again; who was answered leaves."""
        waiting = self._by_key.get(key)
        if waiting is None:
            return
        for entry in list(waiting):
            item = entry.item
            if item is not None and item.retry():
                self.drop(item)

    def fire_all(self) -> None:
        """Let everybody look again."""
        for item in list(self._entries):
            if item in self._entries and item.retry():
                self.drop(item)

    def release(self, key: Hashable) -> None:
        """Answer everybody who waits for this key now, empty if need be: what they asked for has
        changed its shape."""
        for entry in list(self._by_key.get(key, ())):
            if entry.item is not None:
                self._end(entry.item)

    def drop(self, item: Waiting) -> None:
        """Forget a request unanswered; no effect if it isn't parked."""
        entry = self._entries.pop(item, None)
        if entry is None:
            return
        keys, entry.keys = entry.keys, ()  # its deadline may keep the entry for long
        entry.item = None
        self._keys -= len(keys)
        for key in keys:
            waiting = self._by_key.get(key)
            if waiting is not None:
                waiting.pop(entry, None)
                if not waiting:
                    del self._by_key[key]

    def close(self) -> None:
        """Answer all of them."""
        for item in list(self._entries):
            self._end(item)
        self._deadlines.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, item: Waiting) -> None:
        self.drop(item)
        if not item.retry():
            item.answer_empty()

    def _arm(self) -> None:
        """One timer, for the earliest deadline of those that still wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._deadlines and self._deadlines[0][2].item is None:
            heappop(self._deadlines)
        if self._deadlines:
            self._timer_at = self._deadlines[0][0]
            self._timer = self._clock.call_at(self._timer_at, self._due)

    def _due(self) -> None:
        self._timer = None
        now_s = self._clock.monotonic_s()
        while self._deadlines and self._deadlines[0][0] <= now_s:
            item = heappop(self._deadlines)[2].item
            if item is not None:
                self._end(item)
        self._arm()
