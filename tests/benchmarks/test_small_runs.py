"""Tiny runs of the measurements that need no peer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LINES = {
    "starts": [
        r"on an empty folder: [\d.]+ s",
        *[r"after a clean stop: [\d.]+ s"] * 3,
        r"after a kill: [\d.]+ s",
        *[r"indexes of batches of 2?[13]0? x \d+ B: [\d,]+ batches/s, [\d,]+ MB/s of bodies"] * 3,
    ],
    "asleep": [
        rf"{what} +\d+ +\d+ +\d+ us, [\d.]+ times the bare one"
        for what in ("bare round trip", "send, never spinning", "send, as by default")
    ],
}


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("starts", ["--gib", "0.001", "--batches", "64"]),
        ("asleep", ["--turns", "1", "--count", "10"]),
    ],
)
def test_a_run(module: str, options: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *options],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(LINES[module])
    for line, wanted in zip(lines, LINES[module], strict=True):
        assert re.fullmatch(wanted, line)
    assert list(tmp_path.iterdir()) == []
