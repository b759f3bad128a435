"""Ground to write on: room on the disk for a segment, and what is said when there is none."""

from __future__ import annotations

import errno

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


def new_file(files: Files, reserve: SpaceReserve, path: str, step_bytes: int) -> File:
    """A file with space in it: a whole step, else the reserve, else as little as there is. Raises
    NoSpace, or DiskRefused if it can't be made for another reason; then there is none."""
    made = _file_with_space(files, path, step_bytes)
    if not isinstance(made, OSError):
        return made
    if reserve.take(path):
        return files.open(path)
    size = reserve.start_bytes
    while size >= BLOCK_BYTES:
        made = _file_with_space(files, path, size)
        if not isinstance(made, OSError):
            return made
        size //= 4
    raise no_space(path, step_bytes, made)


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


def _file_with_space(files: Files, path: str, size_bytes: int) -> File | OSError:
    """The file, or why there is no room for it."""
    file: File | None = None
    try:
        file = files.open(path, create=True)
        file.allocate(0, size_bytes)
        return file
    except OSError as error:
        if file is not None:
            file.close()
            files.unlink(path)
        if error.errno in _ADVICE:
            return error
        raise DiskRefused(
            f"{path} can't be made ({error.strerror}): check the disk and the rights on it"
        ) from error
