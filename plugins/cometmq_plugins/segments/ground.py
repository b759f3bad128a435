"""Ground to write on: room on the disk for a segment, and what is said when there is none."""

from __future__ import annotations

import errno

from cometmq.environment import File, Files
from cometmq.errors import NoSpace
from cometmq_plugins.segments.files import Entry
from cometmq_plugins.segments.reserve import SpaceReserve

BLOCK_BYTES = 4096
"""What space is given in."""
_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)


def new_file(files: Files, reserve: SpaceReserve, path: str, step_bytes: int) -> File:
    """A file with space in it: a whole step, else the reserve, else as little as there is. Raises
    NoSpace, OSError."""
    file = _file_with_space(files, path, step_bytes)
    if file is None and reserve.take(path):
        return files.open(path)
    size = reserve.start_bytes
    while file is None and size >= BLOCK_BYTES:
        file = _file_with_space(files, path, size)
        size //= 4
    if file is None:
        raise no_space(path, step_bytes)
    return file


def extend(active: Entry, size: int) -> bool:
    """Let the segment have `size` bytes; False if there is no room. Raises OSError."""
    try:
        active.require_writer().allocate(active.size, size - active.size)
    except OSError as error:
        if error.errno in _OUT_OF_SPACE:
            return False
        raise
    active.size = size
    return True


def no_space(path: str, size_bytes: int) -> NoSpace:
    """There is no room for so many bytes more."""
    return NoSpace(
        f"the disk has no room for {size_bytes} bytes more of {path}; "
        "free space there, or lower the retention so that old segments go"
    )


def _file_with_space(files: Files, path: str, size_bytes: int) -> File | None:
    try:
        file = files.open(path, create=True)
        file.allocate(0, size_bytes)
        return file
    except OSError as error:
        if error.errno not in _OUT_OF_SPACE:
            raise
        if files.exists(path):
            files.unlink(path)
        return None
