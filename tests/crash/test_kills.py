"""SIGKILL at random moments under load: nothing acknowledged is lost, and nothing else is wrong.

The system lives on, so at every level all that was acknowledged must be there. A failing round
prints its seed; `CRASH_SEED=N pytest ...` begins with that one.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from random import Random

import pytest

from cometmq import Admin
from cometmq.interfaces import Level
from cometmq.testing.history import History, check_history, describe
from cometmq.testing.process import BrokerProcess, run_mq
from cometmq.testing.recorder import Load, read_settled

SEED = int(os.environ.get("CRASH_SEED", "1"))
LONG_ROUNDS = int(os.environ.get("CRASH_ROUNDS", "200"))
"""Of each policy; `CRASH_ROUNDS=20 pytest -m long tests/crash` makes it short."""
CONFIG = """
[broker]
session_timeout_ms = 5000
[log]
segment_bytes = 1048576
[plugin.commitlog]
allocate_step_bytes = 65536
reserve_bytes = 262144
"""
BLOCK = 10
"""Rounds that share a topic and a history."""
POLICIES: list[tuple[str, list[Level | None]]] = [
    ("flush-sync", [None]),
    ("flush-async", [None]),
    ("flush-sync", ["memory", "disk"]),
]
"""Flush policy, and the ack levels that are mixed."""


def kill_rounds(folder: Path, policy: str, levels: list[Level | None], rounds: int) -> None:
    """One broker, killed and started again `rounds` times while producers and a consumer work."""
    config = folder / "mq.toml"
    config.write_text(CONFIG)
    broker = BrokerProcess(folder, "--config", str(config), "--plugins", policy).start()
    sends = messages = 0
    try:
        for first in range(SEED, SEED + rounds, BLOCK):
            topic = f"load-{first}"
            with Admin(broker.address) as admin:
                admin.create_topic(topic, queues=3)
            whole = History()
            for seed in range(first, min(first + BLOCK, SEED + rounds)):
                one_round(broker, topic, whole, seed, levels)
            sends, messages = sends + len(whole.sends), messages + len(whole.final)
        assert broker.stop() == 0
        run_mq("log", "inspect", str(broker.data)).ok()
    finally:
        broker.kill()
    shutil.rmtree(broker.data)
    print(f"{rounds} kills, {sends} sends, {messages} messages: 0 anomalies")


def one_round(
    broker: BrokerProcess, topic: str, whole: History, seed: int, levels: list[Level | None]
) -> None:
    """Load, a kill in its midst, a start; what is there joins the history of the block."""
    dice = Random(seed)
    load = Load(broker.address, topic, seed, name=f"{seed}.", levels=levels)
    with load:
        time.sleep(dice.uniform(0.05, 0.4))
        broker.kill()
        broker.start()
        time.sleep(dice.uniform(0.0, 0.1))
    whole.sends.extend(load.history.sends)
    whole.polls.update(load.history.polls)
    whole.final = read_settled(broker.address, topic)
    anomalies = check_history(whole)
    assert not anomalies, f"seed {seed}: {describe(anomalies)}"
    assert any(send.outcome == "ok" for send in load.history.sends), "no load at all"


@pytest.mark.parametrize(("policy", "levels"), POLICIES)
def test_kills_under_load(tmp_path: Path, policy: str, levels: list[Level | None]) -> None:
    kill_rounds(tmp_path, policy, levels, 2)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("policy", "levels"), POLICIES)
def test_many_kills_under_load(tmp_path: Path, policy: str, levels: list[Level | None]) -> None:
    kill_rounds(tmp_path, policy, levels, LONG_ROUNDS)
