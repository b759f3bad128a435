"""`python -m benchmarks.loop_turns`: how late the broker's loop runs at a share of its peak rate,
and whether its memory stays flat, while segments roll, checkpoints are written, the disk is synced.

How late a timer would come at any moment follows from how long each turn of the loop takes. A busy
machine makes turns long too: what a turn waited for a processor is known to the kernel, and the
second figure leaves it out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from benchmarks.pacing import pace
from benchmarks.processes import read_counters, stop
from cometmq import Admin, Message, Producer
from cometmq.broker import Broker
from cometmq.config import load_config
from cometmq.plugins import compose
from cometmq.real_environment import RealEnvironment

TOPIC = "bench"
SERVE = "serve"


class Turns(msgspec.Struct):
    """What the broker says at its end; milliseconds."""

    count: int
    late_p999_ms: float
    longest_ms: float
    own_p999_ms: float
    own_longest_ms: float
    metric_p999_ms: float


class TimedSelector(selectors.DefaultSelector):
    """Notes how long the loop works between two waits, and what of it was waiting for a core."""

    def __init__(self) -> None:
        super().__init__()
        self.turns_s, self.waits_s = array("d"), array("d")
        self._begun_s = self._waited_s = 0.0
        self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._begun_s:
            self.turns_s.append(time.monotonic() - self._begun_s)
            self.waits_s.append(self._waited() - self._waited_s)
        events = super().select(timeout)
        self._waited_s, self._begun_s = self._waited(), time.monotonic()
        return events

    def restart(self) -> None:
        """Forget what was before."""
        del self.turns_s[:], self.waits_s[:]

    def _waited(self) -> float:
        return int(os.pread(self._file, 100, 0).split()[1]) / 1e9


def lateness_ms(turns_s: Sequence[float], elapsed_s: float, percent: float) -> float:
    """How late a timer comes that is due at any moment: at most so much in `percent` % of all."""
    low_s, high_s = 0.0, max(turns_s, default=0.0)
    while high_s - low_s > 1e-6:
        middle_s = (low_s + high_s) / 2
        later_s = sum(turn - middle_s for turn in turns_s if turn > middle_s)
        if later_s > elapsed_s * (1 - percent / 100):
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s * 1e3


async def _serve(config_path: str, selector: TimedSelector) -> Turns:
    """Be a broker until the input ends; its first line begins the measurement."""
    config = load_config(config_path, {}, {})
    environment = RealEnvironment()
    broker = Broker(config, environment, compose(config))
    await broker.start()
    print(broker.addresses[0], flush=True)
    await environment.threads.run(sys.stdin.readline)
    selector.restart()
    begun_s = time.monotonic()
    await environment.threads.run(sys.stdin.read)
    elapsed_s = time.monotonic() - begun_s
    turns, waits = list(selector.turns_s), list(selector.waits_s)
    own = [max(turn - wait, 0.0) for turn, wait in zip(turns, waits, strict=True)]
    metrics = {metric.name: metric.value for metric in broker._metrics()}
    await broker.stop()
    environment.threads.close()
    return Turns(
        len(turns),
        lateness_ms(turns, elapsed_s, 99.9),
        max(turns) * 1e3,
        lateness_ms(own, elapsed_s, 99.9),
        max(own) * 1e3,
        metrics["loop_lag_p999_ms"],
    )


def _be_the_broker(config_path: str) -> None:
    selector = TimedSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        turns = runner.run(_serve(config_path, selector))
    print(msgspec.json.encode(turns).decode(), flush=True)


@contextlib.contextmanager
def _broker(folder: Path, plugins: Sequence[str], mib: int) -> Iterator[subprocess.Popen[str]]:
    config = folder / "mq.toml"
    config.write_text(
        f"[plugins]\nenable = {msgspec.json.encode(plugins).decode()}\n"
        f'[broker]\ndata = "{folder / "data"}"\nlisten = ["tcp://127.0.0.1:0"]\n'
        f"[log]\nsegment_bytes = {mib << 20}\n"
    )
    command = [sys.executable, "-m", "benchmarks.loop_turns", SERVE, str(config)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        stop(process)


def _rate(producer: Producer, count: int, body: bytes) -> float:
    begun_s = time.perf_counter()
    for _ in range(count):
        producer.send_soon(Message(TOPIC, body))
    producer.flush()
    return count / (time.perf_counter() - begun_s)


def _send_paced(producer: Producer, pid: int, rate: int, count: int, body: bytes) -> list[float]:
    """RssAnon of the broker meanwhile, MiB, about twice a second."""
    anonymous_mib, look_s = [], 0.0
    for due_ns in pace(rate, count, time.sleep):
        for _ in due_ns:
            producer.send_soon(Message(TOPIC, body))
        if time.monotonic() > look_s:
            look_s = time.monotonic() + 0.5
            anonymous_mib.append(read_counters([pid]).rss_anon_mib)
    producer.flush()
    return anonymous_mib


def measure(
    folder: Path, plugins: Sequence[str], share: float, gib: float, mib: int, peak_count: int
) -> None:
    """Print one run."""
    body = os.urandom(1024)
    with _broker(folder, plugins, mib) as process:
        assert process.stdin is not None and process.stdout is not None
        address = process.stdout.readline().strip()
        with contextlib.closing(Admin(address)) as admin:
            for number in range(1000):
                admin.create_topic(f"other-{number}", 4)
        with Producer(address) as producer:
            _rate(producer, peak_count // 3, body)
            peak = _rate(producer, peak_count, body)
            process.stdin.write("go\n")
            process.stdin.flush()
            rate = int(peak * share)
            anonymous = _send_paced(producer, process.pid, rate, int(gib * (1 << 20)), body)
        process.stdin.close()
        turns = msgspec.json.decode(process.stdout.readline(), type=Turns)
    click.echo(f"peak {peak:,.0f}/s, {gib} GiB at {share:.0%} of it, {turns.count:,} turns")
    click.echo(f"late: p99.9 {turns.late_p999_ms:.2f} ms, longest turn {turns.longest_ms:.1f} ms")
    click.echo(f"own: p99.9 {turns.own_p999_ms:.2f} ms, longest turn {turns.own_longest_ms:.1f} ms")
    click.echo(f"metric loop_lag_p999_ms {turns.metric_p999_ms:.2f}")
    click.echo(f"RssAnon {min(anonymous):.0f} to {max(anonymous):.0f} MiB")


@click.command()
@click.option("--plugins", default="flush-sync", show_default=True)
@click.option("--share", type=click.FloatRange(0.01, 1), default=0.7, show_default=True)
@click.option("--gib", default=5.0, show_default=True, help="How much passes through the broker.")
@click.option("--segment-mib", default=256, show_default=True, help="So that segments roll.")
@click.option("--peak-count", default=300_000, show_default=True, help="Sent to find the peak.")
def main(plugins: str, share: float, gib: float, segment_mib: int, peak_count: int) -> None:
    """Publish 1 KiB messages at a share of the peak rate."""
    with tempfile.TemporaryDirectory(prefix="loop-turns-", dir=Path.cwd()) as name:
        measure(Path(name), plugins.split(","), share, gib, segment_mib, peak_count)


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        _be_the_broker(sys.argv[2])
    else:
        main()
