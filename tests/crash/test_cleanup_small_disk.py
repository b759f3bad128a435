"""A real, small file system: filled at full speed through every mark (`-m long`), filled by others,
and full of one segment. Root only, for it is mounted.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq import Admin, Message, Producer, PullConsumer, Retryable
from cometmq.testing.loop_disk import LoopDisk, why_not
from cometmq.testing.process import BrokerProcess
from cometmq_plugins.cleanup.messages import CLEANUP_STATUS, AskStatus, CleanupStatus

DISK_BYTES = 512 << 20
SENT_BYTES = 3 * DISK_BYTES
ROUNDS = 5
BODY_BYTES = 64 << 10
CONFIG = """
[broker]
auto_create = false
[log]
segment_bytes = {segment_bytes}
[plugin.commitlog]
allocate_step_bytes = 1048576
reserve_bytes = 4194304
[plugin.cleanup]
retry_after_ms = 50
pause_ms = 400
"""


def broker_on(disk: Path, tmp_path: Path, *, segment_bytes: int) -> BrokerProcess:
    config = tmp_path / "mq.toml"
    config.write_text(CONFIG.format(segment_bytes=segment_bytes))
    return BrokerProcess(disk, "--config", str(config))


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 512 MiB."""
    if os.geteuid():
        pytest.skip("only root may mount a file system")
    if request.param == "ext4":
        reason = why_not("ext4")
        if reason:
            pytest.skip(reason)
        loop = LoopDisk(tmp_path, "ext4", DISK_BYTES)
        yield loop.mount_point
        loop.remove()
        return
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


def status_of(address: str) -> CleanupStatus:
    with Admin(address) as admin:
        return admin.call(CLEANUP_STATUS, AskStatus(), CleanupStatus)


def seconds_until(happens: Callable[[], bool], limit_s: float = 30.0) -> float:
    """How long it took; fails when it takes too long."""
    begin_s = time.monotonic()
    while not happens():
        assert time.monotonic() < begin_s + limit_s, f"not within {limit_s:g} s"
        time.sleep(0.01)
    return time.monotonic() - begin_s


def free_percent(folder: Path) -> float:
    found = os.statvfs(folder)
    return 100 * found.f_bavail / found.f_blocks


def fill(disk: Path, tmp_path: Path) -> tuple[float, float]:
    """Fill it three times over: the p99 of reads below the marks and above, in ms."""
    with broker_on(disk, tmp_path, segment_bytes=8 << 20) as broker:
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
        status = status_of(broker.address)
        assert broker.stop() == 0
    print(
        f"sent {SENT_BYTES >> 20} MiB into {DISK_BYTES >> 20} MiB; at least {least:.1f} % free;"
        f" deleted {status.deleted}; {status.refused} sends refused, for {status.refused_s:.1f} s;"
        f" reads p99 {quiet.p99_ms():.1f} ms below the marks, {busy.p99_ms():.1f} ms above"
    )
    assert quiet.error is None and busy.error is None
    assert least > 2.0, "the disk was nearly full"
    assert status.deleted["forced"][1] > DISK_BYTES
    return quiet.p99_ms(), busy.p99_ms()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_small_disk_filled_at_full_speed(disk: Path, tmp_path: Path) -> None:
    ratios: list[float] = []
    for _ in range(ROUNDS):
        quiet_ms, busy_ms = fill(disk, tmp_path)
        ratios.append(busy_ms / quiet_ms)
        shutil.rmtree(disk / "data")
    print("above / below the marks:", [f"{ratio:.2f}" for ratio in ratios])
    assert statistics.median(ratios) <= 2, "readers wait for deletions"


def test_sends_are_taken_again_by_themselves_when_others_leave_the_disk(
    disk: Path, tmp_path: Path
) -> None:
    with (
        broker_on(disk, tmp_path, segment_bytes=8 << 20) as broker,
        Admin(broker.address) as admin,
        Producer(broker.address, send_timeout=2.0) as producer,
        PullConsumer(broker.address, topic="t", start=0) as consumer,
    ):
        admin.create_topic("t", queues=1)
        for number in range(20):
            producer.send(Message("t", b"%d" % number))
        total, free = shutil.disk_usage(disk)[::2]
        foreign = disk / "foreign"
        with foreign.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free - total * 6 // 100)
        noticed_s = seconds_until(lambda: status_of(broker.address).mark == "refuse")
        with pytest.raises(Retryable, match="takes no messages from 90 % on") as refusal:
            producer.send(Message("t", b"refused"))
        assert (refusal.value.code, refusal.value.after_ms) == ("NO_SPACE", 50)
        bodies = [message.body for message in consumer.poll(timeout=10)]
        assert bodies == [b"%d" % number for number in range(20)], "reads go on"
        epoch = admin.broker_info().epoch
        with Producer(broker.address, send_timeout=60.0) as patient:
            receipt = patient.send_soon(Message("t", b"taken"))
            time.sleep(0.5)
            assert not receipt.done(), "as long as the disk is full"
            foreign.unlink()
            begin_s = time.monotonic()
            result = receipt.result()
            taken_s = time.monotonic() - begin_s
        assert result.offset == 20, "what was refused was not stored"
        assert admin.broker_info().epoch == epoch, "without a start"
        status = status_of(broker.address)
        assert broker.stop() == 0
    print(
        f"refused {noticed_s:.2f} s after others filled the disk, taken {taken_s:.2f} s after they"
        f" left it; refused for {status.refused_s:.2f} s, {status.refused} sends"
    )
    assert status.refused >= 2


def test_a_disk_full_of_one_segment_is_freed(disk: Path, tmp_path: Path) -> None:
    """It would close by its size, which it never reaches while sends are refused."""
    with (
        broker_on(disk, tmp_path, segment_bytes=1 << 30) as broker,
        Admin(broker.address) as admin,
        Producer(broker.address, send_timeout=60.0) as producer,
    ):
        admin.create_topic("t", queues=1)
        sent, least = DISK_BYTES + DISK_BYTES // 4, 100.0
        for _ in range(sent // (16 * BODY_BYTES)):
            results = producer.send_many([Message("t", bytes(BODY_BYTES))] * 16)
            assert not [one for one in results if isinstance(one, Exception)]
            least = min(least, free_percent(disk))
        bounds = admin.offsets("t")[0]
        status = status_of(broker.address)
        assert broker.stop() == 0
    print(
        f"sent {sent >> 20} MiB into {DISK_BYTES >> 20} MiB; at least {least:.1f} % free;"
        f" deleted {status.deleted}; refused for {status.refused_s:.1f} s"
    )
    assert bounds.min_offset > 0 and bounds.max_offset == sent // BODY_BYTES
    assert status.deleted["forced"][1] > DISK_BYTES // 2 and status.refused
    assert least > 2.0, "the disk was nearly full"
