"""Counts the calls that force data to the disk, of running processes, at next to no cost."""

from __future__ import annotations

import functools
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence

CALLS = ("fsync", "fdatasync", "msync", "sync_file_range")
ATTACH_S = 0.3


def _perf(pids: Sequence[int]) -> list[str]:
    events = ",".join(f"syscalls:sys_enter_{call}" for call in CALLS)
    return ["perf", "stat", "-x", ",", "-e", events, "-p", ",".join(map(str, pids))]


@functools.cache
def why_not() -> str:
    """Why syncs can't be counted here, or ""."""
    if shutil.which("perf") is None:
        return "perf is not installed"
    probe = ["perf", "stat", "-x", ",", "-e", f"syscalls:sys_enter_{CALLS[0]}", "true"]
    outcome = subprocess.run(probe, capture_output=True, text=True)
    return "" if outcome.returncode == 0 else f"perf may not count system calls: {outcome.stderr}"


class SyncCounter:
    """Counts from entering to leaving; `count` is None where counting is impossible."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.count: int | None = None
        self._pids = pids
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> SyncCounter:
        if not why_not():
            self._process = subprocess.Popen(
                _perf(self._pids), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
            )
            # It says nothing when it has attached to all threads.
            time.sleep(ATTACH_S)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            _, report = self._process.communicate(timeout=30)
            self.count = total(report)


def total(report: str) -> int:
    """The sum over a report of `perf stat -x ,`; an event that never came counts as none."""
    first = (line.partition(",")[0] for line in report.splitlines() if "syscalls:" in line)
    return sum(int(number) for number in first if number.isdigit())
