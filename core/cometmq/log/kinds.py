"""State view `kinds`: which number stands for which batch kind in this log.

The core's own kinds have fixed numbers. A plugin's kind gets the next free one when it is first
seen, by a kind-name batch, so that a log can be read without knowing who wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from cometmq.batch import Batch, Kind
from cometmq.log.records import KindName, read_records

CORE_KINDS: dict[str, int] = {kind.name.lower().replace("_", "-"): int(kind) for kind in Kind}
"""Names and numbers of the kinds that need no kind-name batch."""
_CORE_NUMBERS = frozenset(CORE_KINDS.values())
FIRST_FREE = 16
"""Numbers below are the core's, now or later."""
LAST = 255

_decoder = msgspec.msgpack.Decoder(list[KindName])


class Kinds:
    """Numbers of named kinds; per number set. A dropped one stays, so that nobody gets it again."""

    name = "kinds"
    kinds: Sequence[str] = ("kind-name",)

    def __init__(self) -> None:
        self._entries: dict[int, KindName] = {}

    def apply(self, batch: Batch) -> None:
        """Take names and drops from a kind-name batch."""
        self._join(read_records(KindName, batch))

    def slices(self) -> Iterator[bytes]:
        """All in one shard: a log has few kinds."""
        if self._entries:
            yield msgspec.msgpack.encode(list(self._entries.values()))

    def load(self, data: bytes) -> None:
        """Join a shard."""
        self._join(_decoder.decode(data))

    def reset(self) -> None:
        """Only the core's kinds are left."""
        self._entries.clear()

    def number_of(self, name: str) -> int | None:
        """The number in use for a name, or None if it has none yet."""
        if name in CORE_KINDS:
            return CORE_KINDS[name]
        for entry in self._entries.values():
            if entry.name == name and not entry.dropped:
                return entry.number
        return None

    def knows(self, number: int) -> bool:
        """Whether the number is one of the core's, or was named in this log."""
        return number in _CORE_NUMBERS or number in self._entries

    def live(self) -> list[KindName]:
        """Named kinds whose state counts."""
        return [entry for entry in self._entries.values() if not entry.dropped]

    def missing(self, wanted: Iterable[tuple[str, str]]) -> list[KindName]:
        """Records that give numbers to those (kind, view) that have none. Raises ValueError when
        the numbers are used up."""
        number = max(self._entries, default=FIRST_FREE - 1)
        records = []
        for name, view in wanted:
            if self.number_of(name) is not None:
                continue
            number += 1
            if number > LAST:
                raise ValueError(f"no number is left for batch kind {name!r} of {view!r}")
            records.append(KindName(number, name, view))
        return records

    def drops(self, view: str) -> list[KindName]:
        """Records that give up all state of a view; number 0 if it had no kind of its own."""
        mine = [entry for entry in self.live() if entry.view == view]
        drops = [KindName(entry.number, entry.name, view, True) for entry in mine]
        return drops or [KindName(0, "", view, True)]

    def _join(self, records: Iterable[KindName]) -> None:
        for record in records:
            if record.number:
                self._entries[record.number] = record
