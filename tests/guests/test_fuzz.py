"""Eight hostile clients for minutes, beside a producer and a consumer that behave.

`FUZZ_S=600 pytest -m long tests/guests/test_fuzz.py -s` is the whole of it; `FUZZ_SEED` begins with
another seed. When it brings down a broker, the last streams lie in the folder that it names; the
one that did it belongs into `corpus/`.
"""

from __future__ import annotations

import os
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
QUIET_S = 5.0
PATIENCE_S = 30.0


@contextmanager
def hostile_clients(address: str, folder: Path) -> Iterator[None]:
    """They are there to the end of the block, and give way to others at the processors: it is what
    they cost the broker that is looked at."""
    clients = [
        subprocess.Popen(
            ["nice", "-n", "19", sys.executable, "-m", "cometmq.testing.hostile"]
            + [address, str(SEED * 100 + number)]
            + [str(FUZZ_S + 60), str(folder / f"last-{number}.bin")]
        )
        for number in range(HOSTILE)
    ]
    try:
        yield
        assert [client.poll() for client in clients] == [None] * HOSTILE, "one has given up"
    finally:
        for client in clients:
            client.kill()
            client.wait()


class Pair:
    """A producer and a consumer that behave, and how long their messages take, in ms."""

    def __init__(self, address: str) -> None:
        self._producer = Producer(address, send_timeout=PATIENCE_S)
        self._consumer = PullConsumer(address, topic="good")
        self.count = 0

    def work(self, seconds: float, broker: BrokerProcess) -> tuple[list[float], int]:
        """Send and receive one by one for so long: latencies, sorted, and the most memory that
        the broker had."""
        taken: list[float] = []
        most = 0
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            self._producer.send(Message("good", b"%d" % self.count, sharding_key="one"))
            (message,) = self._consumer.poll(timeout=PATIENCE_S)
            assert message.body == b"%d" % self.count
            taken.append((time.monotonic() - began_s) * 1000)
            self.count += 1
            most = max(most, broker.anonymous_bytes())
            time.sleep(0.005)
        return sorted(taken), most

    def close(self) -> None:
        self._consumer.close()
        self._producer.close()


def told(what: str, taken: list[float]) -> str:
    places = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    at = {name: taken[min(int(len(taken) * q), len(taken) - 1)] for name, q in places.items()}
    return f"{what}: {len(taken)} round trips, " + ", ".join(
        f"{k} {v:.1f} ms" for k, v in at.items()
    )


@pytest.mark.long
@pytest.mark.timeout(FUZZ_S + 300)
def test_eight_hostile_clients_are_nobody_elses_problem(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        pair = Pair(broker.address)
        quiet, _ = pair.work(QUIET_S, broker)
        with hostile_clients(broker.address, tmp_path):
            try:
                taken, most = pair.work(FUZZ_S, broker)
            except BaseException as error:
                error.add_note(f"seed {SEED}; the last streams and broker.log: {tmp_path}")
                raise
        pair.close()
        with Admin(broker.address) as admin:
            metrics = admin.broker_info().metrics
        print(told("alone", quiet))
        print(told(f"with {HOSTILE} hostile clients for {FUZZ_S:.0f} s", taken))
        lag = metrics["loop_lag_p999_ms"], metrics["loop_lag_max_ms"]
        print(f"loop lag: p99.9 {lag[0]:.0f} ms, max {lag[1]:.0f} ms")
        print(
            f"{metrics['requests']:.0f} requests, of them {metrics['requests_refused']:.0f} refused"
        )
        print(f"most anonymous memory: {most >> 20} MiB")
        assert most < RSS_BOUND_BYTES
        out = run_mq("consume", "good", address=broker.address).ok()
        assert out.splitlines() == [b"%d" % number for number in range(pair.count)]
        assert broker.stop() == 0
    assert "Traceback" not in broker.log.read_text()
    run_mq("log", "verify", str(broker.data)).ok()
