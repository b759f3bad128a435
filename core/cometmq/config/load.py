"""`load_config`: defaults, then the file, then environment variables, then the command line."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from cometmq.config.checks import check_addresses, check_sizes
from cometmq.config.lines import Path, line_of, scan
from cometmq.config.tree import SECTIONS, Config, Source, field_types
from cometmq.config.values import convert, describe, did_you_mean, fail, show
from cometmq.errors import ConfigError
from cometmq.real_environment import RealEnvironment

FRAME_OVERHEAD_BYTES = 64 << 10
"""Room in a frame for request header and table beside the largest batch."""

_OTHER_VARIABLES = frozenset(("MQ_CONNECT",))
"""Of clients."""
_VARIABLE = re.compile(r"MQ_([A-Z0-9]+(?:_[A-Z0-9]+)*)__(\w+)")


def load_config(
    path: str | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object],
    *,
    read_file: Callable[[str], bytes] | None = None,
    said_by: str = "command line",
) -> Config:
    """Read and check all settings.

    `path` is a TOML file or None; `environ` may hold `MQ_SECTION__KEY` and
    `MQ_PLUGIN__NAME__KEY`; `overrides` are dotted keys of the command line, and `plugins`, the
    comma-separated names of `--plugins` (`-name` takes one away). `read_file` stands in for the
    real file system, `said_by` is what errors call the place of the overrides. Raises
    ConfigError: file and line, key, what is allowed.
    """
    loader = _Loader(Source("command line", said_by))
    if path is not None:
        loader.take_file(path, read_file or RealEnvironment().files.read_file)
    loader.take_environment(environ)
    for key, value in overrides.items():
        if key != "plugins":
            loader.take(key, value, loader.overrides)
    loader.take_plugin_names(overrides.get("plugins", ""))
    return loader.finish()


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Those that look like settings and are none."""
    return sorted(
        variable
        for variable in environ
        if variable.startswith("MQ_")
        and variable not in _OTHER_VARIABLES
        and _VARIABLE.fullmatch(variable) is None
    )


