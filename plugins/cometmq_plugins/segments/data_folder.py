"""What belongs to the data folder as a whole: its lock, its node id, its space."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.environment import Files
from cometmq.errors import LogError, LogLocked

_NODE_BYTES = 8


class DataFolder:
    """The folder that `log/` lies in."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._release: Callable[[], None] | None = None

    @property
    def locked(self) -> bool:
        """Whether this process holds it and may write."""
        return self._release is not None

    def lock(self) -> None:
        """Take it. Raises LogLocked if somebody else has it, OSError."""
        path = f"{self._path}/lock"
        self._release = self._files.lock(path)
        if self._release is None:
            holder = self._files.locked_by(path) or "another process"
            raise LogLocked(
                f"the data folder {self._path} is in use by {holder}; "
                "stop that one or choose another folder"
            )

    def unlock(self) -> None:
        """Give it back, if it was taken."""
        if self._release is not None:
            self._release()
            self._release = None

    def node_id(self) -> bytes | None:
        """8 bytes, kept as hexadecimal text in the file `node`; None without one. Raises LogError
        if it is damaged."""
        path = f"{self._path}/node"
        if not self._files.exists(path):
            return None
        text = self._files.read_file(path)
        try:
            node = bytes.fromhex(text.decode("ascii"))
        except ValueError:
            node = b""
        if len(node) != _NODE_BYTES:
            raise LogError(
                f"{path} is not a node id but {text[:40]!r}; restore it from a backup, "
                "or remove it to get a new id"
            )
        return node

    def keep_node_id(self, node: bytes) -> None:
        """Write the file."""
        self._files.write_file(f"{self._path}/node", [node.hex().encode(), b"\n"])

    def usage(self) -> dict[str, int]:
        """Space of the file system that holds it, in bytes."""
        total, free = self._files.space(self._path)
        return {"bytes_used": total - free, "bytes_total": total, "bytes_free": free}
