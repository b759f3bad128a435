"""A real broker whose system calls fail or dawdle: strace attaches to it while it works."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cometmq import Admin, Message, Producer
from cometmq.errors import CometError, Retryable
from cometmq.testing.history import History, check_history, describe
from cometmq.testing.loop_disk import LoopDisk, why_not
from cometmq.testing.process import BrokerProcess, run_mq
from cometmq.testing.recorder import RecordingProducer, read_settled

TOPIC = "faults"
CONFIG = """
[plugin.commitlog]
allocate_step_bytes = 262144
reserve_bytes = 262144
[plugin.flush-sync]
sync_in_loop_below_us = 0
"""
END_S = 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (apt-get install strace)")
    config = tmp_path / "mq.toml"
    config.write_text(CONFIG)
    with BrokerProcess(tmp_path, "--config", str(config)) as process:
        with Admin(process.address) as admin:
            admin.create_topic(TOPIC, queues=1)
        yield process


@contextmanager
def injected(broker: BrokerProcess, syscall: str, how: str) -> Iterator[None]:
    """The fault is there from here to the end of the block."""
    strace = subprocess.Popen(
        [
            "strace",
            *["-f", "-p", str(broker.pid), "-o", "/dev/null"],
            *["-e", f"trace={syscall}", "-e", f"inject={syscall}:{how}"],
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert strace.stderr is not None
    try:
        line = strace.stderr.readline()
        if "attached" not in line:
            pytest.skip(f"this machine lets nobody trace: {line}")
        yield
    finally:
        strace.terminate()
        strace.communicate()


def ended(broker: BrokerProcess) -> bool:
    """Whether the process is over, waiting for it."""
    stat = Path(f"/proc/{broker.pid}/stat")
    until_s = time.monotonic() + END_S
    while time.monotonic() < until_s:
        if stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def send_some(recording: RecordingProducer, count: int) -> None:
    for _ in range(count):
        recording.send()
    recording.collect()


@pytest.mark.parametrize(
    ("syscall", "error"),
    [("fdatasync", "EIO"), ("pwritev2", "EIO"), ("pwritev2", "ENOSPC"), ("pwritev2", "EROFS")],
)
def test_a_disk_that_refuses_never_makes_a_broker_lie(
    broker: BrokerProcess, syscall: str, error: str
) -> None:
    """A failed sync, even one, ends it for good; a failed write is taken back or ends it. What was
    acknowledged before is there after the next start, and nothing else is wrong."""
    history = History()
    with Producer(broker.address, send_timeout=3) as producer:
        recording = RecordingProducer(producer, TOPIC, "p")
        send_some(recording, 20)
        with injected(broker, syscall, f"error={error}:when=1"):
            send_some(recording, 5)
            if syscall == "fdatasync":
                assert ended(broker), "it went on after a failed sync"
        history.sends = recording.sends
    assert sum(send.outcome == "ok" for send in history.sends[:20]) == 20
    if syscall == "fdatasync":
        assert not any(send.outcome == "ok" for send in history.sends[20:])
        assert "sync of the log failed" in broker.log.read_text()
    broker.kill()
    broker.start()
    history.final = read_settled(broker.address, TOPIC)
    anomalies = check_history(history)
    assert not anomalies, describe(anomalies)
    assert broker.stop() == 0
    run_mq("log", "verify", str(broker.data)).ok()


@pytest.mark.parametrize("seconds", [1.0, pytest.param(10.0, marks=pytest.mark.long)])
def test_only_who_waits_for_a_slow_disk_waits(broker: BrokerProcess, seconds: float) -> None:
    """Sends of level memory, heartbeats and questions are answered meanwhile."""
    with Producer(broker.address) as producer, Admin(broker.address) as admin:
        producer.send(Message(TOPIC, b"first"), level="disk")
        with injected(broker, "fdatasync", f"delay_enter={int(seconds * 1e6)}"):
            slow = producer.send_soon(Message(TOPIC, b"slow"), level="disk")
            fast = Producer(broker.address)
            answered = 0
            while not slow.done():
                fast.send(Message(TOPIC, b"fast"), level="memory")
                admin.broker_info()
                answered += 1
            slow.result(1)
            fast.close()
        assert answered > 5, answered


def test_a_read_only_disk_refuses_and_still_reads(broker: BrokerProcess) -> None:
    with Producer(broker.address, send_timeout=2) as producer:
        sent = [producer.send(Message(TOPIC, b"%d" % number)) for number in range(3)]
        big = Message(TOPIC, bytes(300_000))
        with injected(broker, "fallocate", "error=EROFS"):
            for _ in range(2):
                with pytest.raises(Retryable, match="Read-only file system") as refused:
                    producer.send(big)
                assert refused.value.code == "DISK_REFUSED"
            out = run_mq("consume", TOPIC, address=broker.address).ok()
            assert out == b"0\n1\n2\n"
        assert producer.send(Message(TOPIC, b"3")).offset == sent[-1].offset + 1


def test_a_limit_on_the_size_of_files_is_told_by_name(tmp_path: Path) -> None:
    """`ulimit -f` below a segment's size: as a full disk, and the advice is another one."""
    config = tmp_path / "mq.toml"
    config.write_text(CONFIG)
    limit = 1 << 20
    prefix = ("prlimit", f"--fsize={limit}")
    with BrokerProcess(tmp_path, "--config", str(config), prefix=prefix) as broker:
        with Admin(broker.address) as admin, Producer(broker.address, send_timeout=1) as producer:
            admin.create_topic(TOPIC, queues=1)
            stored = 0
            with pytest.raises(Retryable, match="ulimit -f") as refused:
                for _ in range(10):
                    producer.send(Message(TOPIC, bytes(200_000)))
                    stored += 1
        assert refused.value.code == "NO_SPACE" and stored > 0
        assert broker.stop() == 0
    # A start begins a new file, so it works again.
    with BrokerProcess(tmp_path, "--config", str(config), prefix=prefix) as broker:
        with Producer(broker.address) as producer:
            assert producer.send(Message(TOPIC, b"more")).offset == stored


