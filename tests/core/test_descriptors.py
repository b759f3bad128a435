"""A broker's settings fit into what its process may open, and who runs it is told."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from cometmq.cli.descriptors import RESERVED, connections_of, fitted, highest_limit, shortage
from cometmq.config import Config
from cometmq.interfaces import Limits

RAISED = """
import resource
from cometmq.cli.descriptors import raise_limit
print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("descriptors", "wanted"), [(10_256, 10_000), (1 << 20, 500)])
def test_enough_is_no_news(descriptors: int, wanted: int) -> None:
    config = Config(limits=Limits(connections=wanted))
    assert shortage(config, descriptors) == ""
    assert fitted(config, descriptors) == config


@pytest.mark.parametrize("descriptors", [64, 300, 1024, 10_255])
def test_too_few_are_told_and_bound_the_connections(descriptors: int) -> None:
    config = Config(limits=Limits(parked=7))
    limits = fitted(config, descriptors).limits
    assert 0 < limits.connections < min(descriptors, 10_000) and limits.parked == 7
    said = shortage(config, descriptors)
    assert f"may open {descriptors} files" in said and f"{limits.connections} connections" in said
    assert f"raise the limit (`ulimit -n`, LimitNOFILE) to {10_000 + RESERVED}" in said
    assert shortage(fitted(config, descriptors), descriptors) == ""


def test_the_files_keep_their_share() -> None:
    assert connections_of(1024) == 1024 - RESERVED
    assert connections_of(64) == 16 and connections_of(1) == 1


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    done = subprocess.run(
        ["prlimit", "--nofile=100:200", sys.executable, "-c", RAISED],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["200", "200", "200"]
    assert highest_limit() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0]
