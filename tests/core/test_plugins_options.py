"""Options of plugins: strict, and each mistake with its place, its owner and what is allowed."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest

from cometmq.config import load_config
from cometmq.errors import ConfigError
from cometmq.hookspecs import hookimpl
from cometmq.plugins import Composition, Plugin, compose


class Standard(Plugin):
    name = "standard"

    @hookimpl
    def storage(self) -> str:
        return "storage"

    @hookimpl
    def flush_policy(self) -> str:
        return "flush"


class Options(msgspec.Struct, frozen=True):
    wait_max_ms: Annotated[int, msgspec.Meta(ge=1)] = 15_000
    mode: Literal["strict", "lax"] = "strict"
    names: tuple[str, ...] = ()
    ratio: float = 0.5

    def __post_init__(self) -> None:
        if self.mode == "lax" and self.names:
            raise ValueError("names have no effect in mode lax")


class Guard(Plugin):
    name = "guard"
    options = Options

    def __init__(self, options: Options) -> None:
        self.given = options


class Needy(Plugin):
    class Needs(msgspec.Struct, frozen=True):
        secret: str

    name = "needy"
    options = Needs

    def __init__(self, options: Needs) -> None:
        self.given = options


class Bare(Plugin):
    name = "bare"


def composed(
    text: str, plugins: str = "guard", environ: dict[str, str] | None = None
) -> Composition:
    config = load_config(
        "mq.toml", environ or {}, {"plugins": plugins}, read_file=lambda _: text.encode()
    )
    kinds = (Standard, Guard, Needy, Bare)
    return compose(config, extra_plugins={it.name: it for it in kinds}, entry_points=())


def mistake(text: str, plugins: str = "guard", environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        composed(text, plugins, environ)
    return str(caught.value)


def test_options_come_typed() -> None:
    text = '[plugin.guard]\nwait_max_ms = 1\nnames = ["a"]\nratio = 1\n'
    assert composed(text).plugins[-1].options == Options(1, "strict", ("a",), 1.0)


def test_options_may_come_from_variables() -> None:
    environ = {
        "MQ_PLUGIN__GUARD__WAIT_MAX_MS": "7",
        "MQ_PLUGIN__GUARD__NAMES": "a,b",
        "MQ_PLUGIN__GUARD__RATIO": "0.25",
    }
    assert composed("", environ=environ).plugins[-1].options == Options(
        7, "strict", ("a", "b"), 0.25
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("wait_ms = 1", "plugin `guard` (given directly) has no option `wait_ms`; did you mean"),
        (
            'wait_max_ms = "1"',
            "option `wait_max_ms` of plugin `guard` (given directly) is '1', but it must be a "
            "whole number of at least 1",
        ),
        (
            "wait_max_ms = 0",
            "option `wait_max_ms` of plugin `guard` (given directly) is 0, but it must be a whole "
            "number of at least 1",
        ),
        (
            'mode = "loose"',
            "option `mode` of plugin `guard` (given directly) is 'loose', but it must be one of "
            "lax, strict",
        ),
        (
            'names = "a"',
            "option `names` of plugin `guard` (given directly) is 'a', but it must be a list, each "
            "item text",
        ),
        (
            'ratio = "x"',
            "option `ratio` of plugin `guard` (given directly) is 'x', but it must be a number",
        ),
    ],
)
def test_a_wrong_option_names_file_and_line(line: str, expected: str) -> None:
    assert mistake(f"\n[plugin.guard]\n# why\n{line}\n").startswith(f"mq.toml:4: {expected}")


def test_a_wrong_option_from_a_variable_names_the_variable() -> None:
    message = mistake("", environ={"MQ_PLUGIN__GUARD__RATIO": "x"})
    assert message.startswith("MQ_PLUGIN__GUARD__RATIO: option `ratio` of plugin `guard`")


def test_options_that_contradict_each_other_name_their_places() -> None:
    text = '[plugin.guard]\nmode = "lax"\nnames = ["a"]\n'
    assert mistake(text) == (
        "options of plugin `guard` (given directly) don't fit: names have no effect in mode lax "
        "(mq.toml:2, mq.toml:3)"
    )


def test_an_option_without_default_is_asked_for() -> None:
    assert mistake("", "needy") == (
        "plugin `needy` (given directly) needs the option `secret`, text; write it under "
        "[plugin.needy]"
    )


def test_a_plugin_without_options_takes_none() -> None:
    assert mistake("[plugin.bare]\nx = 1\n", "bare") == (
        "mq.toml:2: plugin `bare` (given directly) takes no options; remove `x`"
    )


def test_a_table_of_a_plugin_that_is_not_there_is_a_typing_slip() -> None:
    assert mistake("[plugin.gard]\nx = 1\n") == (
        "mq.toml:2: [plugin.gard] belongs to no plugin that is installed; did you mean guard?"
    )


def test_a_table_of_a_plugin_that_is_not_enabled_may_stay() -> None:
    assert composed("[plugin.guard]\nwait_max_ms = 1\n", "bare").plugins[-1].name == "bare"
