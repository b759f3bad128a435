"""Cutting the end off the log, after keeping a copy of it."""

from __future__ import annotations

from contextlib import suppress

from cometmq.environment import Files
from cometmq.errors import LogError
from cometmq_plugins.segments.files import Entry, SegmentTable


def keep_copy(files: Files, table: SegmentTable, position: int, folder: str) -> str:
    """Copy everything from `position` on into `folder`, durably; zeros become holes, and those at
    the end are left out. Returns the copy's path, empty if there was nothing but zeros.
    Raises LogError if the copy can't be made; then nothing was changed."""
    path = ""
    try:
        for at, data in table.chunks(position, 1 << 63):
            part = data.rstrip(b"\0")
            if not part:
                continue
            if not path:
                path = _new_path(files, folder, position)
                copy = files.open(path, create=True)
            copy.write(at - position, [part])
        if path:
            copy.sync_blocking()
            copy.close()
            files.sync_folder(folder)
    except OSError as error:
        if path:
            with suppress(OSError):  # half a copy; the error that matters is told below
                files.unlink(path)
        raise LogError(
            f"the log must be cut at position {position}, but what is cut can't be kept in "
            f"{folder} ({error}); make room or repair the disk and start again"
        ) from error
    return path


def _new_path(files: Files, folder: str, position: int) -> str:
    files.make_folder(folder)
    path = f"{folder}/{position:020d}"
    number = 1
    while files.exists(path):
        number += 1
        path = f"{folder}/{position:020d}-{number}"
    return path


def cut_off(files: Files, table: SegmentTable, position: int, folder: str) -> None:
    """Remove everything from `position` on: later segments newest first, each durably, so that
    whatever a power cut leaves has no hole; then the rest of the one that holds `position`."""
    while (last := table.last) is not None and last.base >= position:
        remove_segment(files, table, last)
        files.sync_folder(folder)
        table.set(table.entries[:-1])
    if last is None:
        return
    _remove_side_files(files, table, last)
    if last.base + last.size > position:
        file = files.open(last.path)
        file.truncate(position - last.base)
        file.sync_blocking()
        file.close()
    last.size = position - last.base
    last.end = position
    files.sync_folder(folder)


def remove_segment(files: Files, table: SegmentTable, entry: Entry) -> None:
    """Unlink a segment, its side files first."""
    _remove_side_files(files, table, entry)
    files.unlink(entry.path)
    entry.file = None


def _remove_side_files(files: Files, table: SegmentTable, entry: Entry) -> None:
    for path in table.side_files(entry.base):
        files.unlink(path)
