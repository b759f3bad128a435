"""`load_config`: what wins, where it came from, and the sentence that each mistake gets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from cometmq.config import Config, load_config
from cometmq.errors import ConfigError


def load(
    text: str | None = None,
    environ: Mapping[str, str] | None = None,
    **overrides: object,
) -> Config:
    """`text` as the file `mq.toml`; a keyword `broker__data` is the key `broker.data`."""
    keys = {name.replace("__", "."): value for name, value in overrides.items()}
    path = None if text is None else "mq.toml"
    return load_config(path, environ or {}, keys, read_file=lambda _: (text or "").encode())


def mistake(
    text: str | None = None, environ: Mapping[str, str] | None = None, **overrides: object
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, environ, **overrides)
    return str(caught.value)


def test_without_anything_all_is_default() -> None:
    assert load() == Config()


def test_the_command_line_beats_variables_and_those_beat_the_file() -> None:
    text = '[broker]\nname = "one"\ndata = "one"\ndefault_queues = 1\n'
    environ = {"MQ_BROKER__NAME": "two", "MQ_BROKER__DATA": "two"}
    config = load(text, environ, broker__name="three")
    assert (config.broker.name, config.broker.data) == ("three", "two")
    assert config.broker.default_queues == 1


def test_every_value_knows_where_it_came_from() -> None:
    text = "# a comment\n[log]\n\nsegment_age_s = 60\n"
    config = load(text, {"MQ_BROKER__LEVEL": "disk"}, broker__data="there")
    assert str(config.source("log.segment_age_s")) == "mq.toml:4"
    assert str(config.source("broker.level")) == "MQ_BROKER__LEVEL"
    assert str(config.source("broker.data")) == "command line"
    assert str(config.source("broker.name")) == "default"


def test_variables_spell_numbers_switches_and_lists() -> None:
    config = load(
        environ={
            "MQ_BROKER__LISTEN": "tcp://127.0.0.1:1, ipc:///tmp/x",
            "MQ_BROKER__INSECURE": "true",
            "MQ_BROKER__NAME": "42",
            "MQ_LIMITS__FRAMES": "8",
            "MQ_PLUGINS__ENABLE": '["a", "b"]',
            "MQ_PLUGIN__FLUSH_ASYNC__INTERVAL_MS": "9",
            "MQ_CONNECT": "tcp://127.0.0.1:7800",
        }
    )
    assert config.broker.listen == ("tcp://127.0.0.1:1", "ipc:///tmp/x")
    assert config.broker.insecure is True
    assert config.broker.name == "42"
    assert config.limits.frames == 8
    assert config.plugins.enable == ("a", "b")
    assert config.plugin == {"flush-async": {"interval_ms": "9"}}


def test_plugin_names_of_the_command_line_come_after_those_of_the_file_and_have_the_last_word() -> (
    None
):
    text = '[plugins]\nenable = ["ha", "acl"]\ndisable = ["cleanup"]\n'
    config = load(text, plugins="-acl, cleanup,ha,tracing")
    assert config.plugins.enable == ("ha", "cleanup", "tracing")
    assert config.plugins.disable == ("acl",)
    assert str(config.source("plugins.enable")) == "mq.toml:2 and command line"


def test_plugin_names_alone_come_from_the_command_line() -> None:
    config = load(plugins=["ha", "-acl"])
    assert (config.plugins.enable, config.plugins.disable) == (("ha",), ("acl",))
    assert str(config.source("plugins.enable")) == "command line"


def test_a_larger_batch_takes_its_frame_along() -> None:
    config = load(limits__batch_bytes=8 << 20, log__segment_bytes=64 << 20)
    assert config.limits.frame_bytes > 8 << 20


def test_the_file_is_really_read(tmp_path: Path) -> None:
    path = tmp_path / "mq.toml"
    path.write_text('[broker]\nlevel = "memory"\n')
    assert load_config(str(path), {}, {}).broker.level == "memory"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[broker]\nlevle = "disk"', "mq.toml:2: [broker] has no key `levle`; did you mean level?"),
        ("[brokr]", "mq.toml:1: `brokr` is no section here; did you mean broker?"),
        (
            '[broker]\n\nlevel = "dsk"',
            "mq.toml:3: `broker.level` is 'dsk', but it must be one of disk, memory, quorum",
        ),
        (
            "[broker]\ndefault_queues = 2000",
            "mq.toml:2: `broker.default_queues` is 2000, but it must be a whole number from 1 to "
            "1024",
        ),
        (
            '[broker]\nauto_create = "yes"',
            "mq.toml:2: `broker.auto_create` is 'yes', but it must be true or false",
        ),
        (
            "[limits]\nbatch_bytes = 16777217",
            "mq.toml:2: `limits.batch_bytes` is 16777217, but it must be a whole number from 1024 "
            "to 16777216",
        ),
        (
            "[log]\nsegment_bytes = 1000",
            "mq.toml:2: `log.segment_bytes` is 1000, but it must be a whole number from 1048576 to "
            "1099511627776",
        ),
        (
            '[broker]\nlisten = ["tcp://127.0.0.1"]',
            "mq.toml:2: `broker.listen` has tcp://127.0.0.1, which names no port; write it behind "
            "a colon, as in tcp://127.0.0.1:7800 (0 takes a free one)",
        ),
        (
            '[broker]\nlisten = ["tcp://127.0.0.1:65536"]',
            "mq.toml:2: `broker.listen` has tcp://127.0.0.1:65536, but a port must be a whole "
            "number from 0 to 65535 (0 takes a free one)",
        ),
        (
            '[broker]\nlisten = ["127.0.0.1:1"]',
            "mq.toml:2: `broker.listen` is ['127.0.0.1:1'], but it must be a list of at least 1, "
            "each item an address like tcp://127.0.0.1:7800",
        ),
        (
            '[broker]\nlisten = ["ipc://a", "ipc://a"]',
            "mq.toml:2: `broker.listen` has ipc://a twice; take one of them out",
        ),
        (
            "[limits]\nframe_bytes = 2000",
            "mq.toml:2: `limits.batch_bytes` is 1048576, more than `limits.frame_bytes`, which is "
            "2000; lower limits.batch_bytes or raise limits.frame_bytes to at least 1048576",
        ),
        (
            '[plugins]\nenable = ["a"]\ndisable = ["a"]',
            "mq.toml:3: a stands under enable and under disable; take one of them out",
        ),
        (
            '[plugins]\nenable = ["-a"]',
            "mq.toml:2: `plugins.enable` is ['-a'], but it must be a list, each item a plugin's "
            "name: small letters, digits and dashes, beginning with a letter",
        ),
        ("broker = 3", "mq.toml:1: `broker` is 3, but it is a table: write [broker]"),
        ("[plugin]\nx = 3", "mq.toml:2: `plugin.x` is 3, but it is a table: [plugin.x]"),
    ],
)
def test_a_mistake_in_the_file(text: str, expected: str) -> None:
    assert mistake(text) == expected


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("MQ_BROKER__LEVL", "disk", "MQ_BROKER__LEVL: [broker] has no key `levl`; did you mean"),
        ("MQ_BROKR__LEVEL", "disk", "MQ_BROKR__LEVEL: `brokr` is no section here; did you mean"),
        ("MQ_BROKER__INSECURE", "maybe", "MQ_BROKER__INSECURE: `broker.insecure` is 'maybe', but"),
        ("MQ_BROKER__LISTEN", "[broken", "MQ_BROKER__LISTEN: `broker.listen` is '[broken', but"),
        (
            "MQ_BROKER_LEVEL",
            "disk",
            "MQ_BROKER_LEVEL: it sets nothing; write MQ_BROKER__LEV",
        ),
        ("MQ_LOG_SEGMENT_BYTES", "9", "MQ_LOG_SEGMENT_BYTES: it sets nothing; write MQ_LOG__SEG"),
        ("MQ_PLUGIN__X", "1", "MQ_PLUGIN__X: `plugin.x.` names no option; options are"),
    ],
)
def test_a_mistake_in_a_variable(variable: str, value: str, expected: str) -> None:
    assert mistake(environ={variable: value}).startswith(expected)


def test_a_mistake_on_the_command_line() -> None:
    assert mistake(plugins="A b").startswith("command line: `plugins.enable` is ['A b'], but")
    assert mistake(plugins=3).startswith("command line: `plugins` is 3, but it must be names")
    assert mistake(log={}).startswith("command line: `log` is a section; name one of its keys")
    assert mistake(broker__foo=1).startswith("command line: [broker] has no key `foo`; known are")


def test_a_file_that_is_no_toml_names_the_line() -> None:
    assert mistake("[broker]\nname = \n").startswith("mq.toml:2: this is no TOML")
    assert mistake("[broker]\n\nname").startswith("mq.toml:3: this is no TOML")


def test_a_file_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    path = str(tmp_path / "mq.toml")
    with pytest.raises(ConfigError, match="No such file or directory.*leave --config out"):
        load_config(path, {}, {})


def test_a_file_that_is_no_text_says_so() -> None:
    with pytest.raises(ConfigError, match=r"mq.toml: not UTF-8 \(byte 0\)"):
        load_config("mq.toml", {}, {}, read_file=lambda _: b"\xff\xfe")


def test_lines_are_right_behind_texts_of_several_lines_and_quoted_keys() -> None:
    text = '[broker]\ndata = """\n[log]\nlevel = 1\n"""\n["plugin".guard]\n"my-key" = 1\n'
    config = load(text)
    assert config.broker.data == "[log]\nlevel = 1\n"
    assert str(config.source("broker.data")) == "mq.toml:2"
    assert str(config.source("plugin.guard.my-key")) == "mq.toml:7"
