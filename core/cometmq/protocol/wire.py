"""The two bases of all headers."""

from __future__ import annotations

import msgspec


class Wire(msgspec.Struct, array_like=True, gc=False):
    """Base of all headers: arrays on the wire, never part of a cycle."""


class NestedWire(msgspec.Struct, array_like=True):
    """Base of headers that hold lists of structs, which the garbage collector has to see."""
