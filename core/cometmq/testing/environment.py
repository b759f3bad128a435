"""An environment without chance, time or disk of its own: what a test says happens, happens."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from cometmq.testing.clock import VirtualClock
from cometmq.testing.files import FaultyFiles

T = TypeVar("T")


class SeededRandom:
    """Chance that is the same in every run."""

    def __init__(self, seed: int = 0) -> None:
        self._source = random.Random(seed)

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)


class InlineThreads:
    """Worker "threads" that work in the loop, one turn later; `start` makes a real thread."""

    async def run(self, function: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return function()

    def start(self, name: str, function: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=function, name=name, daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Nothing runs on."""


@dataclass
class VirtualEnvironment:
    """Clock, chance, threads and files of a test."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    random: SeededRandom = field(default_factory=SeededRandom)
    threads: InlineThreads = field(default_factory=InlineThreads)
    files: FaultyFiles = field(default_factory=FaultyFiles)
