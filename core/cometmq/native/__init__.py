"""The plain cases of hot functions, in C, if this installation was built with them.

Each name below is a function or None. A function gives None for whatever is no plain case: then its
caller goes on in Python, which does every case, as it does wherever there is no compiler. Three
differ, and say how: `receive`, `unfilled`, `stamped`. To do without all of them set the environment
variable `COMETMQ_NATIVE=0`.
"""

from __future__ import annotations

import importlib
import os
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cometmq.environment import Buffer

T = TypeVar("T")
Frames = Sequence[Buffer]
"""Of one message."""


def _built() -> Any:
    """The module; or None, with a warning if there is one that is of no use."""
    wanted = os.environ.get("COMETMQ_NATIVE", "1")
    if wanted == "0":
        return None
    if wanted not in ("1", "require"):
        text = f"COMETMQ_NATIVE is 0, 1 (as when unset) or require; {wanted!r} is taken as 1"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    try:
        module = importlib.import_module("cometmq.native._native")
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        return _useless(f"can't be loaded: {error}")
    source = Path(__file__).with_name("_native.c")  # in a checkout, where it may be a newer one
    if source.exists() and zlib.crc32(source.read_bytes()) != module.SOURCE_CRC:
        return _useless(f"was built from other sources: {module.__file__}")
    return module


def _useless(why: str) -> None:
    again = "install CometMQ again, or set COMETMQ_NATIVE=0"
    text = f"CometMQ's module in C {why}. Plain Python does its work; {again}"
    warnings.warn(text, RuntimeWarning, stacklevel=2)


_module = _built()
loaded = _module is not None
"""Whether the functions are there."""

pack: Callable[[int, int, bytes, Frames], list[Buffer] | None] | None
pack = getattr(_module, "pack", None)
"""(request id, code, encoded header, body) -> the frames of `cometmq.protocol.pack`."""
unpack: Callable[[Frames], tuple[int, int, memoryview, list[memoryview]] | None] | None
unpack = getattr(_module, "unpack", None)
"""The frames of a message -> what `cometmq.protocol.unpack` finds in them."""
framed: Callable[[Frames, int], bytes | None] | None
framed = getattr(_module, "framed", None)
"""(frames, below so many bytes) -> one small frame as ZMTP sends it."""
Received = tuple[list[Frames], int, int, int]
receive: Callable[[int, memoryview, int, int, int, int], Received | None] | None
receive = getattr(_module, "receive", None)
"""(descriptor, buffer, most bytes a frame, most frames and bytes a message, most frames in all) ->
the whole ZMTP messages that are there, the number of their frames, where the rest begins, how many
bytes came (0 at the end); or None if nothing is there now."""
unfilled: Callable[[int], bytearray]
unfilled = getattr(_module, "unfilled", bytearray)
"""As many bytes, for who fills all of them before anybody looks: to zero a mebibyte takes 30 us."""
parse: Callable[[memoryview, int, type[T]], T | None] | None
parse = getattr(_module, "parse", None)
"""(piece, most bytes, `Batch`) -> what `cometmq.batch.parse` makes of a batch and nothing else."""
prove: Callable[[memoryview, int, type[T]], T | None] | None
prove = getattr(_module, "prove", None)
"""(piece, most bytes, `Batch`) -> a batch that no broker has stamped, proven."""
stamped: Callable[..., bytearray] | None
stamped = getattr(_module, "stamped", None)
"""What `cometmq.batch.stamped` does, in all cases."""
sealed: Callable[..., bytearray | None] | None
sealed = getattr(_module, "sealed", None)
"""(topic's name, queue, births, bodies, producer, tag) -> a sealed batch of messages that have
nothing else."""
