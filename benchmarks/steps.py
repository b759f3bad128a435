"""What is measured: a step is a workload with its size, ack class and shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal

import msgspec

Level = Literal["memory", "disk"]
"""The class of an ack: the message is in the page cache (or the process), or on the disk."""

LEVELS: tuple[Level, ...] = ("memory", "disk")
SIZES = (100, 1024, 65536)
WORKLOADS = ("publish", "consume", "both", "one", "paced", "topics", "backlog", "idle")

MIB = 1 << 20
WARM_UP = 100_000
"""Messages of warm-up at 1 KiB and below, before every step, on a topic of their own."""


class Step(msgspec.Struct, frozen=True):
    """One measurement that every peer does in the same way.

    `count` messages are measured in all; for `paced` it follows from `rate` (a second) and
    `seconds`, for `idle` it is the number of consumers. `backlog_bytes` lie in the topic before.
    """

    workload: str
    level: Level
    size_bytes: int
    count: int
    producers: int = 1
    topics: int = 1
    rate: int = 0
    backlog_bytes: int = 0
    warm_up: int = WARM_UP

    @property
    def name(self) -> str:
        """Unique, and what `--workloads` selects by, such as `topics-1000-1024-memory`."""
        parts = [self.workload]
        if self.workload == "topics":
            parts.append(str(self.topics))
        if self.rate:
            parts.append(f"{self.rate}/s")
        parts += [str(self.size_bytes), self.level]
        if self.producers > 1:
            parts.append(f"x{self.producers}")
        return "-".join(parts)

    def scaled(self, factor: float) -> Step:
        """The same step with counts, warm-up and backlog multiplied; for trying things out."""
        return msgspec.structs.replace(
            self,
            count=max(20, int(self.count * factor)),
            warm_up=max(20, int(self.warm_up * factor)),
            backlog_bytes=int(self.backlog_bytes * factor),
        )


def all_steps(backlog_bytes: int = 10 << 30, idle_consumers: int = 1000) -> list[Step]:
    """Every step of the full benchmark, in the order in which they run."""
    steps: list[Step] = []
    for level, size in product(LEVELS, SIZES):
        steps += _by_class(level, size)
    for topics in (1, 100, 1000, 10_000):
        steps.append(_step("topics", "memory", 1024, 400_000, topics=topics))
    steps.append(_step("backlog", "memory", 1024, 1_000_000, backlog_bytes=backlog_bytes))
    steps.append(_step("idle", "memory", 1024, idle_consumers))
    return steps


def _by_class(level: Level, size: int) -> Iterator[Step]:
    """The steps that exist for each ack class and each size."""
    many = {100: 1_000_000, 1024: 400_000, 65536: 16_000}[size]
    # A reader's first fetches run ahead of its clock, so a short run flatters it.
    read = 16_000 if size > 1024 else 1_000_000
    yield _step("publish", level, size, many)
    yield _step("publish", level, size, many, producers=8)
    yield _step("consume", level, size, read)
    yield _step("both", level, size, many)
    yield _step("one", level, size, 10_000 if level == "memory" else 5_000)
    for rate in (1000, 10_000):
        if size * rate <= 64 * MIB:
            yield _step("paced", level, size, rate * 10, rate=rate)


def _step(
    workload: str,
    level: Level,
    size: int,
    count: int,
    producers: int = 1,
    topics: int = 1,
    rate: int = 0,
    backlog_bytes: int = 0,
) -> Step:
    warm_up = min(WARM_UP, 100 * MIB // size)
    return Step(workload, level, size, count, producers, topics, rate, backlog_bytes, warm_up)


TARGET_STEPS = (
    "publish-1024-memory",
    "publish-100-memory",
    "consume-1024-memory",
    "consume-100-memory",
    "publish-1024-disk",
    "one-1024-memory",
    "one-1024-disk",
    "paced-10000/s-1024-memory",
    "topics-1-1024-memory",
    "topics-1000-1024-memory",
    "backlog-1024-memory",
    "idle-1024-memory",
)
"""The steps that a target is set for; see targets.py."""


def select(steps: Sequence[Step], wanted: Sequence[str]) -> list[Step]:
    """The steps whose workload or name is wanted; "targets" means those with a target.

    Raises ValueError that names what nothing matches.
    """
    chosen: set[str] = set()
    for word in wanted:
        names = [
            step.name
            for step in steps
            if word in (step.workload, step.name, "all")
            or (word == "targets" and step.name in TARGET_STEPS)
        ]
        if not names:
            known = ", ".join(["all", "targets", *WORKLOADS])
            raise ValueError(f"no step is called {word}; use {known}, or a name from --list")
        chosen.update(names)
    return [step for step in steps if step.name in chosen]
