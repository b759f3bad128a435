"""`mq plugins` and `mq config`: what people and scripts see."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cometmq.cli import cli
from cometmq.config import Config
from cometmq.errors import ConfigError, PluginError
from cometmq.plugins.discovery import installed

GUARD = '''
import msgspec

from cometmq.hookspecs import hookimpl


class Options(msgspec.Struct):
    secret: str
    """What nobody
    should know."""
    names: list[str] = []


class Guard:
    """Lets nobody in."""

    name = "listed-guard"
    options = Options
    requires = ("longpoll",)

    @hookimpl
    def authorize(self, session: object) -> None: ...
'''


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed distribution with a good plugin and two that can't be imported."""
    info = tmp_path / "listed-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: listed\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(
        "[cometmq.plugins]\nlisted-guard = listed_guard:Guard\nlisted-gone = no_such_thing:Gone\n"
        "listed-missing = listed_guard:Missing\n"
    )
    (tmp_path / "listed_guard.py").write_text(GUARD)
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.cache_clear()
    yield
    installed.cache_clear()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def output(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*arguments: str) -> Any:
    return json.loads(output(*arguments, "--json"))


@pytest.mark.usefixtures("distribution")
def test_the_list_has_the_enabled_in_order_and_then_the_rest() -> None:
    listed = {it["name"]: it for it in as_json("plugins", "--plugins", "memory,-longpoll")}
    names = list(listed)
    assert names[0] == "standard"
    assert names.index("flush-sync") < names.index("memory") < names.index("commitlog")
    assert listed["memory"]["source"] == "named"
    assert listed["memory"]["slots"] == ["storage"]
    assert listed["longpoll"]["source"] == "available"
    assert "fetch_wait" in listed["longpoll"]["hooks"]
    guard = listed["listed-guard"]
    assert (guard["distribution"], guard["version"]) == ("listed", "2.0")
    assert guard["hooks"] == ["authorize"]


@pytest.mark.usefixtures("distribution")
def test_a_plugin_that_can_not_be_imported_does_not_spoil_the_list() -> None:
    listed = {it["name"]: it for it in as_json("plugins")}
    assert listed["listed-gone"]["error"] == "No module named 'no_such_thing'"
    assert "can't be imported from listed_guard:Missing" in listed["listed-missing"]["error"]
    assert "No module named 'no_such_thing'" in output("plugins")


def test_a_plugin_without_its_package_says_in_its_line_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    for module in [name for name in sys.modules if name.startswith("cometmq_transports.zeromq")]:
        monkeypatch.delitem(sys.modules, module)
    (line,) = [line for line in output("plugins").splitlines() if line.startswith("zeromq ")]
    assert line.count("pyzmq") == 1 and "the transport `zeromq` needs pyzmq" in line
    assert line.endswith("pip install 'cometmq[zeromq]'")


def test_the_list_for_people_has_a_line_a_plugin() -> None:
    lines = output("plugins").splitlines()
    assert lines[0].split() == ["name", "version", "distribution", "source", "slots", "hooks"]
    assert any(line.startswith("commitlog ") and " storage " in line for line in lines)


@pytest.mark.usefixtures("distribution")
def test_show_tells_options_hooks_and_requirements() -> None:
    text = output("plugins", "show", "listed-guard")
    assert text == (
        "listed-guard  (listed 2.0, listed_guard:Guard)\n"
        "\n"
        "Lets nobody in.\n"
        "\n"
        "options, in [plugin.listed-guard]:\n"
        "  secret: text; needed\n"
        "      What nobody should know.\n"
        "  names: a list, each item text; default []\n"
        "hooks: authorize\n"
        "requires: longpoll\n"
    )
    shown = as_json("plugins", "show", "listed-guard")
    assert shown["options"][0]["required"] is True
    assert shown["options"][1]["default"] == []


def test_show_of_an_unknown_name_offers_close_ones() -> None:
    result = run("plugins", "show", "longpol")
    assert isinstance(result.exception, PluginError)
    assert "there is no plugin `longpol` (asked for); did you mean longpoll?" in str(
        result.exception
    )


def test_check_says_ok_or_the_mistake(tmp_path: Path) -> None:
    path = tmp_path / "mq.toml"
    path.write_text("[plugin.longpoll]\nwait_max_ms = 10\n")
    assert output("config", "check", "--config", str(path)) == "ok\n"
    assert as_json("config", "check", "--plugins", "memory")["plugins"][-1] == "memory"
    path.write_text("[plugin.longpoll]\nwait_max = 10\n")
    result = run("config", "check", "--config", str(path))
    assert isinstance(result.exception, ConfigError)
    message = str(result.exception)
    assert message.startswith(f"{path}:2: plugin `longpoll` (cometmq ")
    assert message.endswith(") has no option `wait_max`; did you mean wait_max_ms?")


def test_check_notes_variables_that_set_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQ_CONNECT", "tcp://127.0.0.1:1")
    monkeypatch.setenv("MQ_BROKER__NAME", "b")
    monkeypatch.setenv("MQ_DATA", "/data")
    assert as_json("config", "check")["unknown"] == ["MQ_DATA"]
    result = run("config", "check")
    assert result.exit_code == 0
    assert "note: the variable MQ_DATA sets nothing" in result.stderr


@pytest.mark.usefixtures("distribution")
def test_show_of_a_plugin_without_a_word_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = importlib.import_module("listed_guard").Guard
    monkeypatch.setattr(guard, "__doc__", None)
    assert "(no description)" in output("plugins", "show", "listed-guard")


def test_show_prints_a_file_that_gives_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQ_BROKER__DEFAULT_QUEUES", "8")
    path = tmp_path / "mq.toml"
    path.write_text('[broker]\nname = "cologne"\n[plugin.flush-async]\nflush_interval_ms = 9\n')
    text = output("config", "show", "--config", str(path), "--plugins", "memory")
    tables = tomllib.loads(text)
    assert tables["broker"]["default_queues"] == 8
    assert tables["broker"]["listen"] == list(Config().broker.listen)
    assert tables["broker"]["name"] == "cologne"
    assert tables["plugins"]["enable"] == ["memory"]
    assert tables["plugin"]["longpoll"]["wait_max_ms"] > 0
    assert tables["plugin"]["flush-async"] == {"flush_interval_ms": 9}
    lines = {line.split(" ")[0]: line.rpartition("  # ")[2] for line in text.splitlines() if line}
    assert lines["name"] == f"{path}:2"
    assert lines["default_queues"] == "MQ_BROKER__DEFAULT_QUEUES"
    assert lines["enable"] == "command line"
    assert "\n# level is not set: disk, by the plugins" in text
    assert lines["segment_bytes"] == "default"


def test_show_as_json_has_value_and_source() -> None:
    shown = as_json("config", "show", "--plugins", "memory")
    assert shown["plugins"]["enable"] == {"value": ["memory"], "source": "command line"}
    assert shown["broker"]["level"] == {"value": None, "source": "default"}
