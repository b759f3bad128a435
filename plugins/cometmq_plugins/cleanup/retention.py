"""Topics with a retention of their own: what of them expires, and what they still want."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

from cometmq.environment import Clock
from cometmq.log import Log
from cometmq.log.records import TopicChange
from cometmq_plugins.cleanup.messages import Raised
from cometmq_plugins.cleanup.trusted_time import TrustedTime

Key: TypeAlias = tuple[int, int]

TURN = 50
"""Queues that are looked at before others have a turn."""


class Retainer:
    """Looks at the topics of one broker."""

    def __init__(self, broker: Any, trusted: TrustedTime) -> None:
        self._topics = broker.topics
        self._offsets = broker.offsets
        self._log: Log = broker.log
        self._clock: Clock = broker.environment.clock
        self._trusted = trusted
        self._looked_up = 0
        self._lows: dict[Key, int] = {}
        """The min offsets at the last look, of queues in which something had expired."""

    async def expired(self) -> dict[Key, int]:
        """By (incarnation, queue): the min offsets that have to be raised, and to what."""
        found: dict[Key, int] = {}
        for topic in self._topics.retained():
            for key, offset in (await self._expired_of(topic)).items():
                await self._breathe()
                low, high = await self._log.when_loaded(partial(self._bounds, key))
                if min(offset, high) > low:
                    found[key] = min(offset, high)
                    self._lows[key] = low
        # One may have been deleted meanwhile; what is raised then would stay in the log for ever.
        return {key: to for key, to in found.items() if self._topics.of(key[0]) is not None}

    def count(self, offsets: dict[Key, int]) -> int:
        """How many messages go when these, just found, are raised."""
        return sum(to - self._lows.pop(key, to) for key, to in offsets.items())

    def named(self, offsets: dict[Key, int]) -> list[Raised]:
        """The same for people."""
        return [
            Raised(topic.name, queue, offset)
            for (incarnation, queue), offset in offsets.items()
            if (topic := self._topics.of(incarnation)) is not None
        ]

    async def wanted_from(self, expired: Mapping[Key, int] | None = None) -> int | None:
        """The position of the first message that a topic's own retention keeps; None if there is
        none. A retention by size alone keeps nothing. `expired`: min offsets that are still to be
        raised."""
        raised = expired or {}
        positions: list[int] = []
        for topic in self._topics.retained():
            retention = topic.retention
            if not (retention.time_ms or retention.group):
                continue
            for key in _keys(topic):
                await self._breathe()
                begin = 0 if retention.time_ms else self._consumed(retention.group, key)
                begin = max(begin, raised.get(key, 0))
                position = await self._log.when_loaded(partial(self._position, key, begin))
                positions.extend([] if position is None else [position])
        return min(positions, default=None)

    async def _expired_of(self, topic: TopicChange) -> dict[Key, int]:
        """What the rules of one topic say of each of its queues, whatever it holds."""
        retention, keys = topic.retention, _keys(topic)
        ordinary = await self._beyond(keys, retention.time_ms, retention.size_bytes)
        if not retention.group:
            return ordinary
        capped = await self._beyond(keys, retention.cap_ms, retention.cap_bytes)
        only_group = not (retention.time_ms or retention.size_bytes)
        expired: dict[Key, int] = {}
        for key in keys:
            consumed = self._consumed(retention.group, key)
            gone = consumed if only_group else min(consumed, ordinary[key])
            expired[key] = max(gone, capped[key])
        return expired

    async def _beyond(self, keys: list[Key], time_ms: int, size_bytes: int) -> dict[Key, int]:
        """Offsets below which messages are older than `time_ms` or too many for `size_bytes`."""
        log, index = self._log, self._log.index
        beyond = dict.fromkeys(keys, 0)
        if time_ms:
            since_ms = self._trusted.now_ms() - time_ms
            for key in keys:
                await self._breathe()
                beyond[key] = await log.when_loaded(partial(index.offset_by_time, *key, since_ms))
        if size_bytes:
            begin = await log.when_loaded(lambda: index.newest_begin(keys, size_bytes))
            for key in keys if begin else ():
                await self._breathe()
                offset = await log.when_loaded(partial(index.next_offset_before, *key, begin))
                beyond[key] = max(beyond[key], offset)
        return beyond

    async def _breathe(self) -> None:
        """Let others have their turn now and then: there may be thousands of queues."""
        self._looked_up += 1
        if self._looked_up % TURN == 0:
            await self._clock.sleep(0)

    def _bounds(self, key: Key) -> tuple[int, int]:
        return self._log.min_offset(*key), self._log.max_offset(*key)

    def _position(self, key: Key, begin: int) -> int | None:
        """Where the first batch lies that is not given up, from offset `begin` on."""
        log = self._log
        offset = max(begin, log.min_offset(*key))
        if offset >= log.next_offset(*key):
            return None
        entry = next(log.index.locate(*key, offset, log.appended, 1), None)
        return None if entry is None else entry.position

    def _consumed(self, group: str, key: Key) -> int:
        place = self._offsets.get(group, *key)
        return 0 if place is None else int(place.offset)


def _keys(topic: TopicChange) -> list[Key]:
    return [(topic.incarnation, queue) for queue in range(topic.queues)]
