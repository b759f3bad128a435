"""Real processes for tests: `mq run` on a free port, killed and started again on its folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

MQ: Sequence[str] = (sys.executable, "-m", "cometmq.cli")
"""The `mq` of the running interpreter."""

TIMEOUT_S = 100


class BrokerProcess:
    """`mq run` in a process of its own. The first start picks a free port; later ones keep it.

    Its stderr goes to `broker.log` beside the data folder. A context manager: killed at the end.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        listen: str = "tcp://127.0.0.1:0",
        prefix: Sequence[str] = (),
    ) -> None:
        """`folder` will hold `data` and `broker.log`; `options` are those of `mq run`; `prefix` is
        a command that runs another one in its place, as `env` and `prlimit` do."""
        self.data = folder / "data"
        self.log = folder / "broker.log"
        self._options = options
        self._prefix = prefix
        self._listen = listen
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where clients connect, once it was started."""
        return self._listen

    @property
    def pid(self) -> int:
        """Process id. Raises RuntimeError while it is not running."""
        if self._process is None:
            raise RuntimeError("the broker process is not running; call start() first")
        return self._process.pid

    def start(self) -> Self:
        """Start and wait until it serves. Raises RuntimeError with its log if it does not."""
        command = [*self._prefix, *MQ, "run", "--json"]
        command += ["--data", str(self.data), "--listen", self._listen]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*command, *self._options], stdout=subprocess.PIPE, stderr=log
            )
        self._process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            self.kill()
            raise RuntimeError(f"the broker did not start:\n{self.log.read_text()}")
        self._listen = json.loads(line)["addresses"][0]
        return self

    def anonymous_bytes(self) -> int:
        """Memory that it holds and no file backs (RssAnon)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024

    def kill(self) -> None:
        """SIGKILL; no effect if it is not running."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP, and wait until none of its threads runs any more; `kill` ends it."""
        os.kill(self.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        while any(_state(task) not in "TD" for task in tasks.iterdir()):
            time.sleep(0.001)

    def stop(self) -> int:
        """SIGTERM, and wait; returns the exit code."""
        return self._end(signal.SIGTERM)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        code = process.wait(TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()
        return code


def _state(task: Path) -> str:
    """One letter: T is stopped, D in the kernel."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: bytes
    err: str

    def ok(self) -> bytes:
        """Its stdout. Raises AssertionError with its stderr if it failed."""
        assert self.code == 0, self.err
        return self.out


def run_mq(*arguments: str, address: str = "", text: bytes = b"") -> Done:
    """Run `mq` with these arguments against the broker at `address`; `text` is its stdin."""
    environment = {**os.environ, "MQ_CONNECT": address} if address else dict(os.environ)
    done = subprocess.run(
        [*MQ, *arguments],
        input=text,
        capture_output=True,
        env=environment,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr.decode())
