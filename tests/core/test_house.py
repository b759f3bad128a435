"""The house is tidy: what CONTRIBUTING.md asks of every module and no other tool looks at."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[2]
ROOTS = ("core/cometmq", "plugins/cometmq_plugins", "transports/cometmq_transports")
LINES_MAX = 400
FUNCTION_LINES_MAX = 70
WALK_MAX = 6

OUTSIDE = frozenset(
    "fcntl glob multiprocessing mmap pathlib random secrets select shutil signal socket subprocess"
    " tempfile threading time uuid".split()
)
"""Modules that lead past the environment."""
PURE = ("batch", "broker", "config", "log", "plugins", "protocol")
"""Folders of the core that, like the plugins, have nothing to do with the outside."""
ALLOWED = {
    # Its waits must be real ones, in a thread that no loop and no virtual clock can hold up.
    "core/cometmq/broker/watchdog.py": {"threading"},
    "core/cometmq/broker/loop_pulse.py": {"threading"},
}
PATH_ONLY = {"os.path"}
TIMED = {"asyncio.sleep", "asyncio.to_thread", "datetime.now", "datetime.utcnow", "datetime.today"}
TIMED_METHODS = {"call_later", "run_in_executor"}


@cache
def modules() -> list[Path]:
    """All Python files of the three roots."""
    return sorted(path for root in ROOTS for path in (HOUSE / root).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def name_of(path: Path) -> str:
    return path.relative_to(HOUSE).as_posix()


def pure_modules() -> list[Path]:
    """Those that may reach the outside through the environment only."""
    folders = [f"core/cometmq/{folder}/" for folder in PURE]
    folders.append("plugins/cometmq_plugins/")
    # A plugin's command runs in the user's process, as those of the core do.
    return [
        path
        for path in modules()
        if name_of(path).startswith(tuple(folders)) and path.name != "command.py"
    ]


def dotted(node: ast.expr) -> str:
    """`os.path.join` for the expression of that name; empty for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported(tree: ast.Module) -> set[str]:
    """The first names of all modules that are imported anywhere in a file."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    return names


def past_the_environment(tree: ast.Module) -> Iterator[str]:
    """Calls that touch clock, threads or files without asking the environment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name == "open" or name in TIMED or method in TIMED_METHODS:
                yield f"line {node.lineno}: {name or method}()"
            elif name.startswith("os.") and name.rpartition(".")[0] not in PATH_ONLY:
                yield f"line {node.lineno}: {name}()"


# --- size and shape -----------------------------------------------------------------------------


def test_no_module_is_too_long() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in modules()}
    assert lengths, "no module was found at all"
    assert {name: length for name, length in lengths.items() if length > LINES_MAX} == {}


def test_no_function_is_too_long() -> None:
    long = [
        f"{name_of(path)}: {function.name}"
        for path in modules()
        for function in functions(path)
        if (function.end_lineno or 0) - function.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_every_module_says_what_it_is() -> None:
    assert [name_of(path) for path in modules() if not ast.get_docstring(tree_of(path))] == []


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"#.*\b(?:TODO|FIXME|XXX|HACK)\b")
    assert [name_of(path) for path in modules() if later.search(path.read_text())] == []


def test_no_error_vanishes_without_a_word() -> None:
    silent = []
    for path in modules():
        lines = path.read_text().splitlines()
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ExceptHandler):
                only = node.body[0] if len(node.body) == 1 else None
                mute = isinstance(only, ast.Pass) and "#" not in lines[only.lineno - 1]
                if node.type is None or mute:
                    silent.append(f"{name_of(path)}, line {node.lineno}")
    assert silent == []


def test_what_a_package_offers_is_there() -> None:
    for path in modules():
        for node in tree_of(path).body:
            if isinstance(node, ast.Assign) and dotted(node.targets[0]) == "__all__":
                names = ast.literal_eval(node.value)
                assert len(names) == len(set(names)), name_of(path)
                known = set(re.findall(r"\w+", path.read_text().partition("__all__")[0]))
                known |= set(re.findall(r"^\s*(?:def|class) (\w+)", path.read_text(), re.MULTILINE))
                known |= set(re.findall(r"^(\w+)\b.* = ", path.read_text(), re.MULTILINE))
                assert set(names) <= known, name_of(path)


# --- who may do what ----------------------------------------------------------------------------


def test_three_roots_and_no_other() -> None:
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert tuple(wheel["packages"]) == ROOTS
    for root in ROOTS:
        folder = HOUSE / root
        assert (folder / "py.typed").exists(), f"{root} does not say that it is typed"
        packages = [path.parent.name for path in folder.parent.glob("*/__init__.py")]
        assert packages == [folder.name]


@pytest.mark.parametrize("path", pure_modules(), ids=name_of)
def test_only_the_environment_touches_the_outside(path: Path) -> None:
    tree = tree_of(path)
    assert (imported(tree) & OUTSIDE) - ALLOWED.get(name_of(path), set()) == set()
    assert list(past_the_environment(tree)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from random import choice",
        "open('x')",
        "os.unlink('x')",
        "asyncio.sleep(1)",
        "datetime.now(UTC)",
        "asyncio.get_running_loop().call_later(1, f)",
    ],
)
def test_this_would_be_found(source: str) -> None:
    tree = ast.parse(source)
    assert imported(tree) & OUTSIDE or list(past_the_environment(tree))


@pytest.mark.parametrize("path", ["os.path.join('a')", "clock.sleep(1)", "files.open('x')"])
def test_this_is_no_way_past_the_environment(path: str) -> None:
    assert list(past_the_environment(ast.parse(path))) == []


def test_the_core_names_no_feature() -> None:
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text())
    plugins = set(project["project"]["entry-points"]["cometmq.plugins"])
    # Words of everybody's, which mean other things in the core; and the one name that it knows.
    names = plugins - {"circle", "cleanup", "manual", "memory", "standard", "sticky"}
    named = re.compile(rf"\b(?:{'|'.join(names)}|{'|'.join(names).replace('-', '_')})\b")
    found = [
        f"{name_of(path)}: {match[0]}"
        for path in modules()
        if name_of(path).startswith("core/") and "/testing/" not in name_of(path)
        for match in named.finditer(path.read_text())
    ]
    assert found == []


# --- the walks ----------------------------------------------------------------------------------


def walks() -> dict[str, list[str]]:
    """The modules of each walk in docs/architecture.md, by its heading."""
    page = (HOUSE / "docs" / "architecture.md").read_text()
    sections = re.findall(r"^## (A message's way \w+)\n(.*?)(?=^## )", page, re.M | re.S)
    return {title: re.findall(r"^\| \d+ \| `(\S+)` \|", text, re.M) for title, text in sections}


def test_the_walks_meet_few_modules_and_none_twice() -> None:
    assert len(walks()) == 2
    for title, met in walks().items():
        assert 3 <= len(met) <= WALK_MAX, title
        assert len(set(met)) == len(met), title
        for module in met:
            folder = {"cometmq_plugins": "plugins", "cometmq_transports": "transports"}.get(
                module.partition("/")[0], "core/cometmq"
            )
            assert (HOUSE / folder / module).exists(), f"{title}: there is no {module}"


# --- decisions ----------------------------------------------------------------------------------


def test_every_decision_is_in_the_list() -> None:
    folder = HOUSE / "docs" / "decisions"
    pages = {path.name for path in folder.glob("*.md")} - {"README.md"}
    assert pages
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text())) == pages
