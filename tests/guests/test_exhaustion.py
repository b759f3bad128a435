"""Too few descriptors, too little memory, time that jumps or stands still, signals at any moment,
and two brokers that want the same folder."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq import Message, Producer, PullConsumer
from cometmq.protocol import Heartbeat, Operation, Status
from cometmq.testing.process import MQ, BrokerProcess, run_mq
from cometmq.testing.zmtp import ZmtpPeer

PATIENCE_S = 30.0
SLOW_TO_STOP = """
import asyncio, ctypes, os, time
from cometmq.hookspecs import hookimpl

class Slow:
    name = "slow"
    @hookimpl
    async def started(self, broker):
        print("starting", flush=True)
        await asyncio.sleep(float(os.environ.get("START_S", 0)))
    @hookimpl
    async def stopping(self, broker):
        print("stopping", flush=True)
        how = os.environ.get("HANGS", "awaits")
        while how == "blocks":
            time.sleep(60)
        if how == "deaf":
            mutex = ctypes.create_string_buffer(128)
            lock = ctypes.CDLL(None).pthread_mutex_lock
            lock(mutex)
            lock(mutex)  # in C, where no handler of Python's is ever called
        await asyncio.sleep(60)
"""
ENTRY_POINT = "[cometmq.plugins]\nslow = slow_to_stop:Slow\n"


def works(address: str, count: int = 3) -> None:
    """What is sent comes back."""
    with Producer(address, send_timeout=PATIENCE_S) as producer:
        first = producer.send(Message("works", b"0", sharding_key="one")).offset
        for number in range(1, count):
            producer.send(Message("works", b"%d" % number, sharding_key="one"))
    with PullConsumer(address, topic="works") as consumer:
        seen = 0
        while seen < first + count:
            got = consumer.poll(timeout=PATIENCE_S)
            assert got, "messages are missing"
            seen += len(got)


# --- descriptors and memory -------------------------------------------------------------------


def test_few_descriptors_cost_new_connections_and_nobody_else(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, prefix=("prlimit", "--nofile=64:64")) as broker:
        assert "may open 64 files, enough for 16 connections" in broker.log.read_text()
        works(broker.address)
        with Producer(broker.address, send_timeout=PATIENCE_S) as old:
            old.send(Message("works", b"before", sharding_key="one"))
            peers = [ZmtpPeer(broker.address) for _ in range(150)]
            try:
                time.sleep(0.3)
                old.send(Message("works", b"meanwhile", sharding_key="one"))
                used_s = cpu_s(broker)
                time.sleep(1.0)
                spent_s = cpu_s(broker) - used_s
                assert spent_s < 0.3, "it burns a core while it can't accept"
            finally:
                for peer in peers:
                    peer.close()
            old.send(Message("works", b"after", sharding_key="one"))
        works(broker.address)
        assert broker.stop() == 0
        run_mq("log", "verify", str(broker.data)).ok()


def test_a_crowd_that_comes_again_and_again_costs_little_while_descriptors_are_few(
    tmp_path: Path,
) -> None:
    """Each time some wait to be accepted; the broker has descriptors left for files all the while,
    and serves a newcomer as soon as there is room."""
    with BrokerProcess(tmp_path, prefix=("prlimit", "--nofile=128:128")) as broker:
        with Producer(broker.address, send_timeout=PATIENCE_S) as old:
            for _ in range(5):
                peers = [ZmtpPeer(broker.address) for _ in range(300)]
                old.send(Message("works", b"meanwhile", sharding_key="one"))
                time.sleep(0.2)
                taken = len(os.listdir(f"/proc/{broker.pid}/fd"))
                assert taken < 128, "none is left for the log"
                for peer in peers:
                    peer.close()
            works(broker.address)
        assert broker.stop() == 0


def test_the_limit_on_open_files_is_raised_as_far_as_it_may_be(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, prefix=("prlimit", "--nofile=64:20000")) as broker:
        limits = Path(f"/proc/{broker.pid}/limits").read_text()
        assert limits.partition("Max open files")[2].split()[:2] == ["20000", "20000"]
        log = broker.log.read_text()
        assert "raised from 64 to 20000" in log and "limits.connections" not in log


def cpu_s(broker: BrokerProcess) -> float:
    """Processor time that it has used."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_memory_limit_is_kept_under_a_load_that_no_reader_takes(tmp_path: Path) -> None:
    limit = 600 << 20
    with BrokerProcess(tmp_path, prefix=("prlimit", f"--data={limit}")) as broker:
        with Producer(broker.address, send_timeout=PATIENCE_S) as producer:
            for _ in range(40):
                producer.send_many([Message("big", bytes(500_000))] * 5)
        works(broker.address)
        assert broker.anonymous_bytes() < limit
        assert broker.stop() == 0