class _Loader:
    """Collects values by dotted key; a later source replaces an earlier one."""

    def __init__(self, overrides: Source) -> None:
        self.overrides = overrides
        self._values: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
        self._options: dict[str, dict[str, Any]] = {}
        self._sources: dict[str, Source] = {}

    def take_file(self, path: str, read_file: Callable[[str], bytes]) -> None:
        tables, lines = _read_toml(path, read_file)
        for section, table in tables.items():
            source = _at(path, lines, (section,))
            self._check_section(section, source)
            if not isinstance(table, dict):
                fail(source, f"`{section}` is {show(table)}, but it is a table: write [{section}]")
            for key, value in table.items():
                at = _at(path, lines, (section, key))
                if section != "plugin":
                    self.take(f"{section}.{key}", value, at)
                elif isinstance(value, dict):
                    for option, item in value.items():
                        at = _at(path, lines, (section, key, option))
                        self.take(f"plugin.{key}.{option}", item, at)
                else:
                    fail(at, f"`plugin.{key}` is {show(value)}, but it is a table: [plugin.{key}]")

    def take_environment(self, environ: Mapping[str, str]) -> None:
        for variable in sorted(environ):
            found = _VARIABLE.fullmatch(variable)
            if found is None:
                self._check_single(variable)
                continue
            section, key = found[1].lower(), found[2].lower()
            source = Source("environment", variable)
            if section == "plugin":
                plugin, _, option = key.partition("__")
                key = f"{plugin.replace('_', '-')}.{option}"
            self.take(f"{section}.{key}", environ[variable], source)

    def _check_single(self, variable: str) -> None:
        """One underscore where two belong would otherwise be no setting, without a word."""
        for section in SECTIONS:
            key = variable.removeprefix(f"MQ_{section.upper()}_")
            if key != variable and key.lower() in field_types(section):
                fail(
                    Source("environment", variable),
                    f"it sets nothing; write MQ_{section.upper()}__{key}, with two underscores "
                    f"between `{section}` and `{key.lower()}`",
                )

    def take(self, key: str, value: object, source: Source) -> None:
        """One value under its dotted key, checked against the type of that key."""
        section, _, name = key.partition(".")
        self._check_section(section, source)
        if not name:
            fail(source, f"`{key}` is a section; name one of its keys, as in {key}.NAME")
        if section == "plugin":
            plugin, _, option = name.rpartition(".")
            if not plugin or not option:
                fail(source, f"`{key}` names no option; options are plugin.NAME.OPTION")
            self._options.setdefault(plugin, {})[option] = value
        else:
            self._values[section][name] = self._checked(section, name, value, source)
        self._sources[key] = source

    def _check_section(self, section: str, source: Source) -> None:
        known = [*SECTIONS, "plugin"]
        if section not in known:
            fail(source, f"`{section}` is no section here; {did_you_mean(section, known)}")

    def _checked(self, section: str, name: str, value: object, source: Source) -> Any:
        types = field_types(section)
        if name not in types:
            fail(source, f"[{section}] has no key `{name}`; {did_you_mean(name, types)}")
        try:
            return convert(value, types[name], source)
        except ValueError:
            allowed = describe(types[name])
            fail(source, f"`{section}.{name}` is {show(value)}, but it must be {allowed}")

    def take_plugin_names(self, names: object) -> None:
        """What `--plugins` said, on top of the file's lists: the last word on a name counts."""
        words = names.split(",") if isinstance(names, str) else list(_texts(names, self.overrides))
        values = self._values["plugins"]
        enable, disable = list(values.get("enable", ())), list(values.get("disable", ()))
        both = sorted(set(enable) & set(disable))
        if both:
            source = self._sources["plugins.disable"]
            fail(source, f"{both[0]} stands under enable and under disable; take one of them out")
        for word in filter(None, (word.strip() for word in words)):
            takes_away = word.startswith("-")
            name = self._checked("plugins", "enable", [word.lstrip("-")], self.overrides)[0]
            into, out_of = (disable, enable) if takes_away else (enable, disable)
            out_of[:] = [other for other in out_of if other != name]
            if name not in into:
                into.append(name)
        for key, merged in (("enable", tuple(enable)), ("disable", tuple(disable))):
            before = tuple(values.get(key, ()))
            if merged != before:
                values[key] = merged
                self._sources[f"plugins.{key}"] = self._joined(f"plugins.{key}", bool(before))

    def _joined(self, key: str, had_before: bool) -> Source:
        if not had_before:
            return self.overrides
        return Source("command line", f"{self._sources[key]} and {self.overrides}")

    def finish(self) -> Config:
        """The frozen tree, once what depends on several keys is checked."""
        limits = self._values["limits"]
        if "batch_bytes" in limits and "frame_bytes" not in limits:
            limits["frame_bytes"] = limits["batch_bytes"] + FRAME_OVERHEAD_BYTES
        sections: dict[str, Any] = {
            name: kind(**self._values[name]) for name, kind in SECTIONS.items()
        }
        config = Config(**sections, plugin=self._options, sources=self._sources)
        check_sizes(config)
        check_addresses(config)
        return config


def _read_toml(
    path: str, read_file: Callable[[str], bytes]
) -> tuple[dict[str, Any], dict[Path, int]]:
    try:
        text = read_file(os.path.abspath(path)).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"{path}: can't be read ({reason}); give the path of a file that is there, or leave "
            "--config out to run on defaults"
        ) from error
    try:
        return tomllib.loads(text), scan(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        line = int(found[1]) if found else len(text.splitlines())
        raise ConfigError(f"{path}:{line}: this is no TOML: {error}; mend that line") from error


def _at(path: str, lines: dict[Path, int], key: Path) -> Source:
    line = line_of(lines, key)
    return Source("file", path if line is None else f"{path}:{line}")


def _texts(names: object, source: Source) -> Sequence[str]:
    try:
        return msgspec.convert(names, tuple[str, ...])
    except msgspec.ValidationError:
        fail(source, f"`plugins` is {show(names)}, but it must be names: a,b,-c")
