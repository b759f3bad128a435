"""Real power cuts: a real broker on a real file system whose power goes under load.

What was acknowledged at level disk is there whatever the cut leaves; at level memory at most
what `mq run` said at its start is gone, and nothing before something that is there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from cometmq import Admin
from cometmq.interfaces import Level
from cometmq.testing.history import History, check_history, describe
from cometmq.testing.loop_disk import (
    FLUSH,
    LOG_FLUSH,
    NO_LOG_FLUSH,
    FileSystem,
    LoopDisk,
    why_not,
)
from cometmq.testing.process import BrokerProcess, run_mq
from cometmq.testing.recorder import Load, read_settled

SEED = int(os.environ.get("CRASH_SEED", "1"))
LONG_ROUNDS = int(os.environ.get("CRASH_ROUNDS", "200"))
"""In all, over both file systems; `CRASH_ROUNDS=20 pytest -m long tests/crash` makes it short."""
WINDOW_MS = 500 + 1500
"""What level memory may lose: the flush interval and one sync, which a busy machine makes long."""
TOPIC = "load"
CONFIG = """
[broker]
session_timeout_ms = 5000
[log]
segment_bytes = 1048576
[plugin.commitlog]
allocate_step_bytes = 262144
reserve_bytes = 262144
"""


@pytest.fixture(params=["ext4", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoopDisk]:
    kind: FileSystem = request.param
    reason = why_not(kind)
    if reason:
        pytest.skip(reason)
    disk = LoopDisk(tmp_path, kind)
    yield disk
    disk.remove()


class Machine:
    """A broker on a disk, and all that happened to it."""

    def __init__(self, disk: LoopDisk, folder: Path, policy: str) -> None:
        (folder / "mq.toml").write_text(CONFIG)
        options = ["--config", str(folder / "mq.toml"), "--plugins", policy]
        self.disk = disk
        self.broker = BrokerProcess(disk.mount_point, *options)
        self.broker.log = folder / "broker.log"
        self.history = History()

    def begin(self, topic: str) -> None:
        """Start on an empty history."""
        self.history = History()
        self.broker.start()
        with Admin(self.broker.address) as admin:
            admin.create_topic(topic, queues=3)

    def round(self, topic: str, seed: int, mode: int, levels: list[Level | None]) -> int:
        """Load, a power cut in its midst, a start. Returns the time of the cut, ms since 1970."""
        dice = Random(seed)
        load = Load(self.broker.address, topic, seed, name=f"{seed}.", levels=levels)
        with load:
            time.sleep(dice.uniform(0.05, 0.6))
            # Nobody acknowledges after a power cut. But while the ioctl works, fdatasync may return
            # 0 for what is lost (seen with ten lines that only write and sync).
            self.broker.freeze()
            cut_ms = time.time_ns() // 1_000_000
            self.disk.cut_power(mode)
            self.broker.kill()
            self.disk.remount()
            self.broker.start()
        assert any(send.outcome == "ok" for send in load.history.sends), "no load at all"
        self.history.sends.extend(load.history.sends)
        self.history.polls.update(load.history.polls)
        self.history.final = read_settled(self.broker.address, topic)
        return cut_ms

    def end(self) -> None:
        """A clean stop leaves a healthy folder."""
        assert self.broker.stop() == 0
        # Index files are not synced: a power cut may tear one, which is then made again.
        run_mq("doctor", str(self.broker.data)).ok()


@pytest.mark.parametrize("mode", [FLUSH, LOG_FLUSH, NO_LOG_FLUSH])
def test_level_disk_survives_a_power_cut(disk: LoopDisk, tmp_path: Path, mode: int) -> None:
    machine = Machine(disk, tmp_path, "flush-sync")
    try:
        machine.begin(TOPIC)
        machine.round(TOPIC, SEED, mode, [None])
        anomalies = check_history(machine.history)
        assert not anomalies, f"seed {SEED}, mode {mode}: {describe(anomalies)}"
        machine.end()
    finally:
        machine.broker.kill()


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(max(LONG_ROUNDS // 10, 1), marks=pytest.mark.long)]
)
@pytest.mark.timeout(1200)
def test_level_memory_loses_no_more_than_was_said(
    disk: LoopDisk, tmp_path: Path, rounds: int
) -> None:
    machine = Machine(disk, tmp_path, "flush-async")
    try:
        for seed in range(SEED, SEED + rounds):
            machine.begin(f"{TOPIC}-{seed}")
            cut_ms = machine.round(f"{TOPIC}-{seed}", seed, NO_LOG_FLUSH, ["memory", "disk"])
            check_loss(machine.history, cut_ms, seed)
            machine.end()
    finally:
        machine.broker.kill()


def check_loss(history: History, cut_ms: int, seed: int) -> None:
    """Only the last messages of level memory, and only young ones, may be gone."""
    history.polls = {}  # readers of level memory may have seen what was lost
    anomalies = check_history(history, sure=("disk",))
    assert not anomalies, f"seed {seed}: {describe(anomalies)}"
    there = {seen.value for seen in history.final}
    lost = [send for send in history.sends if send.outcome == "ok" and send.value not in there]
    early = [send for send in lost if send.store_time < cut_ms - WINDOW_MS]
    assert not early, f"seed {seed}: {len(early)} lost that were older than {WINDOW_MS} ms"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_power_cuts(disk: LoopDisk, tmp_path: Path) -> None:
    machine = Machine(disk, tmp_path, "flush-sync")
    rounds = max(LONG_ROUNDS // 2, 1)
    sends = 0
    try:
        for number in range(rounds):
            # Small histories and a log that does not fill the disk.
            topic = f"{TOPIC}-{number // 5}"
            if number % 5 == 0:
                if number:
                    sends += len(machine.history.sends)
                    machine.end()
                machine.begin(topic)
            mode = (NO_LOG_FLUSH, LOG_FLUSH, NO_LOG_FLUSH, FLUSH)[number % 4]
            machine.round(topic, SEED + number, mode, [None])
            anomalies = check_history(machine.history)
            assert not anomalies, f"seed {SEED + number}, mode {mode}: {describe(anomalies)}"
        machine.end()
    finally:
        machine.broker.kill()
    print(f"{rounds} power cuts, {sends + len(machine.history.sends)} sends: 0 anomalies")
