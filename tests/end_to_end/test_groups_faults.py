"""Groups under faults, judged by the history checker: what was sent, what is stored, and what all
members handled, in their common order.

*Calm* lives have joins, clean leaves, short freezes, restarts and kills of the broker, and growing
topics: then nothing may come twice. *Wild* ones also have members that are killed or freeze for
longer than their session: then nothing may be missing, and in orderly mode nothing out of order.
After both, the broker's own log must not show two owners of a queue.

`GROUPS_S=300 pytest -m long tests/end_to_end/test_groups_faults.py` lives longer, `GROUPS_SEED=N`
otherwise.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import pytest

from cometmq import Admin
from cometmq.batch import Batch, Kind
from cometmq.broker.claims import ClaimKey, read_claims
from cometmq.log.inspection import inspect_log
from cometmq.real_environment import RealEnvironment
from cometmq.testing.history import History, Jump, Seen, check_history, describe
from cometmq.testing.process import BrokerProcess
from cometmq.testing.recorder import Load, read_settled

MEMBER = Path(__file__).with_name("member.py")
SEED = int(os.environ.get("GROUPS_SEED", "1"))
LONG_S = float(os.environ.get("GROUPS_S", "60"))
SHORT_S = 5.0
QUEUES, QUEUES_MAX, MEMBERS_MAX = 4, 10, 4
STRATEGIES = ["sticky", "averagely", "circle", "consistent-hash", "machine-room", "manual"]
CONFIG = """
[plugin.manual.queues]
m0 = ["orders:0-1"]
m1 = ["orders:2-9"]
"""
WAIT_S = 60.0


class Group:
    """Member processes with names of their own that write what they handle into one file."""

    def __init__(self, folder: Path, address: str, session_s: float, **options: Any) -> None:
        self.alive: dict[str, subprocess.Popen[bytes]] = {}
        self.session_s = session_s
        self._file = folder / "handled"
        self._log = folder / "members.log"
        self._address = address
        self._options = {
            "group": "g",
            "session_timeout": session_s,
            "heartbeat": session_s / 4,
            "commit_interval": 0.2,
            **options,
        }

    def join(self, name: str) -> None:
        text = json.dumps({**self._options, "client_id": name})
        command = [sys.executable, str(MEMBER), self._address, str(self._file), text]
        with self._log.open("ab") as log:
            self.alive[name] = subprocess.Popen(command, stderr=log)

    def handled(self) -> list[Seen]:
        """By all members, in the order of their writes."""
        found: list[Seen] = []
        for line in self._file.read_bytes().splitlines() if self._file.exists() else ():
            _, queue, offset, body = line.split()
            found.append(Seen(int(queue), int(offset), body.rstrip(b".")))
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.alive.values():
            process.kill()
            process.wait()
        if error is not None and self._log.exists():
            print(self._log.read_text()[-8000:])


class Life:
    """One thing after another happens to a group and its broker."""

    def __init__(self, dice: Random, broker: BrokerProcess, group: Group, wild: bool) -> None:
        self.log: list[str] = []
        self._dice = dice
        self._broker = broker
        self._group = group
        self._queues = QUEUES
        self._things = [self.join, self.join, self.leave, self.blink, self.restart, self.grow]
        if wild:
            self._things += [self.kill, self.freeze]

    def live(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            thing = self._dice.choice(self._things)
            self.log.append(thing.__name__)
            thing()
            time.sleep(self._dice.uniform(0.1, 1.0))

    def join(self) -> None:
        """The first name that is free: also that of one who was killed a moment ago."""
        names = [f"m{number}" for number in range(MEMBERS_MAX)]
        free = [name for name in names if name not in self._group.alive]
        if free:
            self._group.join(free[0])

    def leave(self) -> None:
        if len(self._group.alive) > 1:
            process = self._group.alive.pop(self._any())
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) in (0, -signal.SIGTERM)  # it may not listen yet

    def blink(self) -> None:
        self._stop_for(0.3)

    def freeze(self) -> None:
        self._stop_for(self._group.session_s + 1.0)

    def kill(self) -> None:
        if len(self._group.alive) > 1:
            process = self._group.alive.pop(self._any())
            process.kill()
            process.wait()

    def restart(self) -> None:
        if self._dice.random() < 0.5:
            self._broker.kill()
        else:
            assert self._broker.stop() == 0
        self._broker.start()

    def grow(self) -> None:
        if self._queues < QUEUES_MAX:
            self._queues += 1
            with Admin(self._broker.address) as admin:
                admin.alter_topic("orders", queues=self._queues)

    def _any(self) -> str:
        return self._dice.choice(sorted(self._group.alive))

    def _stop_for(self, seconds: float) -> None:
        process = self._group.alive[self._any()]
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)


def two_owners(data: Path) -> list[str]:
    """Claims in the log that were accepted while somebody else held the queue."""
    holders: dict[ClaimKey, str] = {}
    found: list[str] = []

    def look(batch: Batch, kind: str) -> None:
        for change in read_claims(batch) if batch.kind == Kind.CLAIM else ():
            if change.member is None:
                continue
            key = change.group, change.incarnation, change.queue
            before = holders.get(key, "")
            if change.member and before not in ("", change.member):
                found.append(f"{change.member} over {before} on {key} at {batch.position}")
            holders[key] = change.member

    inspect_log(RealEnvironment().files, str(data), look)
    assert holders, "no claims at all"
    return found


def redelivered(handled: list[Seen]) -> list[Seen | Jump]:
    """With a jump wherever what was handled before comes again."""
    following: dict[int, int] = {}
    steps: list[Seen | Jump] = []
    for seen in handled:
        if seen.offset < following.get(seen.queue, 0):
            steps.append(Jump(seen.queue, seen.offset))
        steps.append(seen)
        following[seen.queue] = seen.offset + 1
    return steps


def live(
    folder: Path, strategy: str, seconds: float, *, wild: bool = False, orderly: bool = True
) -> None:
    config = folder / "mq.toml"
    config.write_text(CONFIG)
    options = ["--config", str(config), "--plugins", strategy]
    with BrokerProcess(folder, *options) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("orders", queues=QUEUES)
        session_s = 1.5 if wild else 6.0
        group = Group(folder, broker.address, session_s, strategy=strategy, orderly=orderly)
        load = Load(broker.address, "orders", SEED, size_bytes_max=200)
        life = Life(Random(f"{SEED} {strategy}"), broker, group, wild)
        with group:
            group.join("m0")
            group.join("m1")
            with load:
                life.live(seconds)
            history = load.history
            history.final = read_settled(broker.address, "orders")
            for name in {"m0", "m1"} - set(group.alive):
                group.join(name)
            wait_for(group, {(seen.queue, seen.offset) for seen in history.final})
            judge(history, group.handled(), wild=wild, orderly=orderly, log=life.log)
        assert broker.stop() == 0
        assert two_owners(broker.data) == []


def wait_for(group: Group, places: set[tuple[int, int]]) -> None:
    """Until the group has handled what is stored there."""
    end_s = time.monotonic() + WAIT_S
    while missing := places - {(seen.queue, seen.offset) for seen in group.handled()}:
        assert time.monotonic() < end_s, f"{len(missing)} never handled, as {sorted(missing)[:5]}"
        time.sleep(0.1)


def judge(
    history: History, handled: list[Seen], *, wild: bool, orderly: bool, log: list[str]
) -> None:
    steps: list[Seen | Jump] = list(handled)
    if wild:
        steps = redelivered(handled)
    elif not orderly:
        steps = [*sorted(handled, key=lambda seen: (seen.queue, seen.offset))]
    history.polls = {"the group": steps}
    anomalies = check_history(history)
    again = len(steps) - len(handled)
    print(f"{len(history.final)} messages, redelivered {again} times, 0 wrong; {' '.join(log)}")
    assert not anomalies, f"{describe(anomalies)}\n{' '.join(log)}"
    assert len(history.final) > 100


@pytest.mark.parametrize(("strategy", "orderly"), [("sticky", True), ("consistent-hash", False)])
def test_a_calm_life_brings_everything_once(tmp_path: Path, strategy: str, orderly: bool) -> None:
    live(tmp_path, strategy, SHORT_S, orderly=orderly)


def test_a_wild_life_loses_nothing_and_keeps_the_order(tmp_path: Path) -> None:
    live(tmp_path, "sticky", SHORT_S, wild=True)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_long_lives(tmp_path: Path, strategy: str, wild: bool) -> None:
    live(tmp_path, strategy, LONG_S, wild=wild)
