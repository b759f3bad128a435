"""What is not yet on disk, and the end of everything once a sync has failed."""

from __future__ import annotations

import errno
from functools import partial

from cometmq.advice import advice, no_descriptor
from cometmq.environment import File, Files, Threads
from cometmq.errors import LogStopped
from cometmq_plugins.segments.files import Entry

_Pending = list[tuple[Entry, File, int]]


class Unsynced:
    """Keeps the segments that were changed, and whether names in the folder were."""

    def __init__(self, files: Files, threads: Threads, folder: str) -> None:
        self._files = files
        self._threads = threads
        self._folder = folder
        self._entries: list[Entry] = []
        self._active: Entry | None = None
        self._names_changed = 0
        self._names_synced = 0
        self.stopped = ""
        """Why nothing may be written any more; empty as long as all is well."""

    def begin(self, entry: Entry) -> None:
        """This segment is the active one; each change is counted in `entry.changes`."""
        self._active = entry
        self.changed(entry)
        self.names_changed()

    def end(self) -> None:
        """There is no active segment any more; the last one waits for its last sync."""
        self._active = None

    def changed(self, entry: Entry) -> None:
        """The file of this segment (open for writing) was changed."""
        entry.changes += 1
        if entry not in self._entries:
            self._entries.append(entry)

    def forget(self, entry: Entry) -> None:
        """This segment is gone."""
        if entry in self._entries:
            self._entries.remove(entry)

    def names_changed(self) -> None:
        """A file was made or removed."""
        self._names_changed += 1

    def check(self) -> None:
        """Raises LogStopped after a failed sync."""
        if self.stopped:
            raise LogStopped(self.stopped)

    def stop(self, error: OSError) -> None:
        """What the disk holds can't be known any more: nothing may follow."""
        self.stopped = (
            f"a sync of the log failed ({error}), so nothing more is written; "
            f"{advice(error)} and start the broker again, it will verify the log"
        )

    def sync_names(self) -> None:
        """Names made, renamed or removed before this call are on disk after it. Raises LogStopped
        if the sync failed, OSError if none was tried, since no file could be opened."""
        names = self._names_changed
        try:
            self._files.sync_folder(self._folder)
        except OSError as error:
            if no_descriptor(error):
                raise
            self.stop(error)
            raise LogStopped(self.stopped) from error
        self._names_synced = max(self._names_synced, names)

    async def sync(self) -> float:
        """Everything changed before this call is on disk after it. Returns the seconds that its
        files took."""
        self.check()
        took_s = 0.0
        pending, names = self._pending(), self._names_changed
        try:
            for entry, file, _ in pending:
                took_s += await file.sync()
                self._check_kept(entry, file)
            if names != self._names_synced:
                await self._threads.run(partial(self._files.sync_folder, self._folder))
        except OSError as error:
            self.stop(error)
            raise
        self._settle(pending, names)
        return took_s

    def sync_blocking(self) -> float:
        """The same in this thread."""
        self.check()
        took_s = 0.0
        pending, names = self._pending(), self._names_changed
        try:
            for entry, file, _ in pending:
                took_s += file.sync_blocking()
                self._check_kept(entry, file)
            if names != self._names_synced:
                self._files.sync_folder(self._folder)
        except OSError as error:
            self.stop(error)
            raise
        self._settle(pending, names)
        return took_s

    def _check_kept(self, entry: Entry, file: File) -> None:
        """What was synced is on disk only as long as the file has a name. The broker removes none
        that it has not forgotten before, in this thread. Raises OSError."""
        if entry in self._entries and file.is_deleted():
            raise OSError(errno.ENOENT, "somebody deleted it while it was written to", entry.path)

    def _pending(self) -> _Pending:
        return [
            (entry, entry.require_writer(), entry.changes)
            for entry in self._entries
            if entry.changes != entry.synced
        ]

    def _settle(self, pending: _Pending, names: int) -> None:
        # Only now, and only what was seen before: a second sync that ran meanwhile did not rely
        # on this one.
        self._names_synced = max(self._names_synced, names)
        for entry, _, changes in pending:
            entry.synced = max(entry.synced, changes)
        for entry in [one for one in self._entries if one is not self._active]:
            if entry.changes == entry.synced:
                self._entries.remove(entry)
                entry.writer = None
