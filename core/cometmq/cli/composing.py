"""What commands share that read settings and compose plugins without running a broker."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from cometmq.config import Config, load_config

F = TypeVar("F", bound=Callable[..., Any])


def settings_options(function: F) -> F:
    """`--config FILE` and `--plugins a,b,-c`, as `mq run` has them."""
    function = click.option(
        "--plugins", "names", metavar="NAMES", default="", help="As for `mq run`."
    )(function)
    return click.option("--config", "path", metavar="FILE", help="TOML file, usually mq.toml.")(
        function
    )


def read_settings(path: str | None, names: str) -> Config:
    """File, environment and command line. Raises ConfigError."""
    return load_config(path, os.environ, {"plugins": names} if names else {})
