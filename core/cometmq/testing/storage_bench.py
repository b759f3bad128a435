"""What the storage contract works with: storages over one folder, and bytes to put into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cometmq.interfaces import Segment, Storage


class Maker(Protocol):
    """A contract suite, as far as a bench needs it."""

    def make(self, folder: str) -> Storage:
        """A storage over this folder, not yet opened."""


class Bench:
    """Storages over one folder, all closed at the end of a test."""

    def __init__(self, maker: Maker, folder: str) -> None:
        self._maker = maker
        self.folder = folder
        self._made: list[Storage] = []

    def new(self) -> Storage:
        """One more storage, not yet opened."""
        self._made.append(self._maker.make(self.folder))
        return self._made[-1]

    def opened(self) -> Storage:
        """A storage that holds the folder."""
        storage = self.new()
        storage.open()
        return storage

    def filled(self, *segments: bytes, seal_last: bool = True) -> Storage:
        """A storage with these segments, one after the other from position 0."""
        storage = self.opened()
        position = 0
        for data in segments:
            storage.begin(position)
            append(storage, position, data)
            position += len(data)
            if seal_last or data is not segments[-1]:
                storage.seal(position)
        return storage

    def reopened(self, storage: Storage) -> tuple[Storage, list[Segment]]:
        """Close it and open another one on the same bytes."""
        storage.close()
        again = self.new()
        return again, again.open()

    def close(self) -> None:
        """Close all."""
        for storage in self._made:
            storage.close()


def append(storage: Storage, position: int, data: bytes) -> None:
    """Allocate and write."""
    storage.allocate(position + len(data))
    storage.write(position, [data])


def bases(segments: Sequence[Segment]) -> list[int]:
    """First positions."""
    return [segment.base for segment in segments]


def pattern(size: int, salt: int = 0) -> bytes:
    """Bytes without zeros that differ from place to place."""
    return bytes((at * 7 + at // 251 + salt) % 255 + 1 for at in range(size))
