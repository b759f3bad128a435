"""Processes: their counters in /proc, and starting and stopping them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 40.0


class Counters(msgspec.Struct):
    """What some processes together have used so far, and the machine as a whole."""

    cpu_s: float
    machine_cpu_s: float
    written_bytes: int
    rss_anon_mib: float
    rss_file_mib: float
    time_s: float


def read_counters(pids: Sequence[int]) -> Counters:
    """Counters of `pids` with all their threads; raises FileNotFoundError if one is gone."""
    cpu_ticks = written = anon = file = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu_ticks += int(fields[11]) + int(fields[12])
        io = _table(f"/proc/{pid}/io")
        # Bytes are counted when a page gets dirty; what was deleted before is taken off again.
        written += io["write_bytes"] - io["cancelled_write_bytes"]
        status = _table(f"/proc/{pid}/status")
        anon += status["RssAnon"]
        file += status["RssFile"]
    busy = [int(field) for field in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
    idle = busy[3] + busy[4]
    return Counters(
        cpu_ticks / TICKS_PER_S,
        (sum(busy) - idle) / TICKS_PER_S,
        written,
        anon / 1024,
        file / 1024,
        time.monotonic(),
    )


def _table(path: str) -> dict[str, int]:
    """The `name: number ...` lines of a file in /proc."""
    table: dict[str, int] = {}
    for line in Path(path).read_text().splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            table[name] = int(words[0])
    return table


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its output in `log`, stopped by SIGTERM (and SIGKILL if that is ignored)."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            cwd=log.parent,
        )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[Any]) -> None:
    """End a process and wait until it is gone."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once something listens on `port`; raises RuntimeError with the log's end if not."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"the broker does not listen on its port {port}: {log_end(log)}")


def log_end(log: Path) -> str:
    """The last words of a log, for an error message."""
    text = log.read_text(errors="replace").strip() if log.exists() else ""
    return text[-400:] or "it wrote no log"
