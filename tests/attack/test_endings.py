"""Plugins that never let `mq run` end, each in a phase of its own: one SIGTERM is enough."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
import asyncio, atexit, os, threading, time
from cometmq.hookspecs import hookimpl
from cometmq.interfaces import Job

HOW = os.environ["HANGS"]

async def deaf():
    print("begun", flush=True)
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass

def asleep():
    time.sleep(1000)

class Listener:
    address = "hangs://x"

    async def close(self):
        if HOW == "close":
            await deaf()

class Transport:
    schemes = ("hangs",)

    async def listen(self, address, receiver, limits, environment):
        if HOW == "listen":
            await deaf()
        return Listener()

class Policy:
    default_level = "disk"
    interval_ms = 100

    def start(self, syncer):
        self.syncer = syncer

    def appended(self, awaited, alone):
        self.syncer.sync_blocking()

    demand = appended

    async def stop(self):
        await deaf()

class Hangs:
    name = "hangs"

    if HOW == "policy":
        @hookimpl
        def flush_policy(self):
            return Policy()

    def __init__(self):
        if HOW == "failed":
            threading.Thread(target=asleep, name="left-alone").start()
            raise RuntimeError("no plugin after all")

    @hookimpl
    def transports(self):
        return [Transport()]

    @hookimpl
    def jobs(self):
        return [Job("deaf", deaf, interval_s=0.05)] if HOW == "job" else []

    @hookimpl
    async def started(self, broker):
        if HOW == "task":
            self.task = asyncio.ensure_future(deaf())
        if HOW == "thread":
            threading.Thread(target=asleep, name="left-alone").start()
        if HOW == "executor":
            asyncio.get_running_loop().run_in_executor(None, asleep)
        if HOW == "exit":
            atexit.register(asleep)
"""
SAID = {
    "listen": "the listening at hangs://x has not returned for",
    "close": "the end of hangs://x has not returned for",
    "policy": "the end of the flush policy of plugin hangs has not returned for",
    "thread": "what a plugin began has not 1.0 s later",
    "failed": "threads left-alone",
}


@pytest.mark.parametrize(
    "how", ["listen", "close", "policy", "job", "task", "thread", "executor", "exit", "failed"]
)
def test_one_sigterm_ends_it_whatever_a_plugin_leaves_behind(tmp_path: Path, how: str) -> None:
    site = tmp_path / "site"
    info = site / "hangs-1.dist-info"
    info.mkdir(parents=True)
    (site / "hangs.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hangs\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[cometmq.plugins]\nhangs = hangs:Hangs\n")
    data = str(tmp_path / "data")
    command = [sys.executable, "-m", "cometmq.cli", "run", "--data", data, "--json", "--insecure"]
    for address in ("tcp://127.0.0.1:0", "hangs://x"):
        command += ["--listen", address]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])),
        "HANGS": how,
        "MQ_BROKER__LOOP_STALL_LIMIT_MS": "1000",
    }
    log = tmp_path / "broker.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, "--plugins", "hangs"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    try:
        assert process.stdout is not None
        begun = how in ("listen", "job", "task")
        if how != "failed":
            lines = [process.stdout.readline()]
            if how in ("job", "task"):
                lines.append(process.stdout.readline())
            assert (b"begun\n" in lines) == begun
            assert how == "listen" or any(b"addresses" in line for line in lines)
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 1, log.read_text()
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    assert SAID.get(how, "what a plugin began has not") in log.read_text()
    if how != "failed":
        verify = [sys.executable, "-m", "cometmq.cli", "log", "verify", data, "--json"]
        found = subprocess.run(verify, capture_output=True, timeout=60, check=False)
        assert how == "listen" or json.loads(found.stdout)["intact"]
