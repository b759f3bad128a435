"""The example plugin is installed as a third party's would be, found, composed and called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "topic-guard"

COMPOSE = """
import json, sys
from cometmq.config import load_config
from cometmq.plugins import compose

composition = compose(load_config("mq.toml", {}, {"plugins": "topic-guard"}))
guard = composition.plugins[-1]

class Session:
    id, client_id, principal, peer_name = 1, "bob", None, "here"

(authorize,) = composition.chain("authorize")
*_, admit = composition.chain("admit")
print(json.dumps({
    "guard": [guard.name, guard.distribution, guard.version, guard.source, guard.hooks],
    "refused": authorize(Session(), "SEND", "audit.eu").reason,
    "admitted": admit(Session(), "SEND", 10) is None,
    "counters": composition.counters()["topic-guard"],
}))
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example installed in it, and nothing fetched from anywhere."""
    target = tmp_path_factory.mktemp("target")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, *offline, "--target", str(target), str(EXAMPLE)], check=True)
    return target


def run(target: Path, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_found_composed_and_called(target: Path, tmp_path: Path) -> None:
    (tmp_path / "mq.toml").write_text('[plugin.topic-guard]\nowned = ["audit.*"]\n')
    told: dict[str, Any] = json.loads(run(target, tmp_path, "-c", COMPOSE))
    assert told["guard"] == [
        "topic-guard",
        "cometmq-topic-guard",
        "1.0.0",
        "named",
        ["authorize", "admit", "before_append"],
    ]
    assert told["refused"].startswith("bob does not own topic audit.eu")
    assert told["admitted"] is True
    assert told["counters"] == {"authorize": [1, 0], "admit": [1, 0], "before_append": [0, 0]}


def test_the_command_line_shows_its_options(target: Path, tmp_path: Path) -> None:
    mq = "from cometmq.cli import main; main()"
    shown = run(target, tmp_path, "-c", mq, "plugins", "show", "topic-guard")
    assert "topic-guard  (cometmq-topic-guard 1.0.0, topic_guard:TopicGuard)" in shown
    assert "request_max_bytes: a whole number of at least 0; default 0" in shown


def test_its_own_tests_pass_on_what_was_installed(target: Path, tmp_path: Path) -> None:
    pytest_quiet = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    assert " passed" in run(target, tmp_path, *pytest_quiet, str(EXAMPLE / "tests"))
