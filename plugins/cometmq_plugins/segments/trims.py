"""Taking the oldest segments off the log: off the table on the loop, off the disk anywhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

from cometmq.environment import Files
from cometmq.errors import DiskRefused
from cometmq.interfaces import Segment
from cometmq_plugins.segments.files import Entry, SegmentTable
from cometmq_plugins.segments.sync import Unsynced


def take_off(table: SegmentTable, unsynced: Unsynced, position: int) -> dict[Entry, list[str]]:
    """Take what lies whole below `position` off the table, never the last segment: what went,
    oldest first, with its files in the order in which they have to go."""
    entries = table.entries
    count = sum(1 for following in entries[1:] if following.base <= position)
    sides = table.side_files() if count else []
    gone: dict[Entry, list[str]] = {}
    for entry in entries[:count]:
        prefix = entry.path.removesuffix("seg")
        gone[entry] = [*(path for path in sides if path.startswith(prefix)), entry.path]
        unsynced.forget(entry)
        entry.file = None
    table.set(entries[count:])
    return gone


class Doomed:
    """Segments that are off the table and whose files are still to be unlinked, oldest first."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._waiting: deque[tuple[Segment, list[str]]] = deque()
        self._gone: list[Segment] = []
        """Those whose files are unlinked, and that nobody was told of."""

    def add(self, gone: dict[Entry, list[str]]) -> None:
        """These too, which are younger."""
        for entry, paths in gone.items():
            self._waiting.append((Segment(entry.base, entry.size, entry.path), paths))

    def each(self) -> Iterator[list[str]]:
        """The files of each; it has gone once its turn is over without an error."""
        while self._waiting:
            doomed = self._waiting[0]
            yield doomed[1]
            if doomed in self._waiting:  # somebody else may have waited for the same one
                self._waiting.remove(doomed)
                self._gone.append(doomed[0])

    def take_gone(self) -> list[Segment]:
        """Those that went since this was asked last, oldest first."""
        gone, self._gone = self._gone, []
        return gone

    def unlink(self, paths: Sequence[str]) -> None:
        """Unlink the files of one segment, in this order, durably. Raises DiskRefused."""
        try:
            for path in paths:
                with suppress(FileNotFoundError):  # it went before an earlier try failed
                    self._files.unlink(path)
            self._files.sync_folder(self._folder)
        except OSError as error:
            raise DiskRefused(
                f"{path} can't be deleted ({error.strerror or error}), so nothing behind it is "
                "given up either: see to it that the broker may delete files there; it tries again"
            ) from error
