"""docs/hooks.md names every hook with its exact arguments, and each example is a sound plugin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cometmq.hookspecs import HOT, SLOTS
from cometmq.plugins import Candidate
from cometmq.plugins.verify import hook_names, register, spec_arguments

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hooks.md"
SECTIONS = {
    match[1]: (match[2], match[3])
    for match in re.finditer(
        r"^### `(\w+)\((.*?)\)`\n(.*?)(?=^##|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
}
SPECS = spec_arguments()


def test_the_page_has_exactly_the_hooks_there_are() -> None:
    assert list(SECTIONS) == list(SPECS)


@pytest.mark.parametrize("hook", SPECS)
def test_the_arguments_are_those_of_the_spec(hook: str) -> None:
    assert SECTIONS[hook][0] == ", ".join(SPECS[hook])


@pytest.mark.parametrize("hook", SPECS)
def test_the_kind_is_said_first(hook: str) -> None:
    kind = "Slot" if hook in SLOTS else "Hot" if hook in HOT else "Cold"
    assert re.match(rf"\s*{kind}\b", SECTIONS[hook][1])


@pytest.mark.parametrize("hook", SPECS)
def test_the_example_runs_and_has_a_plugin_with_that_hook(hook: str) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", SECTIONS[hook][1], re.MULTILINE | re.DOTALL)
    assert "\nassert " in code
    # A name of its own, so that what the example defines has a module to belong to.
    scope: dict[str, Any] = {"__name__": f"example_of_{hook}"}
    exec(compile(code, f"{PAGE.name}: {hook}", "exec"), scope)
    plugins = [
        it
        for it in scope.values()
        if isinstance(it, type) and it.__module__ == scope["__name__"] and hook_names(it)
    ]
    assert [hook in hook_names(plugin) for plugin in plugins] == [True]
    plugin = plugins[0]()
    assert hook in register([(Candidate.given(plugin.name, plugin), plugin)])[plugin.name]
