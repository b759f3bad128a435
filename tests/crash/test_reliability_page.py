"""docs/reliability.md: every promise has a test, and every suite here is behind a promise."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


def links(text: str) -> list[str]:
    return re.findall(r"\]\((\.\./[^)]+)\)", text)


def rows_of(text: str) -> list[str]:
    """Those of all tables, without their heads."""
    lines = text.splitlines()
    heads = {
        at + off for at, line in enumerate(lines) if line.startswith("| ---") for off in (-1, 0)
    }
    return [line for at, line in enumerate(lines) if line.startswith("| ") and at not in heads]


def test_every_row_links_to_tests_that_exist() -> None:
    text = PAGE.read_text()
    rows = rows_of(text)
    assert len(rows) > 20
    for row in rows:
        assert links(row.split("|")[-2]), f"no test holds: {row[:60]}"
    missing = [link for link in links(text) if not (PAGE.parent / link).resolve().exists()]
    assert not missing


def test_every_suite_is_named_on_the_page() -> None:
    named = {Path(link).name for link in links(PAGE.read_text())}
    tests = Path(__file__).parents[1]
    suites = {path.name for it in ("crash", "guests") for path in (tests / it).glob("test_*.py")}
    assert suites - named <= {Path(__file__).name}
