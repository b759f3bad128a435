"""`python -m benchmarks`: run steps on peers, interleaved, and write the report."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from benchmarks import limits, plot, report, results, syncs
from benchmarks.controller import run_step
from benchmarks.peers import PEERS, peer_named
from benchmarks.peers.base import Peer, home
from benchmarks.steps import Step, all_steps, select

INSIDE = "COMETMQ_BENCH_ALONE"


def _alone() -> None:
    """Go on in a network namespace that has nothing but loopback.

    Some brokers can't be kept from listening on every interface; here there is no other.
    """
    if os.environ.get(INSIDE) or shutil.which("unshare") is None or shutil.which("ip") is None:
        return
    # Not everyone may make one; then the brokers that need it are left out.
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        return
    script = 'ip link set lo up && ip route add default dev lo; exec "$@"'
    command = ["unshare", "--net", "sh", "-c", script, "sh", sys.executable, "-m", "benchmarks"]
    os.environ[INSIDE] = "1"
    os.execvp("unshare", [*command, *sys.argv[1:]])


def _split(_: click.Context, __: click.Parameter, value: str) -> list[str]:
    return [word for word in value.split(",") if word]


@click.command()
@click.option("--repetitions", type=click.IntRange(1), default=3, show_default=True)
@click.option("--peers", callback=_split, default="", help="Comma-separated; default: installed.")
@click.option(
    "--workloads",
    callback=_split,
    default="targets",
    show_default=True,
    help="Workloads or names of steps; `targets` those with a target, `all` everything.",
)
@click.option("--scale", default=1.0, help="Multiplies all counts; to try things out.")
@click.option("--backlog-gib", default=10.0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the report.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder for the brokers' files.")
@click.option(
    "--join",
    "joined",
    type=click.Path(path_type=Path),
    multiple=True,
    help="results.jsonl of an earlier run to report together with this one.",
)
@click.option("--report-only", is_flag=True, help="Measure nothing; report what --join names.")
@click.option("--list", "only_list", is_flag=True, help="Show steps and peers, and stop.")
def main(
    repetitions: int,
    peers: list[str],
    workloads: list[str],
    scale: float,
    backlog_gib: float,
    out: Path | None,
    data: Path | None,
    joined: tuple[Path, ...],
    report_only: bool,
    only_list: bool,
) -> None:
    """Measure CometMQ and its peers on this machine; see docs/benchmarks.md."""
    steps = all_steps(int(backlog_gib * (1 << 30)))
    try:
        chosen = [step.scaled(scale) for step in select(steps, workloads)]
        wanted = [peer_named(name) for name in peers] or list(PEERS)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if only_list:
        _list(steps)
        return
    out = out or home() / "results" / time.strftime("%Y%m%d-%H%M%S")
    out.mkdir(parents=True, exist_ok=True)
    journal = results.Journal(out / "results.jsonl")
    if not report_only:
        data = data or home() / "data"
        data.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="run-", dir=data) as folder:
            found = _installed(wanted, journal)
            _measure(journal, found, chosen, repetitions, Path(folder), scale)
    run = results.read([*joined, *([journal.path] if journal.path.exists() else [])])
    (out / "report.md").write_text(report.markdown(run))
    click.echo(f"{out / 'report.md'}")
    if missing := plot.write(run, out / "plot.png"):
        click.echo(missing, err=True)


def _installed(peers: Sequence[Peer], journal: results.Journal) -> list[Peer]:
    """Those that can run; the others are named in the report."""
    found = []
    for peer in peers:
        if reason := peer.missing():
            journal.note(f"{peer.name} was left out: {reason}")
            click.echo(f"{peer.name} is left out: {reason}", err=True)
        else:
            journal.note(peer.version())
            found.append(peer)
    if reason := syncs.why_not():
        journal.note(f"syncs were not counted: {reason}")
    return found


def _measure(
    journal: results.Journal,
    peers: Sequence[Peer],
    steps: Sequence[Step],
    repetitions: int,
    data: Path,
    scale: float,
) -> None:
    """Every repetition: the machine's limits, then each step on one peer after the other."""
    journal.note(limits.machine())
    for repetition in range(repetitions):
        journal.limits(limits.measure(data, repetition, scale))
        for step in steps:
            for peer, variant in _order(peers, step, repetition):
                result = run_step(peer, variant, step, data, repetition)
                journal.result(result)
                click.echo(report.line(result), err=True)


def _order(peers: Sequence[Peer], step: Step, repetition: int) -> Iterator[tuple[Peer, str]]:
    """All variants of all peers, rotated, so that none always follows the same one."""
    pairs = [(peer, variant) for peer in peers for variant in peer.variants(step)]
    first = repetition % len(pairs) if pairs else 0
    yield from pairs[first:] + pairs[:first]


def _list(steps: Sequence[Step]) -> None:
    for step in steps:
        click.echo(f"{step.name:34} {step.count:>12,}")
    for peer in PEERS:
        click.echo(f"{peer.name:34} {peer.missing() or peer.version()}")


if __name__ == "__main__":
    _alone()
    # Ends as Ctrl-C does: brokers are stopped, their folders removed, the journal stays.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