# --- time -------------------------------------------------------------------------------------


@pytest.fixture
def faked(tmp_path: Path) -> Iterator[tuple[BrokerProcess, Path]]:
    """A broker whose wall clock a file moves, and that file."""
    found = importlib.util.find_spec("libfaketime")
    if found is None or not found.submodule_search_locations:
        pytest.skip("libfaketime is not installed (pip install libfaketime)")
    folder = Path(found.submodule_search_locations[0]) / "vendor" / "libfaketime" / "src"
    moved = tmp_path / "offset"
    moved.write_text("+0")
    settings = [
        f"LD_PRELOAD={folder / 'libfaketime.so.1'}",
        f"FAKETIME_TIMESTAMP_FILE={moved}",
        "FAKETIME_NO_CACHE=1",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
        "FAKETIME_DONT_RESET=1",
    ]
    with BrokerProcess(tmp_path, prefix=("env", *settings)) as broker:
        yield broker, moved


def test_wall_clock_jumps_in_a_live_process(faked: tuple[BrokerProcess, Path]) -> None:
    """An hour back, a day on, home again: nothing is lost, out of order, or deleted."""
    broker, moved = faked
    stored: list[int] = []
    with (
        Producer(broker.address, send_timeout=PATIENCE_S) as producer,
        PullConsumer(broker.address, topic="t", group="g") as consumer,
    ):
        for number, jump in enumerate(["+0", "-3600", "+86400", "+0"]):
            moved.write_text(jump)
            time.sleep(0.3)
            producer.send(Message("t", b"%d" % number, sharding_key="one"))
            (message,) = consumer.poll(timeout=PATIENCE_S)
            assert message.body == b"%d" % number
            stored.append(message.store_time // 1000 - int(time.time()))
            consumer.commit()
    assert -3700 < stored[1] < -3500 and 86_300 < stored[2] < 86_500, stored
    assert broker.stop() == 0
    moved.write_text("+0")
    broker.start()
    assert run_mq("consume", "t", address=broker.address).ok() == b"0\n1\n2\n3\n"


def test_a_stop_longer_than_every_timeout(tmp_path: Path) -> None:
    """SIGSTOP, and SIGCONT when all sessions should be dead: it gives everybody that time back."""
    config = tmp_path / "mq.toml"
    config.write_text("[broker]\nsession_timeout_ms = 1000\nloop_stall_limit_ms = 1500\n")
    with BrokerProcess(tmp_path, "--config", str(config)) as broker:
        with ZmtpPeer(broker.address, PATIENCE_S).shake_hands().say_hello() as silent:
            works(broker.address)
            broker.freeze()
            time.sleep(3.0)
            os.kill(broker.pid, signal.SIGCONT)
            assert silent.ask(Operation.HEARTBEAT, Heartbeat())[0] == Status.OK
        works(broker.address)
        assert broker.stop() == 0
    assert "stood still" not in broker.log.read_text(), "a stopped process is no hung loop"


# --- signals ----------------------------------------------------------------------------------


def run_broker(folder: Path, *options: str, **variables: str) -> subprocess.Popen[bytes]:
    """`mq run` whose stdout tells where it is."""
    command = [*MQ, "run", "--json", "--data", str(folder / "data")]
    with (folder / "broker.log").open("ab") as log:
        return subprocess.Popen(
            [*command, "--listen", "tcp://127.0.0.1:0", *options],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **variables},
        )


def ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_sigterm_in_any_phase_of_the_start(tmp_path: Path) -> None:
    """It ends, soon, and the folder is good: by the signal until it is handled, cleanly after."""
    with BrokerProcess(tmp_path) as broker:
        works(broker.address)
        broker.stop()
    began_s = time.monotonic()
    process = run_broker(tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    whole_s = time.monotonic() - began_s
    process.terminate()
    assert ended(process) == 0
    codes = []
    for step in range(8):
        process = run_broker(tmp_path)
        time.sleep(whole_s * (step + 1) / 8)
        process.terminate()
        codes.append(ended(process))
    assert set(codes) <= {0, -signal.SIGTERM}, codes
    run_mq("log", "verify", str(tmp_path / "data")).ok()
    with BrokerProcess(tmp_path) as broker:
        works(broker.address)


@pytest.fixture
def slow_plugin(tmp_path: Path) -> dict[str, str]:
    """A plugin that takes its time, installed for one process; the variables that make it so."""
    site = tmp_path / "site"
    (site / "slow_to_stop-1.dist-info").mkdir(parents=True)
    (site / "slow_to_stop.py").write_text(SLOW_TO_STOP)
    (site / "slow_to_stop-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: slow-to-stop\nVersion: 1\n"
    )
    (site / "slow_to_stop-1.dist-info" / "entry_points.txt").write_text(ENTRY_POINT)
    return {"PYTHONPATH": str(site)}


def test_sigterm_while_a_plugin_starts_is_obeyed_when_it_has(
    tmp_path: Path, slow_plugin: dict[str, str]
) -> None:
    process = run_broker(tmp_path, "--plugins", "slow", START_S="0.5", **slow_plugin)
    assert process.stdout is not None and process.stdout.readline() == b"starting\n"
    process.terminate()
    assert json.loads(process.stdout.readline())["addresses"]
    assert process.stdout.readline() == b"stopping\n"
    process.terminate()
    assert ended(process) == 1, "the second signal does not wait"


@pytest.mark.parametrize("how", ["awaits", "blocks", "deaf"])
def test_a_second_sigterm_ends_it_at_once_whatever_holds_the_stop(
    tmp_path: Path, slow_plugin: dict[str, str], how: str
) -> None:
    """Also when a plugin never gives the event loop back: nobody has to reach for SIGKILL."""
    process = run_broker(tmp_path, "--plugins", "slow", HANGS=how, **slow_plugin)
    assert process.stdout is not None
    assert process.stdout.readline() == b"starting\n"
    json.loads(process.stdout.readline())
    process.terminate()
    assert process.stdout.readline() == b"stopping\n"
    time.sleep(0.2)
    began_s = time.monotonic()
    process.terminate()
    assert ended(process) == 1
    assert time.monotonic() - began_s < 5.0
    run_mq("log", "verify", str(tmp_path / "data")).ok()


@pytest.mark.parametrize("how", ["awaits", "blocks", "deaf"])
def test_one_sigterm_is_enough_in_the_end_and_who_never_returned_is_named(
    tmp_path: Path, slow_plugin: dict[str, str], how: str
) -> None:
    process = run_broker(
        tmp_path,
        *("--plugins", "slow"),
        HANGS=how,
        MQ_BROKER__LOOP_STALL_LIMIT_MS="1500",
        **slow_plugin,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"starting\n"
    json.loads(process.stdout.readline())
    process.terminate()
    assert process.stdout.readline() == b"stopping\n"
    began_s = time.monotonic()
    assert ended(process) == 1
    assert time.monotonic() - began_s > 1.0
    log = (tmp_path / "broker.log").read_text()
    assert "asked to stop, but hook stopping of plugin slow has not returned for 1.5 s" in log
    run_mq("log", "verify", str(tmp_path / "data")).ok()


def test_one_sigterm_ends_a_start_that_a_plugin_never_lets_end(
    tmp_path: Path, slow_plugin: dict[str, str]
) -> None:
    process = run_broker(
        tmp_path,
        *("--plugins", "slow"),
        START_S="600",
        MQ_BROKER__LOOP_STALL_LIMIT_MS="1500",
        **slow_plugin,
    )
    assert process.stdout is not None and process.stdout.readline() == b"starting\n"
    process.terminate()
    assert ended(process) == 1
    assert "hook started of plugin slow has not returned" in (tmp_path / "broker.log").read_text()


# --- two brokers, one folder ------------------------------------------------------------------


def test_a_port_in_use_costs_no_epoch(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with BrokerProcess(tmp_path / "first") as first:
        BrokerProcess(tmp_path / "second").start().stop()
        before = sorted(path.name for path in (tmp_path / "second" / "data").rglob("*"))
        again = BrokerProcess(tmp_path / "second", listen=first.address)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="it is in use"):
                again.start()
        assert sorted(p.name for p in (tmp_path / "second" / "data").rglob("*")) == before


def test_a_second_broker_on_the_folder_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        works(broker.address)
        refused(tmp_path / "data")
        (tmp_path / "link").symlink_to(tmp_path / "data")
        refused(tmp_path / "link")
        works(broker.address)


def test_also_by_another_mount_of_it(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with BrokerProcess(tmp_path) as broker:
        works(broker.address)
        bound = subprocess.run(
            ["mount", "--bind", str(broker.data), str(other)], capture_output=True, text=True
        )
        if bound.returncode:
            pytest.skip(f"this user may not mount: {bound.stderr}")
        try:
            refused(other)
        finally:
            subprocess.run(["umount", str(other)], check=True)
        works(broker.address)


def refused(folder: Path) -> None:
    """A broker doesn't start there, and says why."""
    done = subprocess.run(
        [sys.executable, "-m", "cometmq.cli", "run", "--data", str(folder)]
        + ["--listen", "tcp://127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr and str(folder) in done.stderr, done.stderr
