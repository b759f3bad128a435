"""Ground to write on: room on the disk for a segment, and what is said when there is none."""

from __future__ import annotations

import errno
from contextlib import suppress

from cometmq.advice import advice
from cometmq.environment import File, Files
from cometmq.errors import DiskRefused, NoSpace
from cometmq_plugins.segments.files import Entry
from cometmq_plugins.segments.reserve import SpaceReserve

BLOCK_BYTES = 4096
"""What space is given in."""
_ADVICE = {
    errno.ENOSPC: "free space there, or lower the retention so that old segments go",
    errno.EDQUOT: "raise the quota of the broker's user there, or lower the retention so that old "
    "segments go",
    errno.EFBIG: "raise the limit on the size of a file (`ulimit -f`), or start again with a lower "
    "log.segment_bytes",
}
"""What to do when there is no room, by the reason that the system gave."""


class Ground:
    """Makes the files of new segments."""

    def __init__(self, files: Files, reserve: SpaceReserve, step_bytes: int) -> None:
        """`step_bytes`: how much a segment takes at once when there is room."""
        self._files = files
        self._reserve = reserve
        self._step_bytes = step_bytes
        self.leftovers: list[str] = []
        """Files of zeros that were to be segments and could not be removed again. The log goes on
        in the segment before, so they go before anything else is made."""

    def new_file(self, path: str) -> File:
        """A file with space in it: a whole step, else the reserve, else as little as there is.
        Raises NoSpace, DiskRefused if it can't be made for another reason (what is there then is
        no segment and goes at the next call), or LogStopped if a sync failed."""
        try:
            self._clear()
            return self._made(path)
        except OSError as error:
            rights = "" if advice(error) != "check the disk" else " and the rights on it"
            raise DiskRefused(
                f"{path} can't be made ({error.strerror}): {advice(error)}{rights}"
            ) from error

    def take_back(self, path: str, file: File) -> None:
        """A new file is to be no segment after all. Raises OSError if it can't be removed: then it
        goes at the next call."""
        self.leftovers.append(path)
        file.close()
        self._clear()

    def _made(self, path: str) -> File:
        made = self._file_with_space(path, self._step_bytes)
        if not isinstance(made, OSError):
            return made
        if (taken := self._from_reserve(path)) is not None:
            return taken
        size = self._reserve.start_bytes
        while size >= BLOCK_BYTES:
            made = self._file_with_space(path, size)
            if not isinstance(made, OSError):
                return made
            size //= 4
        raise no_space(path, self._step_bytes, made)

    def _file_with_space(self, path: str, size_bytes: int) -> File | OSError:
        """The file, or why there is no room for it. Raises OSError."""
        file: File | None = None
        try:
            file = self._files.open(path, create=True)
            file.allocate(0, size_bytes)
            return file
        except OSError as error:
            if file is not None:
                self.take_back(path, file)
            if error.errno in _ADVICE:
                return error
            raise

    def _from_reserve(self, path: str) -> File | None:
        try:
            return self._reserve.take(path)
        except OSError:
            if self._files.exists(path):
                self.leftovers.append(path)
            raise

    def _clear(self) -> None:
        while self.leftovers:
            with suppress(FileNotFoundError):
                self._files.unlink(self.leftovers[-1])
            self.leftovers.pop()


def extend(active: Entry, size: int) -> OSError | None:
    """Let the segment have `size` bytes; the reason if there is no room. Raises OSError."""
    try:
        active.require_writer().allocate(active.size, size - active.size)
    except OSError as error:
        if error.errno in _ADVICE:
            return error
        raise
    active.size = size
    return None


def no_space(path: str, size_bytes: int, reason: OSError) -> NoSpace:
    """There is no room for so many bytes more; `reason` is one of those that `extend` gives."""
    what = f"the disk has no room for {size_bytes} bytes more of {path}"
    if reason.errno != errno.ENOSPC:
        what += f" ({reason.strerror})"
    return NoSpace(f"{what}; {_ADVICE[reason.errno or 0]}")
