"""Eight hostile clients for minutes, beside a producer and a consumer that behave.

`FUZZ_S=600 pytest -m long tests/guests/test_fuzz.py -s` is the whole of it; `FUZZ_SEED` begins with
another seed. When it brings down a broker, the last streams lie in the folder that it names; the
one that did it belongs into `corpus/`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cometmq import Admin, Message, Producer, PullConsumer
from cometmq.testing.process import BrokerProcess, run_mq

FUZZ_S = float(os.environ.get("FUZZ_S", "600"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
HOSTILE = 8
RSS_BOUND_BYTES = HOSTILE * 64 * (1 << 20) + (256 << 20)
"""As docs/reliability.md says: of each hostile peer HWM frames of 1 MiB, and a fixed part."""
SLICE_S = 20.0
QUIET_S = 5.0
"""Between slices the clients are stopped, each in the midst of something: what the machine does by
itself changes within minutes, so both are looked at in turn."""
SLOWER_AT_MOST = 2.0
PATIENCE_S = 30.0
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


needs_cores = pytest.mark.skipif(len(CORES) < 2, reason="the hostile clients need a core of theirs")


@contextmanager
def before_others() -> Iterator[None]:
    """This thread runs whenever it has something to do, on the core of the hostile clients, as if
    on a machine of its own: else its time is mostly what it waits for a core that others keep
    busy. Where the system refuses that, it stays on the broker's."""
    policy, cores = os.sched_getscheduler(0), os.sched_getaffinity(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        yield
        return
    os.sched_setaffinity(0, CORES[-1:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        os.sched_setscheduler(0, policy, os.sched_param(0))


@contextmanager
def on_cores(cores: list[int]) -> Iterator[None]:
    """This process, and those that it starts within, keep to these."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class HostileClients:
    """They have one core and the broker the others: clients have machines of their own mostly, and
    it is what they cost the broker that is looked at, not what the system makes of processes that
    want the same core."""

    def __init__(self, address: str, folder: Path, seconds: float) -> None:
        self._clients = [
            subprocess.Popen(
                [sys.executable, "-m", "cometmq.testing.hostile", address]
                + [str(SEED * 100 + number), str(seconds), str(folder / f"last-{number}.bin")]
            )
            for number in range(HOSTILE)
        ]
        for client in self._clients:
            os.sched_setaffinity(client.pid, CORES[-1:])

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stopped for as long as the block takes."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for client in self._clients:
            client.send_signal(number)

    def assert_all_there(self) -> None:
        assert [client.poll() for client in self._clients] == [None] * HOSTILE, "one has given up"

    def end(self) -> None:
        for client in self._clients:
            client.kill()
            client.wait()


class Pair:
    """A producer and a consumer that behave, and how long their messages take, in ms."""

    def __init__(self, address: str) -> None:
        self._producer = Producer(address, send_timeout=PATIENCE_S)
        self._consumer = PullConsumer(address, topic="good")
        self.count = 0
        self.most_bytes = 0
        """The most memory that the broker had."""

    def work(self, seconds: float, broker: BrokerProcess) -> list[float]:
        """Send and receive one by one for so long: latencies."""
        with before_others():
            return self._work(seconds, broker)

    def _work(self, seconds: float, broker: BrokerProcess) -> list[float]:
        taken: list[float] = []
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            self._producer.send(Message("good", b"%d" % self.count, sharding_key="one"))
            (message,) = self._consumer.poll(timeout=PATIENCE_S)
            assert message.body == b"%d" % self.count
            taken.append((time.monotonic() - began_s) * 1000)
            self.count += 1
            self.most_bytes = max(self.most_bytes, broker.anonymous_bytes())
            time.sleep(0.005)
        return taken

    def close(self) -> None:
        self._consumer.close()
        self._producer.close()


def percentiles(taken: list[float]) -> dict[str, float]:
    taken.sort()
    places = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: taken[min(int(len(taken) * q), len(taken) - 1)] for name, q in places.items()}


def told(what: str, taken: list[float]) -> dict[str, float]:
    at = percentiles(taken)
    values = ", ".join(f"{name} {value:.1f} ms" for name, value in at.items())
    print(f"{what}: {len(taken)} round trips, {values}")
    return at


def await_rest(admin: Admin) -> None:
    """Until the broker has ended what it has of the held clients: of the requests that it counts
    between two looks only one is left, the look itself."""
    until_s = time.monotonic() + PATIENCE_S
    before = admin.broker_info().metrics["requests"]
    while (now := admin.broker_info().metrics["requests"]) > before + 1:
        assert time.monotonic() < until_s, "the broker is still busy with clients that are held"
        before = now


def taken_by_turns(pair: Pair, broker: BrokerProcess, folder: Path) -> tuple[list[float], ...]:
    """What the pair's messages took while the clients were held, and beside them."""
    quiet: list[float] = []
    beside: list[float] = []
    slices = max(1, round(FUZZ_S / SLICE_S))
    clients = HostileClients(broker.address, folder, 2 * FUZZ_S + 300)
    try:
        for _ in range(slices):
            with clients.held(), Admin(broker.address) as admin:
                await_rest(admin)
                quiet += pair.work(QUIET_S, broker)
            beside += pair.work(FUZZ_S / slices, broker)
        clients.assert_all_there()
    except BaseException as error:
        error.add_note(f"seed {SEED}; the last streams and broker.log: {folder}")
        raise
    finally:
        clients.end()
    return quiet, beside


@needs_cores
@pytest.mark.long
@pytest.mark.timeout(FUZZ_S * 2 + 300)
def test_eight_hostile_clients_are_nobody_elses_problem(tmp_path: Path) -> None:
    with on_cores(CORES[:-1]), BrokerProcess(tmp_path) as broker:
        pair = Pair(broker.address)
        quiet, beside = taken_by_turns(pair, broker, tmp_path)
        pair.close()
        with Admin(broker.address) as admin:
            metrics = admin.broker_info().metrics
        was = told("while they were held", quiet)
        became = told(f"with {HOSTILE} hostile clients for {FUZZ_S:.0f} s", beside)
        lag = metrics["loop_lag_p999_ms"], metrics["loop_lag_max_ms"]
        print(f"loop lag: p99.9 {lag[0]:.0f} ms, max {lag[1]:.0f} ms")
        print(
            f"{metrics['requests']:.0f} requests, of them {metrics['requests_refused']:.0f} refused"
        )
        print(f"most anonymous memory: {pair.most_bytes >> 20} MiB")
        assert pair.most_bytes < RSS_BOUND_BYTES
        out = run_mq("consume", "good", address=broker.address).ok()
        assert out.splitlines() == [b"%d" % number for number in range(pair.count)]
        assert broker.stop() == 0
    assert "Traceback" not in broker.log.read_text()
    run_mq("log", "verify", str(broker.data)).ok()
    for place in ("p50", "p99"):
        assert became[place] <= SLOWER_AT_MOST * was[place], place
