"""SIGKILL at the n-th system call, for every n, of a start, a roll (also one taken back), a
checkpoint, a trim, a cut and a clean stop: whatever is left, the next start makes a whole log of
it.

The work is done by syscall_driver.py; strace kills. Every call that changes something is visited
in each run, every opening of a file with `-m long`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = str(Path(__file__).with_name("syscall_driver.py"))
CHANGES = ["pwritev2", "fdatasync", "fsync", "ftruncate", "fallocate", "rename", "unlink", "mkdir"]
WHEN, WHEN_OPENAT = 100, 3000
"""As in the driver."""


def sweep(folder: Path, syscalls: list[str]) -> dict[str, int]:
    """Visit all points and judge what each leaves; the number of points by scenario."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed (apt-get install strace)")
    names = ",".join(f"?{name}" for name in syscalls)
    # Not with --seccomp-bpf: it lets injected signals out.
    inject = [f"inject={names}:signal=KILL:when={WHEN}"]
    if "openat" in syscalls:
        inject.append(f"inject=openat:signal=KILL:when={WHEN_OPENAT}")
    options = ["-f", "-qq", "-o", "/dev/null", "-e", "signal=none", "-e", f"trace={names}"]
    for one in inject:
        options += ["-e", one]
    visit = [sys.executable, DRIVER, "visit", str(folder), *syscalls]
    done = subprocess.run([strace, *options, *visit], capture_output=True, text=True, check=False)
    if "PTRACE" in done.stderr:
        pytest.skip(f"this machine lets nobody trace: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stdout + done.stderr
    judge = [sys.executable, DRIVER, "judge", str(folder)]
    judged = subprocess.run(judge, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    print(judged.stdout)
    return {m[1]: int(m[2]) for m in re.finditer(r"(.+): (\d+) points", judged.stdout)}


@pytest.mark.timeout(600)
def test_a_kill_at_every_change_leaves_a_whole_log(tmp_path: Path) -> None:
    points = sweep(tmp_path, CHANGES)
    assert len(points) == 9 and all(count >= 4 for count in points.values()), points


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_kill_at_every_system_call_leaves_a_whole_log(tmp_path: Path) -> None:
    points = sweep(tmp_path, [*CHANGES, "openat"])
    assert sum(points.values()) > 150, points
