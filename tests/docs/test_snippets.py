"""Every snippet of the README and the docs runs: Python, shell and TOML.

A block preceded by `<!-- not run here: reason -->`, or by the marker of the install and test
commands (which `.ci/run` runs), is left out. Blocks of one page run in order and share a folder;
the address of the docs' broker is replaced by that of a real one, started for the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cometmq.config import load_config
from cometmq.plugins import compose
from cometmq.testing import EmbeddedBroker

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"(?P<note><!--[^\n]*-->\n)?^```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.M | re.S)
DOCS_ADDRESS = "tcp://127.0.0.1:7800"


class Snippet(NamedTuple):
    kind: str
    code: str
    line: int
    note: str


def snippets(page: Path) -> Iterator[Snippet]:
    """The fenced blocks of a page that say their language and are to be run."""
    text = page.read_text()
    for match in FENCE.finditer(text):
        note = match["note"] or ""
        line = text.count("\n", 0, match.start()) + 1
        left_out = "not run here" in note or "-command" in note
        if match["kind"] in ("python", "sh", "toml") and not left_out:
            yield Snippet(match["kind"], match["code"], line, note)


def run_snippet(snippet: Snippet, page: Path, folder: Path, address: str) -> None:
    """Run one block; raises with its output if it fails."""
    code = snippet.code.replace(DOCS_ADDRESS, address)
    if snippet.kind == "toml":
        path = folder / "mq.toml"
        path.write_text(code)
        compose(load_config(str(path), {}, {}))
        return
    if snippet.kind == "python":
        file = folder / f"test_snippet_{snippet.line}.py"
        file.write_text(code)
        is_test = "\ndef test_" in code
        command = [
            sys.executable,
            *(["-m", "pytest", "-q", "-p", "no:cacheprovider"] if is_test else []),
            str(file),
        ]
    else:
        command = ["bash", "-euo", "pipefail", "-c", code]
    environment = {
        **os.environ,
        "MQ_CONNECT": address,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    where = f"{page.relative_to(ROOT)}:{snippet.line}"
    assert done.returncode == 0, f"{where} failed:\n{code}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, tmp_path: Path) -> None:
    blocks = list(snippets(page))
    if not blocks:
        return
    with EmbeddedBroker(listen="tcp://127.0.0.1:0", data=str(tmp_path / "mq-data")) as broker:
        for snippet in blocks:
            run_snippet(snippet, page, tmp_path, broker.address)


def test_links_lead_somewhere() -> None:
    missing = []
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            if not (page.parent / target).exists():
                missing.append(f"{page.relative_to(ROOT)}: {target}")
    assert not missing
