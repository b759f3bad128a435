"""Ctrl-C, held back while the inside of a client is being changed.

Python raises KeyboardInterrupt in the main thread at any place. In the middle of a change it would
leave a request that nobody waits for, or a lock that nobody releases, and the next call would hang.
"""

from __future__ import annotations

# Those of `signal` turn numbers into enums and back, which takes ten times as long.
import _signal  # type: ignore[import-not-found]
import os
import threading
from collections.abc import Callable
from signal import SIGINT, default_int_handler
from threading import get_ident
from types import FrameType, TracebackType

_SIGINT = int(SIGINT)


class CtrlC:
    """A `with` block that a ctrl-C can't break into: it is noted, `wake` is called, and
    KeyboardInterrupt is raised at the block's end. Who waits within looks at `is_noted`.

    Without effect in other threads than the main one, and where somebody has a handler of his own.
    """

    __slots__ = ("_held", "_noted", "_wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` ends a wait; it is called in a signal handler."""
        self._wake = wake
        self._held = False
        self._noted = False

    def is_noted(self) -> bool:
        """Whether the calling thread should come to an end."""
        return self._noted and get_ident() == _main_ident

    def __enter__(self) -> None:
        if get_ident() == _main_ident and _signal.getsignal(_SIGINT) is default_int_handler:
            self._held = True
            _signal.signal(_SIGINT, self._note)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._held or get_ident() != _main_ident:
            return
        noted, self._noted, self._held = self._noted, False, False
        _signal.signal(_SIGINT, default_int_handler)
        if noted:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = True
        self._wake()


def _after_fork() -> None:
    """Whoever forks is the main thread of the child."""
    global _main_ident
    _main_ident = get_ident()


_main_ident = threading.main_thread().ident
os.register_at_fork(after_in_child=_after_fork)
