"""A run as a picture: throughput and latency of all peers, with the spread of repetitions."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.figures import LATENCY_WORKLOADS, OURS, Figures, Row, p50, rate
from benchmarks.results import Run
from benchmarks.steps import Step

COLUMNS = 3
OUR_COLOR, PEER_COLOR = "tab:orange", "tab:blue"


def write(run: Run, path: Path) -> str:
    """Write the picture; returns why not, when matplotlib is missing or nothing was measured."""
    if find_spec("matplotlib") is None:
        return "no plot: matplotlib is not installed"
    figures = Figures(run)
    steps = [step for step in figures.steps() if _bars(figures, step)]
    if not steps:
        return "no plot: nothing was measured"
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = -(-len(steps) // COLUMNS)
    figure, grid = pyplot.subplots(
        lines, COLUMNS, figsize=(5 * COLUMNS, 2.6 * lines), squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(steps) :]:
        axes.axis("off")
    for step, axes in zip(steps, grid.flat, strict=False):
        _draw(axes, step, _bars(figures, step))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return ""


def _bars(figures: Figures, step: Step) -> list[Row]:
    """The rows of a step that have its main figure, upside down as a picture needs them."""
    return [row for row in figures.of_step(step.name) if row.spread(_main(step))][::-1]


def _main(step: Step) -> Any:
    return p50 if step.workload in LATENCY_WORKLOADS else rate


def _draw(axes: Any, step: Step, rows: list[Row]) -> None:
    found = [spread for row in rows if (spread := row.spread(_main(step)))]
    middle = [spread.middle for spread in found]
    below = [spread.middle - spread.low for spread in found]
    above = [spread.high - spread.middle for spread in found]
    colors = [OUR_COLOR if row.peer == OURS else PEER_COLOR for row in rows]
    axes.barh([row.title for row in rows], middle, xerr=[below, above], color=colors, capsize=2)
    unit = "p50 us, less is better" if step.workload in LATENCY_WORKLOADS else "messages a second"
    if step.workload in LATENCY_WORKLOADS:
        # Peers differ by orders of magnitude here.
        axes.set_xscale("log")
    axes.set_title(f"{step.name} ({unit})", fontsize=9)
    axes.tick_params(labelsize=8)
