"""Rights that a broker lacks.

What `mq doctor` says of the next start is what the next start does, and a broker that serves goes
on with what it has open.

Method: a process without the right to pass over rights (as any user but root), which takes them
away from its own files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cometmq.testing import EmbeddedBroker
from cometmq.testing.loop_disk import LoopDisk, why_not
from cometmq.testing.process import run_mq

DRIVER = Path(__file__).with_name("rights_driver.py")
UNPRIVILEGED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")

HARMLESS = ["0555 .", "0400 log/reserve"]
FATAL = {
    "0555 log": "log",
    "0444 lock": "lock",
    "0000 lock": "lock",
    "0400 log/*.seg": ".seg",
    "0000 log/*.seg": ".seg",
    "0000 node": "node",
    "0000 log": "log",
    "0600 .": "data",
}
"""Mode and names, and which file the doctor has to name."""


def found(folder: Path, job: str, states: list[str]) -> dict[str, Any]:
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not installed")
        prefix = UNPRIVILEGED
    done = subprocess.run(
        [*prefix, sys.executable, str(DRIVER), str(folder), job, *states],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("job", ["start", "empty"])
def test_the_doctor_knows_what_a_start_may_write(tmp_path: Path, job: str) -> None:
    """Also where somebody took away the segments."""
    fatal = {state: name for state, name in FATAL.items() if job == "start" or ".seg" not in state}
    answers = found(tmp_path, job, [*HARMLESS, *fatal])
    for state in HARMLESS:
        assert answers[state] == {"doctor": ["writes", []], "start": "writes"}, state
    for state, name in fatal.items():
        (starts, errors), start = answers[state]["doctor"], answers[state]["start"]
        assert starts == "fails" and name in errors[0] and "Permission denied" in errors[0], state
        assert "Permission denied" in start and "right" in start or "may read" in start, state


def test_a_broker_that_may_make_no_segment_goes_on_in_the_one_it_has(tmp_path: Path) -> None:
    answers = found(tmp_path, "roll", ["0555 log", "0000 log", "0000 ."])
    for state, answer in answers.items():
        assert answer["sent"] == list(range(answer["sent"][0], answer["sent"][0] + 50)), state
        _, began, kept, rolled = answer["segments"]
        assert began == kept < rolled, state
        assert answer["after"] == "writes", state


def test_a_start_on_a_read_only_disk_fails_as_the_doctor_says(tmp_path: Path) -> None:
    if reason := why_not("ext4"):
        pytest.skip(reason)
    disk = LoopDisk(tmp_path, "ext4", 128 << 20)
    try:
        data = disk.mount_point / "data"
        shutil.copytree(written(tmp_path), data)
        subprocess.run(["mount", "-o", "remount,ro", str(disk.mount_point)], check=True)
        doctor = run_mq("doctor", str(data))
        told = doctor.out.decode()
        assert doctor.code == 1 and "the next start fails" in told
        assert f"{data}/lock can't be written" in told and "mount it writable again" in told
        start = run_mq("run", "--data", str(data), "--listen", "tcp://127.0.0.1:0")
        assert start.code == 1 and "Read-only file system" in start.err
        assert "mount it writable again" in start.err
    finally:
        disk.remove()


def written(folder: Path) -> Path:
    """A log that somebody wrote."""
    with EmbeddedBroker(data=str(folder / "written")):
        pass
    return folder / "written"
