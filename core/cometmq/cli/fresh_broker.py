"""A broker process to measure: what `mq bench` and the benchmark against other brokers share."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

import click
import msgspec

STOP_TIMEOUT_S = 30.0


class Target(msgspec.Struct):
    """The broker under test; `pid` is 0 when it is not ours."""

    address: str
    pid: int = 0

    def cpu_s(self) -> float:
        """CPU seconds that the broker's process has used so far."""
        if not self.pid:
            return 0.0
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def fresh_broker(
    plugins: str, below: str | None = None, errors: IO[bytes] | None = None
) -> Iterator[Target]:
    """`mq run` on an empty folder and a free port; stopped and removed at the end.

    The folder is made in `below` (None: the current one); the broker's log goes to `errors`.
    Raises ClickException when it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=below or os.getcwd()) as folder:
        command = [sys.executable, "-m", "cometmq.cli", "run", "--json", "--data", folder]
        command += ["--listen", "tcp://127.0.0.1:0"]
        if plugins:
            command += ["--plugins", plugins]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise click.ClickException("the broker did not start; its own message says why")
            yield Target(json.loads(line)["addresses"][0], process.pid)
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)
            if process.stdout is not None:
                process.stdout.close()