def test_a_data_folder_deleted_under_a_broker_ends_it_before_it_says_anything(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path) as broker:
        with Producer(broker.address, send_timeout=2) as producer:
            producer.send(Message(TOPIC, b"kept"), level="disk")
            shutil.rmtree(broker.data)
            with pytest.raises(CometError):
                producer.send(Message(TOPIC, b"gone"), level="disk")
        assert ended(broker)
        assert broker.stop() != 0
        told = broker.log.read_text()
        assert str(broker.data / "log") in told and "who takes away files" in told


def test_a_disk_filled_by_somebody_else_and_freed_again(tmp_path: Path) -> None:
    """Clear refusals, reads go on, and it works again without a restart and without a hole."""
    reason = why_not("ext4")
    if reason:
        pytest.skip(reason)
    disk = LoopDisk(tmp_path, "ext4", 64 << 20)
    config = tmp_path / "mq.toml"
    config.write_text(CONFIG)
    # Without the watermarks, which refuse earlier.
    broker = BrokerProcess(disk.mount_point, "--config", str(config), "--plugins", "-cleanup")
    broker.log = tmp_path / "broker.log"
    try:
        broker.start()
        fill_and_free(broker, disk.mount_point / "filler")
        assert broker.stop() == 0
        run_mq("log", "verify", str(broker.data)).ok()
    finally:
        broker.kill()
        disk.remove()


def fill_and_free(broker: BrokerProcess, filler: Path) -> None:
    with Admin(broker.address) as admin, Producer(broker.address, send_timeout=1) as producer:
        admin.create_topic(TOPIC, queues=1)
        stored = [producer.send(Message(TOPIC, b"%d" % number)) for number in range(3)]
        with filler.open("wb") as file, pytest.raises(OSError):
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        with pytest.raises(Retryable) as refused:
            for _ in range(10):
                stored.append(producer.send(Message(TOPIC, bytes(200_000))))
        assert refused.value.code == "NO_SPACE" and "free space" in str(refused.value)
        out = run_mq("consume", TOPIC, "--count", "3", address=broker.address).ok()
        assert out == b"0\n1\n2\n"
        filler.unlink()
        stored.append(producer.send(Message(TOPIC, bytes(200_000))))
    assert [result.offset for result in stored] == list(range(len(stored)))
