"""Codecs by their name: the entry points `cometmq.codecs`, of which only the one used is imported.

A codec is of the clients alone. The broker stores and delivers compressed batches as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import entry_points

from cometmq.batch.compression import Codec, compress
from cometmq.batch.layout import CODECS
from cometmq.errors import ConfigError
from cometmq.extras import install_extra

GROUP = "cometmq.codecs"


def make_codec(name: str, level: int | None = None) -> Codec:
    """The codec of this name. `level` is its own scale of small against fast, None its default.

    Raises ConfigError for a name that the format or this installation doesn't have, for a level
    that the codec doesn't have, and when a package that it needs is not installed.
    """
    make = maker_of(name)
    if level is not None and type(level) is not int:
        raise ConfigError(f"compression_level={level!r}: a whole number is wanted, or None")
    return make(level)


@cache
def maker_of(name: str) -> Callable[[int | None], Codec]:
    """What makes a codec of this name, by level. Raises ConfigError."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    known = [each for each in CODECS[1:] if each in found]
    if name not in known:
        raise ConfigError(
            f"compression={name!r}: choose {' or '.join(map(repr, known))}, or None for no "
            "compression"
        )
    entry = found[name]
    distribution = entry.dist.name if entry.dist is not None else "cometmq"
    try:
        make: Callable[[int | None], Codec] = entry.load()
    except ImportError as error:
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise ConfigError(
            f"compression with {name} needs a package that is not installed{why}: "
            + install_extra(name, distribution)
        ) from error
    except Exception as error:  # a package of another version does what it likes
        raise ConfigError(
            f"compression with {name} can't be had from {entry.value} "
            f"({type(error).__name__}: {error}): {install_extra(name, distribution, upgrade=True)}"
        ) from error
    return make


def shrinker(name: str | None, level: int | None) -> Callable[[bytearray], bytearray]:
    """What a producer does with each of its sealed batches. Raises ConfigError as `make_codec`."""
    if name is not None:
        return partial(compress, name=name, codec=make_codec(name, level))
    if level is not None:
        raise ConfigError(
            f"compression_level={level!r} without a compression: give compression= too"
        )
    return lambda buffer: buffer


@cache
def codec_for(number: int) -> Codec | None:
    """The codec that batches with this number need, None for 0. Raises ConfigError without it."""
    return make_codec(CODECS[number]) if number else None
