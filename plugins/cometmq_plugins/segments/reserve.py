"""Space set aside for the moment when the disk is full.

Freeing space needs a trim in the log, and a start needs a segment: both must be possible on a full
disk. So a file lies beside the segments, allocated and never written; a segment takes it as a
whole by rename, which no other process can get in between, and a control batch takes a piece.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cometmq.environment import File, Files

logger = logging.getLogger("cometmq.storage")
_PIECE_BYTES = 1 << 20
_START_BYTES = 1 << 20


class SpaceReserve:
    """The file `log/reserve`. Its name is synced by whoever syncs the folder."""

    def __init__(
        self,
        files: Files,
        folder: str,
        size_bytes: int,
        step_bytes: int,
        sync_names: Callable[[], None],
    ) -> None:
        """`step_bytes`: how much a segment takes at once when there is room; `sync_names` syncs
        the folder."""
        self._files = files
        self._sync_names = sync_names
        self._path = f"{folder}/reserve"
        self._size_bytes = size_bytes
        self._margin_bytes = 2 * step_bytes
        self.start_bytes = min(_START_BYTES, step_bytes)
        """What a start needs at least."""
        self._kept_bytes = min(self.start_bytes, size_bytes)
        self.owed_bytes = 0
        """What messages must leave of the active segment for the next start: something while the
        reserve is not there, or a broker that once filled its disk could never start again."""

    def restore(self) -> bool:
        """Make or complete it if there is room; True if a file was made."""
        try:
            return self._restore()
        except OSError as error:
            # Whatever it is: a broker works without a reserve, and need not stop for it.
            logger.warning("no room for %s: %s", self._path, error)
            return False

    def _restore(self) -> bool:
        made = not self._files.exists(self._path)
        file_size = 0 if made else self._size()
        missing = self._size_bytes - file_size
        self.owed_bytes = 0 if file_size >= self._kept_bytes else self._kept_bytes
        if missing <= 0:
            return False
        _, free = self._files.space(self._path.rpartition("/")[0])
        if free < missing + self._margin_bytes:
            logger.warning("no room for %s: %d bytes are free on that disk", self._path, free)
            return False
        file = self._files.open(self._path, create=made)
        try:
            file.allocate(file_size, missing)
            self.owed_bytes = 0
        except OSError as error:
            # The file is there all the same, and its name is to be synced.
            logger.warning("no room for %s: %s", self._path, error)
        finally:
            file.close()
        return made

    def take(self, path: str) -> File | None:
        """Turn it into the file `path`, all zeros, durably; None if there is none. Raises OSError
        (it may have its new name then, and holds zeros), LogStopped if the sync failed."""
        if not self._files.exists(self._path):
            return None
        # Opened before it is renamed: who can't open it leaves it where it is.
        file = self._files.open(self._path)
        try:
            if file.size() == 0:
                file.close()
                return None
            self._files.rename(self._path, path)
            # At once: a reserve that came back under its old name after it was written to would
            # be old bytes in a new segment.
            self._sync_names()
        except BaseException:
            file.close()
            raise
        logger.warning("the disk is full: %s was made from the reserve", path)
        return file

    def give_piece(self, size_bytes: int) -> bool:
        """Give at least `size_bytes` back to the file system; False if it hasn't so much besides
        what a start needs."""
        if not self._files.exists(self._path):
            return False
        file = self._files.open(self._path)
        spare = file.size() - self._kept_bytes
        given = min(max(size_bytes, _PIECE_BYTES), spare)
        enough = given >= size_bytes
        if enough:
            file.truncate(file.size() - given)
        file.close()
        return enough

    def _size(self) -> int:
        file = self._files.open_for_reading(self._path)
        size = file.size()
        file.close()
        return size
