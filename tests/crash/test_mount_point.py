"""A data folder that is a mount point holds a `lost+found` which only its owner may read.

Method: a loop-mounted ext4 whose `lost+found` belongs to somebody else, and a broker without the
right to read what is not its own (as any user but root).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.testing.loop_disk import LoopDisk, why_not
from cometmq.testing.process import MQ, run_mq

UNPRIVILEGED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")
OTHER_USER = 12345


@pytest.fixture
def mount_point(tmp_path: Path) -> Iterator[Path]:
    reason = why_not("ext4") or ("" if shutil.which("setpriv") else "setpriv is not installed")
    if reason:
        pytest.skip(reason)
    disk = LoopDisk(tmp_path, "ext4", 128 << 20)
    os.chown(disk.mount_point / "lost+found", OTHER_USER, OTHER_USER)
    yield disk.mount_point
    disk.remove()


def test_a_broker_that_is_not_root_starts_on_a_mount_point(mount_point: Path) -> None:
    listing = subprocess.run(
        [*UNPRIVILEGED, "ls", str(mount_point / "lost+found")], capture_output=True
    )
    assert listing.returncode != 0, "the broker would be allowed to read it: nothing is proven"
    for start in range(2):
        broker = subprocess.Popen(
            [*UNPRIVILEGED, *MQ, "run", "--json", "--data", str(mount_point)]
            + ["--listen", "tcp://127.0.0.1:0"],
            stdout=subprocess.PIPE,
        )
        try:
            assert broker.stdout is not None
            address = json.loads(broker.stdout.readline())["addresses"][0]
            run_mq("produce", "t", address=address, text=b"line\n").ok()
            out = run_mq("consume", "t", address=address).ok()
            assert out == b"line\n" * (start + 1)
        finally:
            broker.terminate()
            assert broker.wait(60) == 0
            assert broker.stdout is not None
            broker.stdout.close()
