"""Deleting 50 GiB while somebody publishes (`-m long`); `CLEANUP_GIB=10` makes it short.

The 50 GiB go in ten parts, and quiet windows lie between them, so that each part is compared with
what the machine gave right before and after it: the median of the ten says what deleting costs.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq import Admin, Message, Producer
from cometmq.testing.process import BrokerProcess
from cometmq_plugins.cleanup.messages import CLEANUP_RUN, CleanupDone, RunCleanup

GIB = int(os.environ.get("CLEANUP_GIB", "50"))
PARTS = 10
QUIET_S = 5.0
PACE_S = 0.002
CONFIG = """
[log]
segment_bytes = 4194304
[plugin.cleanup]
max_age_hours = 0
at = "0 0 1 1 *"
"""


def publish(producer: Producer, ended: Callable[[], bool]) -> list[float]:
    """How long each of 500 messages a second took, in ms."""
    took_ms: list[float] = []
    due_s = time.monotonic()
    while not ended():
        begin_s = time.monotonic()
        producer.send(Message("t", bytes(1024)))
        took_ms.append(1000 * (time.monotonic() - begin_s))
        due_s += PACE_S
        time.sleep(max(due_s - time.monotonic(), 0))
    return took_ms


def for_seconds(seconds: float) -> Callable[[], bool]:
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() >= end_s


def p99(took_ms: list[float]) -> float:
    return sorted(took_ms)[int(len(took_ms) * 0.99)]


def blow_up(data: Path) -> None:
    """Give every segment that is sealed a gigabyte of real space behind its end."""
    *sealed, _ = sorted((data / "log").glob("*.seg"))
    for path in sealed:
        subprocess.run(["fallocate", "-n", "-l", str(1 << 30), str(path)], check=True)
    os.sync()


def delete(broker: BrokerProcess, producer: Producer) -> tuple[list[float], int]:
    """Delete all that is sealed: how many ms sends took, how many segments went."""
    done: list[CleanupDone] = []
    with Admin(broker.address, timeout=600) as admin:
        cleaning = threading.Thread(
            target=lambda: done.append(admin.call(CLEANUP_RUN, RunCleanup(), CleanupDone))
        )
        cleaning.start()
        took_ms = publish(producer, lambda: not cleaning.is_alive())
        cleaning.join()
    return took_ms, len(done[0].gone)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_publishing_goes_on_while_much_is_deleted(tmp_path: Path) -> None:
    part_gib = -(-GIB // PARTS)
    if shutil.disk_usage(tmp_path).free < (part_gib + 10) << 30:
        pytest.skip(f"{part_gib} GiB don't fit on this disk")
    (tmp_path / "mq.toml").write_text(CONFIG)
    rows: list[tuple[float, float, float]] = []
    with (
        BrokerProcess(tmp_path, "--config", str(tmp_path / "mq.toml")) as broker,
        Admin(broker.address) as admin,
        Producer(broker.address) as producer,
    ):
        admin.create_topic("t", queues=1)
        for _ in range(PARTS):
            while admin.broker_info().segments <= part_gib:
                producer.send(Message("t", bytes(900_000)))
            blow_up(broker.data)
            publish(producer, for_seconds(2))
            before = publish(producer, for_seconds(QUIET_S))
            during, gone = delete(broker, producer)
            after = publish(producer, for_seconds(QUIET_S))
            assert gone >= part_gib
            rows.append((p99(before), p99(during), p99(after)))
    ratios = [during / statistics.mean((before, after)) for before, during, after in rows]
    for (before_ms, during_ms, after_ms), ratio in zip(rows, ratios, strict=True):
        print(
            f"{part_gib} GiB deleted; publish p99 {before_ms:.2f} ms before, {during_ms:.2f} ms"
            f" meanwhile, {after_ms:.2f} ms after: {ratio:.2f} times"
        )
    print(f"median of {PARTS} parts: {statistics.median(ratios):.2f} times")
    assert statistics.median(ratios) <= 1.2
