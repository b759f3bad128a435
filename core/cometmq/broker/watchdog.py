"""A thread that watches the event loop and names what blocks it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from cometmq.broker.loop_pulse import CALM_S, LoopPulse
from cometmq.environment import Threads

logger = logging.getLogger(__name__)

WARN_AFTER_S = 1.0

Running = Callable[[], tuple[str, str] | None]
"""The plugin and the hook that are being called right now, if any."""


class Watchdog:
    """Warns of a loop that is blocked for a second, and tells `hung` beyond the limit."""

    def __init__(
        self,
        pulse: LoopPulse,
        threads: Threads,
        running: Running,
        hung: Callable[[str], None],
        limit_ms: int,
    ) -> None:
        """`hung(reason)` is called once, in the watchdog's thread, while the loop is blocked."""
        self._pulse = pulse
        self._threads = threads
        self._running = running
        self._hung = hung
        self._limit_s = limit_ms / 1000
        self._end = threading.Event()
        self._thread: Any = None

    def start(self) -> None:
        """Begin to watch."""
        self._thread = self._threads.start("cometmq-watchdog", self._watch)

    def stop(self) -> None:
        """Watch no more."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(timeout=CALM_S + 1)
            self._thread = None

    def _watch(self) -> None:
        pulse = self._pulse
        warned = hung = False
        while not self._end.wait(pulse.wait_s) and not pulse.closed:
            blocked_s = pulse.look()
            if not blocked_s:
                warned = hung = False
                continue
            if blocked_s >= WARN_AFTER_S and not warned:
                warned = True
                logger.warning("the event loop is blocked: %s", pulse.culprit(self._running()))
            if blocked_s >= self._limit_s and not hung:
                hung = True
                self._hung(pulse.culprit(self._running()))
