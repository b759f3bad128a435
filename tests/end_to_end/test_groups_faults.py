"""Groups under faults, judged by the history checker: what was sent, what is stored, and what all
members handled, in their common order.

*Calm* lives have joins, clean leaves, short freezes, restarts and kills of the broker, and growing
topics: then nothing may come twice. *Wild* ones also have members that are killed or freeze for
longer than their session: then nothing may be missing, and in orderly mode nothing out of order,
but for the one message of a queue that a member had in hand when it froze: it finishes that as it
wakes, when others are far ahead. After both, the broker's own log must not show two owners of a
queue.

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
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest

from cometmq import Admin
from cometmq.batch import Batch, Kind
from cometmq.broker.claims import ClaimKey, read_claims
from cometmq.log.inspection import inspect_log
from cometmq.real_environment import RealEnvironment
from cometmq.testing.history import History, Jump, Seen, Send, check_history, describe
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
ENOUGH = 1000
"""So many messages go through a group in its life, however slow the machine is."""


class Handled(NamedTuple):
    """What a member has handled."""

    pid: int
    seen: Seen


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

    def handled(self) -> list[Handled]:
        """By all members, in the order of their writes."""
        found: list[Handled] = []
        for line in self._file.read_bytes().splitlines() if self._file.exists() else ():
            pid, queue, offset, body = line.split()
            found.append(Handled(int(pid), Seen(int(queue), int(offset), body.rstrip(b"."))))
        return found

    def count(self) -> int:
        """How many messages it has handled."""
        return self._file.read_bytes().count(b"\n") if self._file.exists() else 0

    def wait_for_count(self, count: int) -> None:
        """Until it has handled so many."""

        def missing() -> str:
            now = self.count()
            return f"{now} of {count} handled, and nothing more" if now < count else ""

        self._wait(missing)

    def wait_for(self, places: set[tuple[int, int]]) -> None:
        """Until it has handled what is stored there."""

        def missing() -> str:
            left = places - {(seen.queue, seen.offset) for _, seen in self.handled()}
            return f"{len(left)} never handled, as {sorted(left)[:5]}" if left else ""

        self._wait(missing)

    def _wait(self, missing: Callable[[], str]) -> None:
        """Until nothing is missing, for as long as it goes on."""
        before, end_s = -1, 0.0
        while text := missing():
            if (now := self.count()) > before:
                before, end_s = now, time.monotonic() + WAIT_S
            assert time.monotonic() < end_s, text
            time.sleep(0.1)

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


def without_late(handled: list[Handled]) -> list[Seen]:
    """Without what members had in hand when they froze and finished when their queue was
    another's, who is elsewhere in it: of each queue one message, nothing that is ahead of all.

    It follows the last one that its member got, and its member's next one does not follow it: who
    went on with a queue that was not his any more is left in.
    """
    found: list[Seen] = []
    first_new: dict[int, int] = {}
    place: dict[int, int] = {}
    owner: dict[int, int] = {}
    before: dict[tuple[int, int], int] = {}
    for (pid, seen), behind in zip(handled, next_of_member(handled), strict=True):
        queue, offset = seen.queue, seen.offset
        foreign = owner.get(queue, pid) != pid and place[queue] != offset <= first_new[queue]
        last = before.get((pid, queue), offset - 1) == offset - 1 and behind != offset + 1
        before[pid, queue] = offset
        first_new[queue] = max(first_new.get(queue, 0), offset + 1)
        if not (foreign and last):
            owner[queue], place[queue] = pid, offset + 1
            found.append(seen)
    return found


def next_of_member(handled: list[Handled]) -> list[int]:
    """For each message: which offset of its queue its member handled next; -1: none."""
    following: dict[tuple[int, int], int] = {}
    found: list[int] = []
    for pid, seen in reversed(handled):
        found.append(following.get((pid, seen.queue), -1))
        following[pid, seen.queue] = seen.offset
    return found[::-1]


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
                group.wait_for_count(1)
                life.live(seconds)
                for name in {"m0", "m1"} - set(group.alive):
                    group.join(name)
                group.wait_for_count(ENOUGH)
            history = load.history
            history.final = read_settled(broker.address, "orders")
            group.wait_for({(seen.queue, seen.offset) for seen in history.final})
            judge(history, group.handled(), wild=wild, orderly=orderly, log=life.log)
        assert broker.stop() == 0
        assert two_owners(broker.data) == []


def judge(
    history: History, handled: list[Handled], *, wild: bool, orderly: bool, log: list[str]
) -> None:
    seen = without_late(handled) if wild else [each.seen for each in handled]
    steps: list[Seen | Jump] = list(seen)
    if wild:
        steps = redelivered(seen)
    elif not orderly:
        steps = [*sorted(seen, key=lambda each: (each.queue, each.offset))]
    history.polls = {"the group": steps}
    anomalies = check_history(history)
    again, late = len(steps) - len(seen), len(handled) - len(seen)
    print(f"{len(history.final)} messages, redelivered {again} times, {late} late; {' '.join(log)}")
    assert not anomalies, f"{describe(anomalies)}\n{' '.join(log)}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("strategy", "orderly"), [("sticky", True), ("consistent-hash", False)])
def test_a_calm_life_brings_everything_once(tmp_path: Path, strategy: str, orderly: bool) -> None:
    live(tmp_path, strategy, SHORT_S, orderly=orderly)


@pytest.mark.timeout(600)
def test_a_wild_life_loses_nothing_and_keeps_the_order(tmp_path: Path) -> None:
    live(tmp_path, "sticky", SHORT_S, wild=True)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_long_lives(tmp_path: Path, strategy: str, wild: bool) -> None:
    live(tmp_path, strategy, LONG_S, wild=wild)


def told(text: str) -> list[Handled]:
    """`a3 b4`: member a handled offset 3, then member b offset 4; queue 0."""
    found = [(ord(word[0]), int(word[1:])) for word in text.split()]
    return [Handled(pid, Seen(0, offset, b"%d" % offset)) for pid, offset in found]


@pytest.mark.parametrize(
    ("text", "late", "skipped_at"),
    [
        ("a0 a1 a2 b1 b2 b3", 0, []),  # killed before it committed
        ("a0 a1 b1 b2 b3 a2 b4", 1, []),  # frozen at 2, and awake
        ("a0 b0 b1 b2 a1 a3 a4", 1, []),  # and it gets the queue back
        ("b0 b1 b2 a0 b3", 1, []),  # frozen at its first one
        ("a0 a1 a2 b1 a3 b2 b3 b4", 1, []),  # awake before the other was as far
        ("a0 a1 a2 b1 a3 b2 b4", 1, [4]),  # and the other leaves it out
        ("a0 b1 a2", 0, []),  # nobody froze
        ("a0 a1 b2 b3 b4 a2 a3 b5 b6", 0, [5]),  # went on with a queue that was not its own
        ("a0 a1 b2 b3 a0 b4 b5", 0, [4]),  # had something else in hand
        ("a0 a1 b1 b2 b4 a3", 0, [4]),  # order
        ("a0 a1 b2 b3 b5", 0, [5]),  # lost
    ],
)
def test_only_what_was_in_hand_may_come_late(text: str, late: int, skipped_at: list[int]) -> None:
    handled = told(text)
    seen = without_late(handled)
    final = [Seen(0, offset, b"%d" % offset) for offset in range(7)]
    sends = [Send("p", one.offset, one.value, "unknown") for one in final]
    anomalies = check_history(History(sends, {"the group": redelivered(seen)}, final))
    assert len(handled) - len(seen) == late
    assert [(one.kind, one.offset) for one in anomalies] == [
        ("poll-skipped", offset) for offset in skipped_at
    ]
