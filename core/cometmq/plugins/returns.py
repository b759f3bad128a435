"""What a hook returned against what its spec says: the annotation in `hookspecs.py` is the rule.

Checked once, when it is handed over. What slips through here ends as an AttributeError somewhere
in the broker, which names everybody but the one who made it.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from cometmq import hookspecs
from cometmq.interfaces import Metric

_UNIONS = (typing.Union, types.UnionType)


@cache
def promised(hook: str) -> Any:
    """The type that a hook's spec says it returns."""
    return typing.get_type_hints(getattr(hookspecs, hook))["return"]


def settled(hook: str, answer: Any) -> Any:
    """The answer, complete: a generator does its work, and fails, in the hook that made it."""
    if answer is None or isinstance(answer, Sequence | Mapping):
        return answer
    many = any(typing.get_origin(kind) is Iterable for kind in _members(promised(hook)))
    return list(answer) if many and isinstance(answer, Iterable) else answer


def fits(answer: Any, kind: Any) -> bool:
    """Whether an answer is of a type as a spec may name it: a class, a Protocol (by its
    attributes), a Sequence, Iterable or Mapping of such, None, or a union of them."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if kind in (None, type(None)):
        return answer is None
    if origin in _UNIONS:
        return any(fits(answer, one) for one in arguments)
    if origin in (Sequence, Iterable):
        many = isinstance(answer, Sequence) and not isinstance(answer, str | bytes)
        return many and all(fits(item, arguments[0]) for item in answer)
    if origin is Mapping:
        if not isinstance(answer, Mapping):
            return False
        return all(
            fits(it, kind)
            for item in answer.items()
            for it, kind in zip(item, arguments, strict=True)
        )
    if getattr(kind, "_is_protocol", False):
        # A class in place of an object of it has the attributes too, and none of the state.
        return not isinstance(answer, type) and all(hasattr(answer, n) for n in _attributes(kind))
    if kind in (str, Metric):
        return _can_be_told(answer, kind)
    return isinstance(answer, origin or kind)


def described(kind: Any) -> str:
    """A type for people, as it is written in the spec."""
    if isinstance(kind, type) and not typing.get_args(kind):
        return "None" if kind is type(None) else kind.__name__
    if typing.get_origin(kind) in _UNIONS:
        return " or ".join(described(one) for one in typing.get_args(kind))
    name = getattr(typing.get_origin(kind), "__name__", str(kind))
    return f"{name} of {' to '.join(described(one) for one in typing.get_args(kind))}"


def _can_be_told(answer: Any, kind: type) -> bool:
    """Whether a client finds in it what we mean: a struct's fields may hold anything, a text what
    UTF-8 has no bytes for, and one of them would spoil the whole reply."""
    if not isinstance(answer, kind):
        return False
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=kind)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(answer, Metric) or math.isfinite(answer.value)


def _members(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in _UNIONS else (kind,)


@cache
def _attributes(protocol: Any) -> frozenset[str]:
    """What an object needs to be one of a Protocol."""
    names: set[str] = set()
    for base in protocol.__mro__:
        if getattr(base, "_is_protocol", False) and base is not typing.Protocol:
            names.update(base.__annotations__, vars(base))
    return frozenset(name for name in names if not name.startswith("_"))
