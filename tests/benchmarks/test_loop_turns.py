"""How late the loop runs: the reckoning, and a tiny run of the script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.loop_turns import lateness_ms

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("turns_s", "expected_ms"),
    [
        ([], 0),
        ([0.001] * 10, 0),  # busy for 10 ms of 10 s: 99.9 % of all timers find the loop idle
        ([0.010] * 100, 9.9),  # 1 s busy; later than 9.9 ms for 0.1 ms of each
        ([0.010] * 100 + [1.0], 990),
    ],
)
def test_late_is_who_is_due_while_a_turn_goes_on(turns_s: list[float], expected_ms: float) -> None:
    assert lateness_ms(turns_s, 10.0, 99.9) == pytest.approx(expected_ms, abs=0.01)


def test_a_run(tmp_path: Path) -> None:
    options = ["--gib", "0.002", "--peak-count", "2000", "--segment-mib", "1"]
    command = [sys.executable, "-m", "benchmarks.loop_turns", *options]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^peak [\d,]+/s, 0.002 GiB at 70% of it, [\d,]+ turns$", done.stdout, re.M)
    assert re.search(r"^own: p99.9 [\d.]+ ms, longest turn [\d.]+ ms$", done.stdout, re.M)
    assert re.search(r"^RssAnon \d+ to \d+ MiB$", done.stdout, re.M)
    assert list(tmp_path.iterdir()) == []
