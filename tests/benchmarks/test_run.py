"""The command itself, with tiny counts and on CometMQ alone: its tables have their form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.results import Result, read

ROOT = Path(__file__).resolve().parents[2]
STEPS = [
    "publish-1024-memory",
    "consume-1024-memory",
    "one-1024-disk",
    "paced-1000/s-100-memory",
]


def run(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "--out", str(out), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)


def tables(text: str) -> dict[str, list[list[str]]]:
    """The tables of a report by heading: the cells of each line."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif line.startswith("|"):
            found.setdefault(heading, []).append(line.strip("| ").split(" | "))
    return found


def test_a_run_on_cometmq(tmp_path: Path) -> None:
    options = ["--peers", "cometmq", "--workloads", ",".join(STEPS), "--repetitions", "1"]
    done = run(tmp_path / "out", *options, "--scale", "0.001", "--data", str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "report.md").read_text()
    assert "What failed" not in text, done.stderr
    found = tables(text)
    publish = found["publish, class memory"]
    assert publish[0][:6] == ["step", "peer", "msgs/s min", "median", "max", "MB/s"]
    assert [line[:2] for line in publish[2:]] == [
        ["publish-1024-memory", "cometmq send_many"],
        ["publish-1024-memory", "cometmq send_soon"],
    ]
    assert [line[0] for line in found["Limits of the machine"][2:5]] == [
        "sequential write, new pages",
        "sequential write, warm pages",
        "sequential write, 1 MiB at a time, each synced",
    ]
    results = read([tmp_path / "out" / "results.jsonl"]).results
    assert {result.step.name for result in results} == set(STEPS)
    for result in results:
        check(result)
    assert not list((tmp_path / "data").iterdir())


def check(result: Result) -> None:
    """What every row must have."""
    assert not result.error
    assert result.rate is not None and result.rate > 0
    assert result.rss_anon_mib is not None and result.rss_anon_mib > 1
    assert (result.latency is not None) == (result.step.workload in ("one", "paced"))
    if result.step.workload != "consume":
        assert result.written_per_body_byte is not None and result.written_per_body_byte > 0


def test_a_mistake_is_one_sentence(tmp_path: Path) -> None:
    done = run(tmp_path / "out", "--peers", "kafak")
    assert done.returncode == 2
    assert "no peer is called kafak; there are cometmq, kafka" in done.stderr
    assert "Traceback" not in done.stderr
