"""A file system of our own in a file, whose power can really be cut.

The shutdown ioctl stops a mounted ext4 or XFS at once, as a power cut does: what the page cache
had is lost, and the next mount replays the journal. It needs root, loop devices and mkfs.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import Literal

FileSystem = Literal["ext4", "xfs"]

SHUTDOWN = 0x8004587D
FLUSH, LOG_FLUSH, NO_LOG_FLUSH = 0, 1, 2
"""What the ioctl does first: write everything (a clean stop of the system), only the journal
(names survive, perhaps without bytes), or nothing (the power cut proper)."""
_SIZE_BYTES = 1 << 30
_TRIES = 100


def why_not(kind: FileSystem) -> str:
    """Why there can be no such disk here; empty if there can."""
    if os.geteuid() != 0:
        return "a power cut needs root"
    if not os.path.exists("/dev/loop-control"):
        return "a power cut needs loop devices"
    if shutil.which(f"mkfs.{kind}") is None:
        return f"mkfs.{kind} is not installed (apt-get install e2fsprogs xfsprogs)"
    return ""


class LoopDisk:
    """A mounted file system in a sparse file."""

    def __init__(self, folder: Path, kind: FileSystem, size_bytes: int = 0) -> None:
        """`folder` gets the file and the mount point. Raises CalledProcessError."""
        self.mount_point = folder / "disk"
        self._kind = kind
        self._image = folder / "disk.img"
        self.mount_point.mkdir()
        with self._image.open("wb") as image:
            image.truncate(size_bytes or _SIZE_BYTES)
        force = {"ext4": "-Fq", "xfs": "-fq"}[kind]
        _run(f"mkfs.{kind}", force, str(self._image))
        self.mount()

    def mount(self) -> None:
        """Mount it, replaying its journal."""
        _run("mount", "-t", self._kind, "-o", "loop", str(self._image), str(self.mount_point))

    def cut_power(self, mode: int = NO_LOG_FLUSH) -> None:
        """From now on nothing reaches it. What used it should end before `unmount`."""
        descriptor = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", mode))
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        """Unmount it; somebody who is just ending may still hold it for a moment."""
        for _ in range(_TRIES):
            done = subprocess.run(["umount", str(self.mount_point)], capture_output=True, text=True)
            if done.returncode == 0:
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self.mount_point} could not be unmounted: {done.stderr}")

    def remount(self) -> None:
        """The power comes back."""
        self.unmount()
        self.mount()

    def remove(self) -> None:
        """Unmount it and delete its file."""
        if os.path.ismount(self.mount_point):
            self.unmount()
        self._image.unlink()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
