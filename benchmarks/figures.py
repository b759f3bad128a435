"""Medians and ratios over the repetitions of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median

import msgspec

from benchmarks import limits
from benchmarks.peers import peer_named
from benchmarks.results import Result, Run
from benchmarks.steps import Step

OURS = "cometmq"
LATENCY_WORKLOADS = ("one", "paced")

Figure = Callable[[Result], float | None]


class Spread(msgspec.Struct, frozen=True):
    """Smallest, middle and largest value of the repetitions."""

    low: float
    middle: float
    high: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of the values that are there; None if there are none."""
    there = [value for value in values if value is not None]
    return Spread(min(there), median(there), max(there)) if there else None


def rate(result: Result) -> float | None:
    """Messages a second."""
    return result.rate


def p50(result: Result) -> float | None:
    """Median latency, us."""
    return result.latency.p50_us if result.latency else None


def p99(result: Result) -> float | None:
    """Latency that 1 % exceed, us."""
    return result.latency.p99_us if result.latency else None


def broker_cpu(result: Result) -> float | None:
    """The broker's CPU seconds a million messages."""
    return result.broker_cpu_s_per_million


def extra(name: str) -> Figure:
    """A figure that only one workload has."""
    return lambda result: result.extra.get(name)


class Row(msgspec.Struct):
    """All repetitions of a step on one variant of a peer."""

    step: Step
    peer: str
    variant: str
    results: list[Result]

    @property
    def title(self) -> str:
        """Peer and variant."""
        return f"{self.peer} {self.variant}".strip()

    @property
    def good(self) -> list[Result]:
        """The repetitions that did not fail."""
        return [result for result in self.results if not result.error]

    def spread(self, figure: Figure) -> Spread | None:
        """The spread of a figure over the good repetitions."""
        return spread(figure(result) for result in self.good)

    def middle(self, figure: Figure) -> float | None:
        """The median of a figure, or None."""
        found = self.spread(figure)
        return found.middle if found else None


class Figures:
    """The rows of a run, in the order in which they were measured."""

    def __init__(self, run: Run) -> None:
        self.run = run
        rows: dict[tuple[str, str, str], Row] = {}
        for result in run.results:
            key = (result.step.name, result.peer, result.variant)
            row = rows.setdefault(key, Row(result.step, result.peer, result.variant, []))
            row.results.append(result)
        self.rows = list(rows.values())

    def steps(self) -> list[Step]:
        """Each step once."""
        return list({row.step.name: row.step for row in self.rows}.values())

    def of_step(self, name: str) -> list[Row]:
        """The rows of a step: ours first, then the peers by name."""
        rows = [row for row in self.rows if row.step.name == name]
        return sorted(rows, key=lambda row: (row.peer != OURS, row.peer, row.variant))

    def ours(self, step: str, variant: str, figure: Figure) -> float | None:
        """Our median; None when it was not measured."""
        for row in self.of_step(step):
            if row.peer == OURS and row.variant == variant:
                return row.middle(figure)
        return None

    def best_peer(
        self, step: str, figure: Figure, lowest: bool = False, peer: str = "", native: bool = False
    ) -> tuple[float, str] | None:
        """The best median among the peers (or of one), and whose it is.

        Peers whose client is not Python stand beside and count only when `native`.
        """
        found = [
            (value, row.title)
            for row in self.of_step(step)
            if row.peer != OURS
            and (not peer or row.peer == peer)
            and (native or not peer_named(row.peer).native_client)
            and (value := row.middle(figure)) is not None
        ]
        return (min(found) if lowest else max(found)) if found else None

    def ratio(self, row: Row) -> float | None:
        """The row's main figure by that of the best peer: above 1 is faster, or slower to ack."""
        slow = row.step.workload in LATENCY_WORKLOADS
        figure = p50 if slow else rate
        best, value = self.best_peer(row.step.name, figure, lowest=slow), row.middle(figure)
        return None if best is None or value is None else value / best[0]

    def limit(self, name: str) -> Spread | None:
        """A limit of the machine over the repetitions."""
        return spread(limit.value for limit in self.run.limits if limit.limit == name)

    def bound(self, step: Step) -> tuple[float, str] | None:
        """What the machine itself allows for a step (MB/s, or us), and what that is."""
        if step.workload in LATENCY_WORKLOADS:
            names = [limits.ROUND_TRIP]
            if step.level == "disk":
                names.append(limits.SYNC_THREAD)
        elif step.workload in ("consume", "both"):
            names = [limits.MEMCPY]
        else:
            names = [limits.WRITE_WARM if step.level == "memory" else limits.WRITE_SYNCED]
        found = [self.limit(name) for name in names]
        if None in found:
            return None
        return sum(limit.middle for limit in found if limit), " + ".join(names)

    def share_of_limit(self, row: Row) -> float | None:
        """Throughput as a share of the limit; latency as a multiple of it."""
        bound = self.bound(row.step)
        slow = row.step.workload in LATENCY_WORKLOADS
        value = row.middle(p50 if slow else rate)
        if bound is None or value is None:
            return None
        return (value if slow else value * row.step.size_bytes / 1e6) / bound[0]
