"""A real, small file system filled at full speed through every mark (root only; `-m long`)."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq import Admin, Message, Producer, PullConsumer, Retryable
from cometmq.testing.process import BrokerProcess
from cometmq_plugins.cleanup.messages import CLEANUP_STATUS, AskStatus, CleanupStatus

DISK_BYTES = 512 << 20
SENT_BYTES = 3 * DISK_BYTES
BODY_BYTES = 64 << 10
CONFIG = """
[broker]
auto_create = false
[log]
segment_bytes = 8388608
[plugin.commitlog]
allocate_step_bytes = 1048576
reserve_bytes = 4194304
[plugin.cleanup]
retry_after_ms = 50
pause_ms = 20
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of its own."""
    if os.geteuid():
        pytest.skip("only root may mount a file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


class Reads:
    """Reads one small topic over and over, and notes how long each poll took."""

    def __init__(self, address: str) -> None:
        self.took_s: list[float] = []
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def p99_ms(self) -> float:
        ordered = sorted(self.took_s)
        return 1000 * ordered[int(len(ordered) * 0.99)]

    def _run(self) -> None:
        try:
            with (
                Producer(self._address) as producer,
                PullConsumer(self._address, topic="small", start="latest") as consumer,
            ):
                consumer.poll(timeout=0.01)
                while not self._stop.is_set():
                    try:
                        producer.send(Message("small", b"x"))
                    except Retryable:
                        continue
                    begin_s = time.monotonic()
                    assert len(consumer.poll(timeout=10)) >= 1
                    self.took_s.append(time.monotonic() - begin_s)
        except BaseException as error:
            self.error = error


def free_percent(folder: Path) -> float:
    found = os.statvfs(folder)
    return 100 * found.f_bavail / found.f_blocks


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_small_disk_filled_at_full_speed(disk: Path, tmp_path: Path) -> None:
    (tmp_path / "mq.toml").write_text(CONFIG)
    with BrokerProcess(disk, "--config", str(tmp_path / "mq.toml")) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("large", queues=4)
            admin.create_topic("small", queues=1)
        reads: list[Reads] = []
        least = 100.0
        with Producer(broker.address, send_timeout=60.0) as producer:
            # First what fits below the marks, then the rest: the same load, with and without.
            for share in (0.7 * DISK_BYTES, SENT_BYTES - 0.7 * DISK_BYTES):
                reads.append(Reads(broker.address))
                reads[-1].start()
                for _ in range(int(share / (16 * BODY_BYTES))):
                    results = producer.send_many([Message("large", bytes(BODY_BYTES))] * 16)
                    assert not [one for one in results if isinstance(one, Exception)]
                    least = min(least, free_percent(disk))
                reads[-1].stop()
        quiet, busy = reads
        with Admin(broker.address) as admin:
            status = admin.call(CLEANUP_STATUS, AskStatus(), CleanupStatus)
        assert broker.stop() == 0
    print(
        f"sent {SENT_BYTES >> 20} MiB into {DISK_BYTES >> 20} MiB; at least {least:.1f} % free;"
        f" deleted {status.deleted}; {status.refused} sends refused, for {status.refused_s:.1f} s;"
        f" reads p99 {quiet.p99_ms():.1f} ms below the marks, {busy.p99_ms():.1f} ms above"
    )
    assert quiet.error is None and busy.error is None
    assert busy.p99_ms() < 10 * quiet.p99_ms(), "readers wait for deletions"
    assert least > 2.0, "the disk was nearly full"
    assert status.deleted["forced"][1] > DISK_BYTES
