"""Consumer groups for real: members are processes, which join, leave, die, freeze and wake."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest

from cometmq import Admin, Consumer, Message, Producer
from cometmq.testing.process import BrokerProcess, run_mq
from cometmq.testing.waiting import until

MEMBER = Path(__file__).with_name("member.py")
SESSION_S = 2.0
QUEUES = 6


class Handled(NamedTuple):
    """One line of a member's file."""

    pid: int
    queue: int
    offset: int
    body: str


class Members:
    """Member processes of one group that write into one file. Killed at the end."""

    def __init__(self, folder: Path, address: str, **options: Any) -> None:
        self.file = folder / "handled"
        self.log = folder / "members.log"
        self._address = address
        self._options = {
            "group": "g",
            "session_timeout": SESSION_S,
            "heartbeat": SESSION_S / 4,
            "commit_interval": 0.2,
            **options,
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, **options: Any) -> subprocess.Popen[bytes]:
        """One more member."""
        text = json.dumps({**self._options, **options})
        command = [sys.executable, str(MEMBER), self._address, str(self.file), text]
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, stderr=log)
        self._processes.append(process)
        return process

    def handled(self) -> list[Handled]:
        """What all members have handled so far, in order."""
        if not self.file.exists():
            return []
        found = []
        for line in self.file.read_text().splitlines():
            pid, queue, offset, body = line.split()
            found.append(Handled(int(pid), int(queue), int(offset), body))
        return found

    def bodies(self) -> Counter[str]:
        return Counter(each.body for each in self.handled())

    def owners(self) -> dict[int, int]:
        """Which process handled something of each queue last."""
        return {each.queue: each.pid for each in self.handled()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        if error is not None and self.log.exists():
            print(self.log.read_text()[-8000:])


class Traffic:
    """A producer that sends numbered messages until it is told to stop."""

    def __init__(self, address: str, rate: int = 500) -> None:
        self.sent: list[str] = []
        self._address = address
        self._rate = rate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> list[str]:
        """Stop, and return all that was acknowledged."""
        self._over.set()
        self._thread.join()
        return self.sent

    def _send(self) -> None:
        with Producer(self._address, send_timeout=60) as producer:
            number = 0
            while not self._over.wait(10 / self._rate):
                messages = [
                    Message(
                        "orders", f"m{number + n}".encode(), sharding_key=str((number + n) % 40)
                    )
                    for n in range(10)
                ]
                number += 10
                for receipt in [producer.send_soon(message) for message in messages]:
                    receipt.result(60)
                self.sent += [message.body.decode() for message in messages]


@pytest.fixture
def orders(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """A broker with the topic `orders`."""
    with Admin(broker.address) as admin:
        admin.create_topic("orders", queues=QUEUES)
    yield broker


def all_arrived(members: Members, sent: list[str]) -> bool:
    return until(lambda: set(sent) <= set(members.bodies()))


def repeats(members: Members) -> list[tuple[int, int]]:
    """Queue and offset of what was handled more than once."""
    counts = Counter((each.queue, each.offset) for each in members.handled())
    return [place for place, count in counts.items() if count > 1]


def in_order(handled: list[Handled]) -> bool:
    """Whether each message came for the first time behind all before it, queue by queue."""
    highest: dict[int, int] = {}
    for each in handled:
        if each.offset > highest.get(each.queue, -1) + 1:
            return False
        highest[each.queue] = max(highest.get(each.queue, -1), each.offset)
    return True


def spread(members: Members, *processes: subprocess.Popen[bytes]) -> Callable[[], bool]:
    """Whether these share the queues evenly, by what they handled last."""
    wanted = {process.pid for process in processes}

    def is_so() -> bool:
        counts = Counter(members.owners().values())
        return set(counts) == wanted and max(counts.values()) - min(counts.values()) <= 1

    return is_so


def test_members_that_join_and_leave_share_the_queues_without_a_gap_or_a_repeat(
    orders: BrokerProcess, tmp_path: Path
) -> None:
    with Members(tmp_path, orders.address) as members, Traffic(orders.address) as traffic:
        first = members.start()
        assert until(lambda: len(members.owners()) == QUEUES)
        second, third = members.start(), members.start()
        assert until(spread(members, first, second, third))
        second.send_signal(signal.SIGTERM)
        assert second.wait(20) == 0
        assert until(spread(members, first, third))
        sent = traffic.end()
        assert all_arrived(members, sent)
        assert not repeats(members)


def test_a_member_that_is_killed_is_replaced_within_a_session(
    orders: BrokerProcess, tmp_path: Path
) -> None:
    with Members(tmp_path, orders.address) as members, Traffic(orders.address) as traffic:
        first, second = members.start(), members.start()
        assert until(spread(members, first, second))
        second.kill()
        killed_s = time.monotonic()
        assert until(lambda: set(members.owners().values()) == {first.pid})
        assert time.monotonic() - killed_s < SESSION_S + 4  # 1 s, and what a busy machine adds
        assert all_arrived(members, traffic.end())


def test_a_member_that_freezes_and_wakes_takes_nothing_back(
    orders: BrokerProcess, tmp_path: Path
) -> None:
    with (
        Members(tmp_path, orders.address, orderly=True) as members,
        Traffic(orders.address) as traffic,
    ):
        first, second = members.start(), members.start()
        assert until(spread(members, first, second))
        second.send_signal(signal.SIGSTOP)
        assert until(lambda: set(members.owners().values()) == {first.pid})
        second.send_signal(signal.SIGCONT)
        assert until(spread(members, first, second))
        assert all_arrived(members, traffic.end())
        assert in_order(members.handled())


def test_members_go_on_over_a_restart_of_the_broker(orders: BrokerProcess, tmp_path: Path) -> None:
    # Claims outlive a restart for one session. On a full machine a member may need longer than the
    # short one of the other tests to be back.
    with (
        Members(tmp_path, orders.address, orderly=True, session_timeout=30.0) as members,
        Traffic(orders.address) as traffic,
    ):
        first, second = members.start(), members.start()
        assert until(spread(members, first, second))
        orders.stop()
        orders.start()
        after = len(members.handled())
        assert until(lambda: len({each.queue for each in members.handled()[after:]}) == QUEUES)
        orders.kill()
        orders.start()
        after = len(members.handled())
        assert until(lambda: len({each.queue for each in members.handled()[after:]}) == QUEUES)
        assert all_arrived(members, traffic.end())
        assert in_order(members.handled())
        # The producer may have stored a message twice, but nobody handled a stored one twice.
        assert not repeats(members)


def test_a_topic_that_grows_is_read_as_a_whole(orders: BrokerProcess, tmp_path: Path) -> None:
    with Members(tmp_path, orders.address) as members, Traffic(orders.address) as traffic:
        members.start()
        assert until(lambda: len(members.owners()) == QUEUES)
        with Admin(orders.address) as admin:
            admin.alter_topic("orders", queues=QUEUES + 4)
        with Producer(orders.address) as producer:
            producer.send_many([Message("orders", b"new%d" % n) for n in range(50)])
        new = [f"new{n}" for n in range(50)]
        assert all_arrived(members, traffic.end() + new)


def hand_over_s(address: str) -> float:
    """How long it takes from a member's close until another one has its queues."""
    with Consumer(address, group="g") as stays:
        stays.subscribe("orders", handler=lambda message: None)
        stays.start()
        leaves = Consumer(address, group="g")
        leaves.subscribe("orders", handler=lambda message: None)
        leaves.start()
        assert until(lambda: len(stays.queues) == len(leaves.queues) == QUEUES // 2)
        before_s = time.monotonic()
        leaves.close()
        assert until(lambda: len(stays.queues) == QUEUES)
        return time.monotonic() - before_s


def test_a_clean_leave_hands_over_at_once(orders: BrokerProcess) -> None:
    # The least of a few: this machine may do something else meanwhile.
    assert min(hand_over_s(orders.address) for _ in range(3)) < 0.3


def test_only_the_tags_asked_for_arrive(orders: BrokerProcess, tmp_path: Path) -> None:
    with Producer(orders.address) as producer:
        tags = ["red", "blue", "green"]
        producer.send_many([Message("orders", b"%d" % n, tag=tags[n % 3]) for n in range(300)])
    with Members(tmp_path, orders.address, tags="red || green") as members:
        members.start()
        wanted = {str(n) for n in range(300) if n % 3 != 1}
        assert until(lambda: set(members.bodies()) >= wanted)
        with Admin(orders.address) as admin:
            assert until(
                lambda: sum(v or 0 for v in admin.committed("g", "orders").values()) == 300
            )
        assert set(members.bodies()) == wanted


def test_a_handler_that_kills_its_process_costs_its_message_nothing(
    orders: BrokerProcess,
) -> None:
    with Producer(orders.address) as producer:
        producer.send(Message("orders", b"deadly"))
    script = (
        "import os, sys\n"
        "from cometmq import Consumer\n"
        f"with Consumer({orders.address!r}, group='g', session_timeout=2, heartbeat=0.5) as c:\n"
        "    c.subscribe('orders', handler=lambda m: os._exit(9))\n"
        "    c.run()\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 9
    seen: list[bytes] = []
    with Consumer(orders.address, group="g") as consumer:
        consumer.subscribe("orders", handler=lambda message: seen.append(message.body))
        consumer.start()
        assert until(lambda: seen == [b"deadly"])


def test_broadcasting_gives_everything_to_everybody(orders: BrokerProcess, tmp_path: Path) -> None:
    with Producer(orders.address) as producer:
        producer.send_many([Message("orders", b"%d" % n) for n in range(60)])
    with Members(tmp_path, orders.address, mode="broadcasting") as members:
        members.start(client_id="one")
        members.start(client_id="two")
        assert until(lambda: set(members.bodies().values()) == {2})
        assert len(members.bodies()) == 60


def test_a_new_group_begins_where_it_says_and_an_old_one_where_it_was(
    orders: BrokerProcess,
) -> None:
    def read(start: str, want: int) -> list[bytes]:
        seen: list[bytes] = []
        with Consumer(orders.address, group="g", start=start) as consumer:
            consumer.subscribe("orders")
            assert until(lambda: consumer.receive(0.05) is None and len(consumer.queues) == QUEUES)
            with Producer(orders.address) as producer:
                producer.send_many([Message("orders", b"new%d" % n) for n in range(want)])
            while len(seen) < want and (message := consumer.receive(20)) is not None:
                message.ack()
                seen.append(message.body)
        return seen

    with Producer(orders.address) as producer:
        producer.send_many([Message("orders", b"old%d" % n) for n in range(30)])
    assert sorted(read("latest", 5)) == sorted(b"new%d" % n for n in range(5))
    assert sorted(read("earliest", 3)) == sorted(b"new%d" % n for n in range(3))


def test_mq_consume_as_a_member_finishes_what_it_prints(orders: BrokerProcess) -> None:
    with Producer(orders.address) as producer:
        tags = ["red", "blue"]
        producer.send_many([Message("orders", b"%d" % n, tag=tags[n % 2]) for n in range(40)])

    def consume(*options: str) -> list[bytes]:
        return run_mq("consume", "orders", *options, address=orders.address).ok().splitlines()

    some = consume("--group", "g", "--count", "15")
    rest = consume("--group", "g")
    assert sorted(some + rest) == sorted(b"%d" % n for n in range(40))
    assert consume("--group", "g") == []
    red = consume("--group", "h", "--tags", "red")
    assert sorted(red) == sorted(b"%d" % n for n in range(0, 40, 2))
    assert consume("--group", "new", "--from", "latest") == []


@pytest.mark.parametrize(("options", "told"), [(["--from", "latest"], True), ([], False)])
def test_mq_consume_says_when_a_place_to_begin_at_comes_too_late(
    orders: BrokerProcess, options: list[str], told: bool
) -> None:
    run_mq("produce", "orders", address=orders.address, text=b"a\n").ok()
    command = ["consume", "orders", "--group", "g"]
    fresh = run_mq(*command, "--from", "earliest", address=orders.address)
    assert (fresh.ok(), fresh.err) == (b"a\n", "")
    done = run_mq(*command, *options, address=orders.address)
    hint = "Move it: mq group reset g --topic orders --to latest"
    assert (done.ok(), hint in done.err, done.err == "") == (b"", told, not told), done.err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--group", "g", "--queue", "0"], "neither --queue nor an offset"),
        (["--group", "g", "--from", "7"], "neither --queue nor an offset"),
        (["--tags", "red"], "--tags needs --group"),
    ],
)
def test_mq_consume_names_what_does_not_go_together(options: list[str], text: str) -> None:
    done = run_mq("consume", "orders", *options, address="tcp://127.0.0.1:1")
    assert done.code == 2
    assert text in done.err


CHAOS_S = 40.0


class Chaos:
    """Does one thing after another to the members of a group, and to its broker."""

    def __init__(self, seed: int, broker: BrokerProcess, members: Members) -> None:
        self.chance = random.Random(seed)
        self.queues = QUEUES
        self._broker = broker
        self._members = members
        self._alive = [members.start() for _ in range(3)]

    def step(self) -> None:
        """One thing."""
        things = [self.join, self.leave, self.kill, self.freeze, self.restart, self.grow]
        self.chance.choices(things, weights=[4, 2, 2, 2, 1, 1])[0]()

    def join(self) -> None:
        if len(self._alive) < 5:
            self._alive.append(self._members.start())

    def leave(self) -> None:
        if len(self._alive) > 1:
            member = self._alive.pop(self.chance.randrange(len(self._alive)))
            member.send_signal(signal.SIGTERM)
            assert member.wait(40) in (0, -signal.SIGTERM)  # it may not have begun to listen

    def kill(self) -> None:
        if len(self._alive) > 1:
            self._alive.pop(self.chance.randrange(len(self._alive))).kill()

    def freeze(self) -> None:
        member = self.chance.choice(self._alive)
        member.send_signal(signal.SIGSTOP)
        time.sleep(self.chance.choice([0.5, SESSION_S + 1.5]))
        member.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        if self.chance.random() < 0.5:
            self._broker.stop()
        else:
            self._broker.kill()
        self._broker.start()

    def grow(self) -> None:
        if self.queues < 12:
            self.queues += 1
            with Admin(self._broker.address) as admin:
                admin.alter_topic("orders", queues=self.queues)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "strategy", ["sticky", "averagely", "circle", "consistent-hash", "machine-room"]
)
def test_nothing_is_lost_or_out_of_order_whatever_happens_to_members(
    tmp_path: Path, strategy: str
) -> None:
    with BrokerProcess(tmp_path, "--plugins", strategy) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("orders", queues=QUEUES)
        _live_through_chaos(broker, tmp_path, strategy)


def _live_through_chaos(broker: BrokerProcess, folder: Path, strategy: str) -> None:
    with (
        Members(folder, broker.address, orderly=True, strategy=strategy) as members,
        Traffic(broker.address) as traffic,
    ):
        chaos = Chaos(len(strategy), broker, members)
        end_s = time.monotonic() + CHAOS_S
        while time.monotonic() < end_s:
            chaos.step()
            time.sleep(chaos.chance.uniform(0.2, 3.0))
        assert all_arrived(members, traffic.end())
        assert in_order(members.handled())
