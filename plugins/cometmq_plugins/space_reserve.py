"""Space set aside for the moment when the disk is full.

Freeing space needs a trim in the log, and a start needs a segment: both must be possible on a full
disk. So a file lies beside the segments, allocated and never written; a segment takes it as a
whole by rename, which no other process can get in between, and a control batch takes a piece.
"""

from __future__ import annotations

import logging

from cometmq.environment import Files
from cometmq_plugins.segment_files import is_out_of_space

_log = logging.getLogger("cometmq.storage")
_PIECE_BYTES = 1 << 20


class SpaceReserve:
    """The file `log/reserve`. Its name is synced by whoever syncs the folder."""

    def __init__(self, files: Files, path: str, size_bytes: int, margin_bytes: int) -> None:
        """`margin_bytes`: how much must stay free beside it when it is made again."""
        self._files = files
        self._path = path
        self._size_bytes = size_bytes
        self._margin_bytes = margin_bytes

    def restore(self) -> bool:
        """Make or complete it if there is room; True if a file was made."""
        made = not self._files.exists(self._path)
        file_size = 0 if made else self._size()
        missing = self._size_bytes - file_size
        if missing <= 0:
            return False
        _, free = self._files.space(self._path.rpartition("/")[0])
        if free < missing + self._margin_bytes:
            _log.warning("no room for %s: %d bytes are free on that disk", self._path, free)
            return False
        file = self._files.open(self._path, create=made)
        try:
            file.allocate(file_size, missing)
        except OSError as error:
            if not is_out_of_space(error):
                raise
            _log.warning("no room for %s: %s", self._path, error)
        finally:
            file.close()
        return made

    def take(self, path: str) -> bool:
        """Turn it into the file `path`, all zeros, durably; False if there is none."""
        if not self._files.exists(self._path) or self._size() == 0:
            return False
        self._files.rename(self._path, path)
        # At once: a reserve that came back under its old name after it was written to would be
        # old bytes in a new segment.
        self._files.sync_folder(path.rpartition("/")[0])
        _log.warning("the disk is full: %s was made from the reserve", path)
        return True

    def give_piece(self, size_bytes: int) -> bool:
        """Give at least `size_bytes` back to the file system; False if it hasn't so much."""
        if not self._files.exists(self._path):
            return False
        wanted = max(size_bytes, _PIECE_BYTES)
        file = self._files.open(self._path)
        left = file.size() - wanted
        if left < 0 and file.size() >= size_bytes:
            left = 0
        if left >= 0:
            file.truncate(left)
        file.close()
        return left >= 0

    def _size(self) -> int:
        file = self._files.open_for_reading(self._path)
        size = file.size()
        file.close()
        return size
