"""The storage itself: segments as files in a data folder.

It knows positions and bytes, and no batch. The folder: `log/POSITION.seg` and its side files,
`log/reserve` (space set aside), `cut/` (what was cut off the log), `lock`, `node`.

The rules that keep a power cut harmless: nothing is zeroed in place, no file is used again, a
name is synced before anything relies on it, and after a failed sync nothing is written any more,
since the system may have thrown away what it could not write.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from cometmq.advice import advice, no_descriptor
from cometmq.environment import Buffer, Environment, Files
from cometmq.errors import DiskRefused, LogError
from cometmq.interfaces import Segment
from cometmq_plugins.segments.cuts import cut_off, keep_copy, remove_segment
from cometmq_plugins.segments.data_folder import DataFolder
from cometmq_plugins.segments.files import (
    Entry,
    SegmentTable,
    only_zeros,
    write_side_file,
)
from cometmq_plugins.segments.ground import BLOCK_BYTES, Ground, extend, no_space
from cometmq_plugins.segments.read_ahead import ReadAhead
from cometmq_plugins.segments.reserve import SpaceReserve
from cometmq_plugins.segments.sync import Unsynced
from cometmq_plugins.segments.trims import Doomed, take_off

logger = logging.getLogger("cometmq.storage")

STEP_BYTES = 16 << 20
READ_AHEAD_BYTES = 8 << 20
RESERVE_BYTES = 24 << 20


class SegmentStorage:
    """A `cometmq.interfaces.Storage` of files in the folder `data`."""

    def __init__(
        self,
        environment: Environment,
        files: Files,
        data: str,
        *,
        persistent: bool,
        step_bytes: int = STEP_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
    ) -> None:
        """`step_bytes`: space is allocated in pieces of this size; `reserve_bytes`: how much is
        set aside for a full disk; `read_ahead_bytes`: at most so much is read ahead at once."""
        self.persistent = persistent
        self._files = files
        self._threads = environment.threads
        self._data = data
        self._home = DataFolder(files, data)
        self._folder = f"{data}/log"
        self._step_bytes = step_bytes
        self._table = SegmentTable(files, self._folder)
        self._unsynced = Unsynced(files, environment.threads, self._folder)
        sync_names = self._unsynced.sync_names
        self._reserve = SpaceReserve(files, self._folder, reserve_bytes, step_bytes, sync_names)
        self._ground = Ground(files, self._reserve, step_bytes)
        self._ahead = ReadAhead(environment.threads, read_ahead_bytes)
        self._doomed = Doomed(files, self._folder)
        self._active: Entry | None = None
        self._tidy = False

    # --- the folder -----------------------------------------------------------------------------

    def open(self, *, read_only: bool = False) -> list[Segment]:
        """Take the lock, unless `read_only`, and list what is there."""
        try:
            if not read_only:
                self._files.make_folder(self._folder)
                self._home.lock()
            elif not self._files.exists(self._folder):
                lack = "holds no log (no folder `log` is in it)"
                raise LogError(f"{self._data} {lack}; name the data folder of a broker")
            self._table.load()
            self._ground.leftovers = self._table.leftovers
        except LogError:
            self.close()
            raise
        except OSError as error:
            self.close()
            why = f"{error.filename}: {error.strerror}" if error.filename else error
            if isinstance(error, FileExistsError | NotADirectoryError):
                why = f"{error.filename} is a file, not a folder"
            todo = "check that it is a folder that this user may read and write, or choose another"
            if no_descriptor(error) or error.errno == errno.EROFS:
                todo = advice(error)
            raise LogError(f"the data folder {self._data} can't be used ({why}); {todo}") from error
        return list(self.segments())

    def segments(self) -> Sequence[Segment]:
        """Oldest first."""
        return [Segment(entry.base, entry.size, entry.path) for entry in self._table.entries]

    def node_id(self) -> bytes | None:
        """The node's id, if there is one."""
        return self._home.node_id()

    def keep_node_id(self, node: bytes) -> None:
        """Keep the node's id."""
        self._check_writable()
        self._home.keep_node_id(node)

    def usage(self) -> dict[str, int]:
        """Space of the file system, in bytes."""
        return self._home.usage()

    def close(self) -> None:
        """Let go of everything; nothing is synced."""
        self._ahead.close()
        self._active = None
        self._unsynced.end()
        self._table.drop_files()
        self._home.unlock()

    # --- writing --------------------------------------------------------------------------------

    def begin(self, base: int) -> None:
        """A new active segment; one that was active is sealed there, once the new one exists."""
        self._check_writable()
        last = self._table.last
        if last is not None and last.base == base:
            self._replace_empty(last)
        elif last is not None:
            self._check_follows(last, base)
        self._cut_prepared_space(base)
        path = self._table.path(base)
        file = self._ground.new_file(path)
        try:
            entry = Entry(base, path, file.size())
            if self._active is not None:
                self.seal(base)
        except OSError as error:
            with suppress(OSError):  # it is noted, and goes before the next one is made
                self._ground.take_back(path, file)
            raise DiskRefused(
                f"{last.path if last else path} can't be closed, so {path} can't be begun "
                f"({error.strerror or error}): {advice(error)}; it is tried again"
            ) from error
        entry.end = base
        entry.file = entry.writer = file
        self._active = entry
        self._unsynced.begin(entry)
        self._table.set([*self._table.entries, entry])
        self._tidy_once()
        self._restore_reserve()

    def _replace_empty(self, last: Entry) -> None:
        # A crash right after `begin` leaves such a file: names may survive without the bytes.
        if not only_zeros(self._table.file(last), 0, last.size):
            raise LogError(f"a segment can't begin at {last.base}: {last.path} holds bytes already")
        remove_segment(self._files, self._table, last)
        self._unsynced.forget(last)
        self._active = None
        self._table.set(self._table.entries[:-1])

    def _check_follows(self, last: Entry, base: int) -> None:
        end = last.base + last.size
        if self._active is not None:
            end = self._active.end
        if not last.base < base <= end or (self._active is not None and base != end):
            raise LogError(f"a segment can't begin at {base}: {last.path} ends at {end}")

    def _cut_prepared_space(self, base: int) -> None:
        """Cut the zeros that segments have behind the next one's name; the broker writes, so the
        log has judged what is there."""
        bases = [*(entry.base for entry in self._table.entries), base][1:]
        for entry, next_base in zip(self._table.entries, bases, strict=True):
            length = next_base - entry.base
            if entry.size <= length or entry is self._active:
                continue
            if not only_zeros(self._table.file(entry), length, entry.size):
                raise LogError(
                    f"{entry.path} holds bytes behind position {next_base}, where the next "
                    "segment begins; look at it with `mq log inspect`"
                )
            if entry.writer is None:
                entry.writer = self._files.open(entry.path)
            entry.writer.truncate(length)
            entry.size, entry.end = length, next_base
            self._unsynced.changed(entry)

    def _tidy_once(self) -> None:
        # Not at `open`: a start in doubt leaves the folder as it is.
        if not self._tidy:
            for path in self._table.strays():
                try:
                    self._files.unlink(path)
                except OSError as error:
                    logger.warning("a file that nobody needs can't be deleted: %s", error)
            self._tidy = True

    def _restore_reserve(self) -> None:
        if self._reserve.restore():
            self._unsynced.names_changed()

    def allocate(self, end: int, *, urgent: bool = False) -> None:
        """Real space up to `end`: a whole step if there is room, else just enough."""
        end += 0 if urgent else self._reserve.owed_bytes
        active = self._active
        if active is not None and end <= active.base + active.size:
            return
        active = self._check_active()
        need = end - active.base
        just = active.size + _rounded(need - active.size, BLOCK_BYTES)
        if extend(active, _rounded(need, self._step_bytes)) is None:
            return
        reason = extend(active, just)
        if reason and urgent and self._reserve.give_piece(just - active.size):
            reason = extend(active, just)
        if reason is not None:
            raise no_space(active.path, just - active.size, reason)

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """One gathered write into space that was allocated before."""
        active = self._check_active()
        end = position + sum(map(len, buffers))
        if position != active.end or end > active.base + active.size:
            raise LogError(
                f"a write of [{position}, {end}) to {active.path}, which ends at {active.end} and "
                f"has space up to {active.base + active.size}"
            )
        active.changes += 1  # also if it fails: a part of it may be there
        active.require_writer().write(position - active.base, buffers)
        active.end = end

    def seal(self, end: int) -> None:
        """No more of the active segment; its length gets exact."""
        active = self._check_active()
        if end != active.end:
            raise LogError(f"{active.path} ends at {active.end} and can't be sealed at {end}")
        file = active.require_writer()
        file.truncate(end - active.base)
        active.size = end - active.base
        self._unsynced.changed(active)
        self._unsynced.end()
        self._table.adopt(active, file)
        self._active = None

    async def sync(self) -> float:
        """All changes before this call, in threads."""
        return await self._unsynced.sync()

    def sync_blocking(self) -> float:
        """All changes before this call, here."""
        return self._unsynced.sync_blocking()

    # --- reading --------------------------------------------------------------------------------

    def read(self, position: int, size: int) -> bytes:
        """Bytes of one segment; none where there is no segment."""
        entry = self._table.find(position)
        size = min(size, entry.end - position) if entry is not None else 0
        if entry is None or size <= 0:
            return b""
        try:
            return self._table.file(entry).read(position - entry.base, size)
        except FileNotFoundError:
            if entry in self._table.entries:
                raise
            return b""  # trimmed by the loop's thread while this one came here

    def read_now(self, position: int, size: int) -> bytes | bytearray | None:
        """The same without waiting."""
        entry = self._table.find(position)
        size = min(size, entry.end - position) if entry is not None else 0
        if entry is None or size <= 0:
            return b""
        return self._ahead.read_now(entry, self._table.file(entry), position - entry.base, size)

    # --- repair and retention -------------------------------------------------------------------

    def rewrite(self, position: int, end: int) -> None:
        """Write the stretch over itself. Raises LogError if it can't be read or written."""
        self._check_writable()
        try:
            rewritten = sum(
                self._rewrite_in(entry, max(position, entry.base), min(end, entry.end))
                for entry in self._table.entries
                if entry.base < end and entry.end > position
            )
            self._files.sync_folder(self._folder)
        except OSError as error:
            self._unsynced.stop(error)
            raise LogError(
                f"[{position}, {end}) of the log could not be written again ({error}); "
                f"{advice(error)} and start again"
            ) from error
        if rewritten != end - position:
            raise LogError(
                f"only {rewritten} bytes of [{position}, {end}) are in {self._folder}, so they "
                "can't be written again; look at it with `mq log inspect`"
            )

    def _rewrite_in(self, entry: Entry, start: int, end: int) -> int:
        file = self._files.open(entry.path)
        rewritten = 0
        for at, data in self._table.chunks(start, end):
            file.write(at - entry.base, [data])
            rewritten += len(data)
        file.sync_blocking()
        file.close()
        return rewritten

    def cut(self, position: int) -> str:
        """Remove the log's end. The active segment, if it is hit, is active no more."""
        self._check_writable()
        entry, last = self._table.find(position), self._table.last
        if entry is None or last is None or position > last.base + last.size:
            raise LogError(f"position {position} is not in the log in {self._folder}")
        kept = keep_copy(self._files, self._table, position, f"{self._data}/cut")
        for gone in self._table.entries:
            if gone.base + gone.size > position or gone is self._active:
                self._unsynced.forget(gone)
                gone.file = gone.writer = None
        self._active = None
        self._unsynced.end()
        try:
            cut_off(self._files, self._table, position, self._folder)
        except OSError as error:
            self._unsynced.stop(error)
            raise LogError(
                f"the log could not be cut at position {position} ({error}); the bytes are kept in "
                f"{kept or 'no file, being zeros'}; {advice(error)} and start again"
            ) from error
        return kept

    def trim(self, position: int) -> list[Segment]:
        """Remove what lies whole below `position`; the last segment always stays."""
        self._check_writable()
        self._doomed.add(take_off(self._table, self._unsynced, position))
        for paths in self._doomed.each():
            self._doomed.unlink(paths)
        return self._trimmed()

    async def trim_in_thread(self, position: int) -> list[Segment]:
        """The same, unlinking in a thread: to free a gigabyte takes a file system a while."""
        self._check_writable()
        self._doomed.add(take_off(self._table, self._unsynced, position))
        for paths in self._doomed.each():
            await self._threads.run(partial(self._doomed.unlink, paths))
        return self._trimmed()

    def _trimmed(self) -> list[Segment]:
        gone = self._doomed.take_gone()
        if gone:
            self._restore_reserve()
        return gone

    # --- side files -----------------------------------------------------------------------------

    def write_side(self, base: int, suffix: str, chunks: Sequence[Buffer]) -> None:
        """Written under another name, then renamed: whole, or the old one, but after a power cut
        perhaps torn (its reader must be able to tell)."""
        self._check_writable()
        write_side_file(self._files, self._table.side_path(base, suffix), chunks)

    def read_side(self, base: int, suffix: str) -> bytes | None:
        """Its bytes, or None."""
        path = self._table.side_path(base, suffix)
        return self._files.read_file(path) if self._files.exists(path) else None

    def remove_side(self, base: int, suffix: str) -> None:
        """Forget it."""
        path = self._table.side_path(base, suffix)
        if self._files.exists(path):
            self._files.unlink(path)

    # --------------------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        self._unsynced.check()
        if not self._home.locked:
            raise LogError(f"the log in {self._folder} is not open for writing")

    def _check_active(self) -> Entry:
        if self._unsynced.stopped:
            self._unsynced.check()
        if self._active is None:
            raise LogError(f"no segment in {self._folder} was begun, so nothing can be written")
        return self._active


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step
