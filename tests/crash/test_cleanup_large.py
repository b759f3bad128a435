"""Deleting 50 GiB while somebody publishes (`-m long`); `CLEANUP_GIB=5` makes it short."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq import Admin, Message, Producer
from cometmq.testing.process import BrokerProcess, Done, run_mq

GIB = int(os.environ.get("CLEANUP_GIB", "50"))
PACE_S = 0.002
CONFIG = """
[log]
segment_bytes = 1048576
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


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_publishing_goes_on_while_much_is_deleted(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < (GIB + 10) << 30:
        pytest.skip(f"{GIB} GiB don't fit on this disk")
    (tmp_path / "mq.toml").write_text(CONFIG)
    with (
        BrokerProcess(tmp_path, "--config", str(tmp_path / "mq.toml")) as broker,
        Admin(broker.address) as admin,
        Producer(broker.address) as producer,
    ):
        admin.create_topic("t", queues=1)
        while admin.broker_info().segments <= GIB:
            producer.send(Message("t", bytes(900_000)))
        blow_up(broker.data)
        publish(producer, for_seconds(5))
        before = publish(producer, for_seconds(10))
        done: list[Done] = []
        cleaning = threading.Thread(
            target=lambda: done.append(run_mq("cleanup", "run", "--json", address=broker.address))
        )
        cleaning.start()
        during = publish(producer, lambda: not cleaning.is_alive())
        after = publish(producer, for_seconds(10))
    print(
        f"{GIB} GiB deleted; publish p99 {p99(before):.2f} ms before, {p99(during):.2f} ms"
        f" meanwhile, {p99(after):.2f} ms after"
    )
    assert len(json.loads(done[0].ok())["gone"]) >= GIB
    assert p99(during) < 3 * max(p99(before), p99(after))
