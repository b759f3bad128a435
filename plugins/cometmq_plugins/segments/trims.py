"""Taking the oldest segments off the log: off the table on the loop, off the disk anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.environment import Files
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


def unlink_all(files: Files, folder: str, paths: Sequence[str]) -> None:
    """Unlink the files of one segment, in this order, durably."""
    for path in paths:
        files.unlink(path)
    files.sync_folder(folder)
