"""`python -m benchmarks.plugin_cost`: three plugins that do nothing on every hook of the message
path against none.

Two brokers in processes of their own take turns of less than a second, so that both meet the same
neighbours on a busy machine.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from benchmarks.guards.idle_plugins import THREE
from benchmarks.processes import stop
from cometmq import Message, Producer
from cometmq.testing.embedded import EmbeddedBroker

TOPIC = "orders"
SERVE = "serve"


class Figures(msgspec.Struct, frozen=True):
    """One step on one broker."""

    rate: float
    """Messages a second."""
    cpu_us: float
    """Of the broker, for each message."""


def _serve(plugins: bool) -> None:
    """Be a broker until the input ends."""
    with (
        tempfile.TemporaryDirectory(prefix="plugin-cost-") as data,
        EmbeddedBroker(
            data=data,
            listen="tcp://127.0.0.1:0",
            plugins=["flush-async"],
            extra_plugins=THREE if plugins else {},
        ) as broker,
    ):
        print(broker.address, flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def _broker(plugins: bool) -> Iterator[tuple[str, int]]:
    """Address and process id."""
    command = [sys.executable, "-m", "benchmarks.plugin_cost", SERVE, str(int(plugins))]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
    )
    try:
        assert process.stdout is not None and process.stdin is not None
        yield process.stdout.readline().strip(), process.pid
        process.stdin.close()
        process.wait(30)
    finally:
        stop(process)


def _soon(producer: Producer, count: int, size: int) -> None:
    for _ in range(count):
        producer.send_soon(Message(TOPIC, bytes(size)))
    producer.flush()


def _one_by_one(producer: Producer, count: int, size: int) -> None:
    for _ in range(count // 50):
        producer.send(Message(TOPIC, bytes(size)))


STEPS = {"send_soon": (_soon, 1), "send": (_one_by_one, 50)}


def _cpu_s(pid: int) -> float:
    """Of all threads; finer than the ticks of /proc/PID/stat."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def _measure(step: str, producer: Producer, pid: int, count: int, size: int) -> Figures:
    work, share = STEPS[step]
    before_s, begun_s = _cpu_s(pid), time.perf_counter()
    work(producer, count, size)
    took_s, after_s = time.perf_counter() - begun_s, _cpu_s(pid)
    messages = count // share
    return Figures(messages / took_s, (after_s - before_s) / messages * 1e6)


def _row(name: str, without: Sequence[float], with_plugins: Sequence[float]) -> str:
    """Medians, and the median of the ratios of neighbours in time."""
    ratios = sorted(b / a for a, b in zip(without, with_plugins, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
    medians = [statistics.median(it) for it in (without, with_plugins)]
    columns = f"{medians[0]:>12,.1f} {medians[1]:>12,.1f} {statistics.median(ratios):>8.3f}"
    return f"{name:34} {columns} ({low:.3f} to {high:.3f})"


@click.command()
@click.option("--turns", type=click.IntRange(4), default=30, show_default=True)
@click.option("--count", type=click.IntRange(1000), default=50_000, show_default=True)
@click.option("--size", type=click.IntRange(1), default=1024, show_default=True)
def main(turns: int, count: int, size: int) -> None:
    """Publish at level memory with and without the plugins; in brackets the middle half."""
    click.echo(f"{'':34} {'without':>12} {'with three':>12} {'ratio':>8}")
    with contextlib.ExitStack() as stack:
        sides: list[tuple[Producer, int]] = []
        for plugins in (False, True):
            address, pid = stack.enter_context(_broker(plugins))
            sides.append((stack.enter_context(Producer(address)), pid))
        for step in STEPS:
            found: list[list[Figures]] = [[], []]
            for turn in range(turns + 1):
                for side in (turn % 2, 1 - turn % 2):
                    figures = _measure(step, *sides[side], count, size)
                    if turn:
                        found[side].append(figures)
            for field, unit in (("rate", "messages/s"), ("cpu_us", "broker CPU us/message")):
                a, b = ([getattr(one, field) for one in side] for side in found)
                click.echo(_row(f"{step}, {unit}", a, b))


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        _serve(sys.argv[2] == "1")
    else:
        main()
