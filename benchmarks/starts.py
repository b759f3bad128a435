"""`python -m benchmarks.starts`: how long `mq run` takes over a log until it answers, and how
quickly indexes that are gone are made again.

After a clean stop, and after a kill that follows a last 200 MiB. The indexes are of logs of their
own, made again in this process as a broker's thread does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click

from cometmq import Admin, Message, Producer
from cometmq.batch import RecordTuple, encode_messages, seed
from cometmq.log.index_files import IndexFiles, Stretch
from cometmq.log.log import Log
from cometmq.log.segment_index import SUFFIX
from cometmq.real_environment import RealEnvironment
from cometmq.testing.process import BrokerProcess
from cometmq_plugins.group_commit import GroupCommit
from cometmq_plugins.segments import SegmentStorage

BODY = bytes(range(256)) * 4
SEND_MANY = 5000
STARTS = 3
SHAPES = ((100, 1), (1024, 1), (1024, 230))
"""Bytes of a body, and messages a batch."""
DRAIN = 64


def _fill(address: str, count: int) -> None:
    with Producer(address) as producer:
        for _ in range(max(1, count // SEND_MANY)):
            producer.send_many([Message("orders", BODY)] * min(count, SEND_MANY))


def _start_s(broker: BrokerProcess) -> float:
    """Start it, and ask something."""
    begun_s = time.perf_counter()
    broker.start()
    with Admin(broker.address) as admin:
        admin.list_topics()
    return time.perf_counter() - begun_s


def _starts(folder: Path, messages: int) -> Iterator[str]:
    broker = BrokerProcess(folder)
    try:
        yield f"on an empty folder: {_start_s(broker):.2f} s"
        _fill(broker.address, messages)
        broker.stop()
        for _ in range(STARTS):
            yield f"after a clean stop: {_start_s(broker):.2f} s"
            broker.stop()
        broker.start()
        _fill(broker.address, max(1, messages // 25))
    finally:
        broker.kill()
    try:
        yield f"after a kill: {_start_s(broker):.2f} s"
    finally:
        broker.kill()


def _storage(environment: RealEnvironment, folder: Path) -> SegmentStorage:
    return SegmentStorage(
        environment,
        environment.files,
        str(folder),
        persistent=True,
        step_bytes=16 << 20,
        reserve_bytes=0,
    )


async def _make_log(
    environment: RealEnvironment, folder: Path, drains: int, size: int, each: int
) -> int:
    """A log of `DRAIN` batches a drain in four queues, closed; returns the seed of its CRCs."""
    log = Log(_storage(environment, folder), GroupCommit("memory", 500), environment)
    await log.open()
    record: RecordTuple = 1_750_000_000_000, BODY[:size], "", (), {}
    sealed = [encode_messages("orders", queue, [record] * each) for queue in range(4)]
    for _ in range(drains):
        for number in range(DRAIN):
            log.append(bytearray(sealed[number % 4]), incarnation=1, queue=number % 4)
        log.write()
        await asyncio.sleep(0)
    log.roll()
    await log.close()
    return seed(log.log_id)


def _remade(folder: Path, drains: int, size: int, each: int) -> str:
    environment = RealEnvironment()
    try:
        log_seed = asyncio.run(_make_log(environment, folder, drains, size, each))
        storage = _storage(environment, folder)
        segments = storage.open()
        stretches = [Stretch(one.base, following.base) for one, following in pairwise(segments)]
        rates = []
        for _ in range(STARTS):
            for index in folder.rglob(f"*.{SUFFIX}"):
                index.unlink()
            files = IndexFiles(storage, log_seed)
            begun_s = time.perf_counter()
            for number in range(len(stretches)):
                files.rebuild(stretches[: number + 1])
            rates.append(drains * DRAIN / (time.perf_counter() - begun_s))
        storage.close()
    finally:
        environment.threads.close()
    rate = statistics.median(rates)
    return (
        f"indexes of batches of {each} x {size} B: {rate:,.0f} batches/s, "
        f"{rate * size * each / 1e6:,.0f} MB/s of bodies"
    )


@click.command()
@click.option("--gib", type=click.FloatRange(0.001), default=5.0, show_default=True)
@click.option("--batches", type=click.IntRange(DRAIN), default=1_000_000, show_default=True)
@click.option("--data", type=click.Path(file_okay=False, exists=True, path_type=Path))
def main(gib: float, batches: int, data: Path | None) -> None:
    """Start over GIB of messages of 1 KiB, and make indexes of BATCHES again (of the large ones a
    hundredth). Files lie below DATA, else in the current folder, and are removed."""
    below = Path.cwd() if data is None else data
    with _folder(below) as folder:
        for line in _starts(folder, int(gib * (1 << 20))):
            click.echo(line)
    for size, each in SHAPES:
        drains = max(1, batches // DRAIN // (1 if each == 1 else 100))
        with _folder(below) as folder:
            click.echo(_remade(folder, drains, size, each))


@contextlib.contextmanager
def _folder(below: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mq-starts-", dir=below) as name:
        yield Path(name)


if __name__ == "__main__":
    main()
