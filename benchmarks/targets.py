"""The targets, and how far a run has met them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from benchmarks import limits
from benchmarks.figures import OURS, Figure, Figures, broker_cpu, extra, p50, p99, rate
from benchmarks.results import Result


class Verdict(msgspec.Struct):
    """A target's line: `value` against `wanted`, at least or at most. None: not measured."""

    work: str
    measured: str
    value: float | None
    wanted: float
    at_least: bool = True

    @property
    def met(self) -> bool | None:
        """Whether the target is met."""
        if self.value is None:
            return None
        return self.value >= self.wanted if self.at_least else self.value <= self.wanted


def verdicts(figures: Figures) -> Iterator[Verdict]:
    """All targets, in the order of their table."""
    yield from _publish(figures)
    for size, wanted in ((1024, 1.5), (100, 2.5)):
        yield _against(figures, f"consume {size} B", f"consume-{size}-memory", "", rate, wanted)
    yield from _latency(figures)
    yield from _rocketmq(figures)
    yield from _shape(figures)
    for work, variant in (("publish", "send_soon"), ("consume", "")):
        step = f"{work}-1024-memory"
        yield _against(
            figures, f"broker CPU, {work} 1024 B", step, variant, broker_cpu, 0.6, at_least=False
        )


def _publish(figures: Figures) -> Iterator[Verdict]:
    for size, level, soon, many in (
        (1024, "memory", 1.3, 1.5),
        (100, "memory", 1.3, 2.5),
        (1024, "disk", 1.6, 1.6),
    ):
        for variant, wanted in (("send_soon", soon), ("send_many", many)):
            work = f"publish {size} B, {level}, {variant}"
            yield _against(figures, work, f"publish-{size}-{level}", variant, rate, wanted)


def _latency(figures: Figures) -> Iterator[Verdict]:
    trip = figures.limit(limits.ROUND_TRIP)
    sync = figures.limit(limits.SYNC_THREAD)
    for level, floor in (
        ("memory", trip.middle if trip else None),
        ("disk", trip.middle + sync.middle if trip and sync else None),
    ):
        work, step = f"one at a time 1024 B, {level}", f"one-1024-{level}"
        yield _against(figures, f"{work}, p50", step, "", p50, 1.1, False, "redis")
        ours = figures.ours(step, "", p50)
        ratio = None if ours is None or floor is None else ours / floor
        name = "round trip" if level == "memory" else "round trip + fdatasync"
        text = "" if ratio is None else f"{ours:,.0f} us, {name} {floor:,.0f} us"
        yield Verdict(f"{work}, p50 by the machine's floor", text, ratio, 1.3, False)
    yield _against(
        figures,
        "one at a time 1024 B, memory, p99",
        "one-1024-memory",
        "",
        p99,
        1.5,
        False,
        "redis",
    )
    for figure, title, wanted in ((p50, "p50", 1.0), (p99, "p99", 1.2)):
        step = "paced-10000/s-1024-memory"
        yield _against(figures, f"end to end 10,000/s, {title}", step, "", figure, wanted, False)


def _rocketmq(figures: Figures) -> Iterator[Verdict]:
    """Each step that RocketMQ did, against its own Java client."""
    for step in figures.steps():
        slow = step.workload in ("one", "paced")
        variant = "send_soon" if step.workload in ("publish", "topics") else ""
        if not figures.best_peer(step.name, p50 if slow else rate, slow, "rocketmq", True):
            continue
        figure, wanted = (p50, 0.5) if slow else (rate, 2.0)
        work = f"RocketMQ, {step.name}"
        yield _against(figures, work, step.name, variant, figure, wanted, not slow, "rocketmq")


def _shape(figures: Figures) -> Iterator[Verdict]:
    one = figures.ours("topics-1-1024-memory", "send_soon", rate)
    many = figures.ours("topics-1000-1024-memory", "send_soon", rate)
    ratio = many / one if one and many else None
    text = f"{many:,.0f}/s of {one:,.0f}/s" if ratio is not None else ""
    yield Verdict("1,000 topics against one", text, ratio, 0.75)
    share = figures.ours("backlog-1024-memory", "", extra("share_of_alone"))
    yield Verdict("publish beside a reader of the backlog, by alone", "", share, 0.8)
    for name, title, wanted in (
        ("added_rss_anon_mib", "1,000 idle consumers, MiB of RssAnon", 60.0),
        ("broker_cores", "1,000 idle consumers, share of a core", 0.02),
    ):
        cost = figures.ours("idle-1024-memory", "", extra(name))
        yield Verdict(title, "", cost, wanted, False)
    written = figures.ours("publish-1024-memory", "send_soon", _written)
    yield Verdict("bytes written per body byte, 1024 B", "", written, 1.05, False)


def _written(result: Result) -> float | None:
    return result.written_per_body_byte


def _against(
    figures: Figures,
    work: str,
    step: str,
    variant: str,
    figure: Figure,
    wanted: float,
    at_least: bool = True,
    peer: str = "",
) -> Verdict:
    """Our median by the best peer's (or that peer's)."""
    ours = figures.ours(step, variant, figure)
    best = figures.best_peer(step, figure, not at_least, peer, native=bool(peer))
    if ours is None or not best:
        return Verdict(work, "", None, wanted, at_least)
    text = f"{OURS} {ours:,.4g}, {best[1]} {best[0]:,.4g}"
    return Verdict(work, text, ours / best[0], wanted, at_least)
