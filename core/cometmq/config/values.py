"""One value at a time: convert it strictly, say in words what a type allows, guess a typing slip.

Plugin options go through here as well, so that every wrong value gets the same kind of sentence.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from typing import Any, NoReturn

import msgspec
from msgspec import inspect

from cometmq.config.tree import DEFAULT_SOURCE, Source
from cometmq.errors import ConfigError

_LISTS = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)
SHOWN_MAX = 60


def convert(value: object, wanted: Any, source: Source) -> Any:
    """`value` as type `wanted`. Text from outside a file may spell numbers, booleans and (comma
    separated) lists. Raises msgspec.ValidationError, or ValueError for unreadable text."""
    if isinstance(value, str) and source.kind in ("environment", "command line"):
        return msgspec.convert(_from_text(value, wanted), wanted, strict=False)
    return msgspec.convert(value, wanted)


def _from_text(text: str, wanted: Any) -> object:
    kinds = _members(inspect.type_info(wanted))
    if any(isinstance(kind, inspect.StrType) for kind in kinds):
        return text
    if text[:1] in ("[", "{"):
        return tomllib.loads(f"value = {text}")["value"]
    if any(isinstance(kind, _LISTS) for kind in kinds):
        return [item.strip() for item in text.split(",") if item.strip()]
    return text


def _members(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    """The alternatives of a union, without None: no file or variable can say None."""
    if isinstance(kind, inspect.Metadata):
        return _members(kind.type)
    if not isinstance(kind, inspect.UnionType):
        return (kind,)
    return tuple(member for member in kind.types if not isinstance(member, inspect.NoneType))


def _said(kind: inspect.Type) -> str:
    """The words of the type's own author (`Meta(description=...)`), else ours."""
    if isinstance(kind, inspect.Metadata):
        own = (kind.extra_json_schema or {}).get("description")
        return str(own) if own else _said(kind.type)
    return " or ".join(_words(member) for member in _members(kind))


def describe(wanted: Any) -> str:
    """What a type allows, in words for a person with an editor open."""
    return _said(inspect.type_info(wanted))


def _words(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    if isinstance(kind, inspect.IntType):
        return "a whole number" + _range(kind)
    if isinstance(kind, inspect.FloatType):
        return "a number" + _range(kind)
    if isinstance(kind, inspect.StrType):
        return _text(kind)
    if isinstance(kind, inspect.LiteralType):
        return "one of " + ", ".join(str(value) for value in kind.values)
    if isinstance(kind, _LISTS):
        few = "" if not kind.min_length else f" of at least {kind.min_length}"
        return f"a list{few}, each item {_said(kind.item_type)}"
    if isinstance(kind, inspect.DictType | inspect.StructType):
        return "a table"
    return type(kind).__name__.removesuffix("Type").lower()


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    low = kind.ge if kind.ge is not None else kind.gt
    high = kind.le if kind.le is not None else kind.lt
    above = "above" if kind.ge is None else "of at least"
    below = "below" if kind.le is None else "of at most"
    if kind.ge is not None and kind.le is not None:
        return f" from {low} to {high}"
    words = [f"{above} {low}"] if low is not None else []
    if high is not None:
        words.append(f"{below} {high}")
    return "".join(f" {' and '.join(words)}" if words else "")


def _text(kind: inspect.StrType) -> str:
    if kind.pattern:
        return f"text that matches {kind.pattern}"
    return "text that is not empty" if kind.min_length else "text"


def show(value: object) -> str:
    """A value as it may stand in an error, shortened."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"


def close_matches(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that `name` may have meant, the best first."""
    return difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.6)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A clause for an error that offers close matches, or all names when none is close."""
    choices = sorted(known)
    matches = close_matches(name, choices)
    if matches:
        return f"did you mean {' or '.join(matches)}?"
    return f"known are: {', '.join(choices)}." if choices else "there are none."


def fail(source: Source, sentence: str) -> NoReturn:
    """Raise ConfigError with the place in front, if there is one to name."""
    raise ConfigError(sentence if source is DEFAULT_SOURCE else f"{source}: {sentence}")
