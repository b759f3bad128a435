"""A thread that watches the event loop and names what blocks it.

It asks the loop for a sign of life and counts its own waits until one comes, so that neither a
stepped clock nor a stopped process looks like a stall.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from cometmq.environment import Threads

logger = logging.getLogger(__name__)

INTERVAL_S = 0.1
WARN_AFTER_S = 1.0

Running = Callable[[], tuple[str, str] | None]
"""The plugin and the hook that are being called right now, if any."""


class Watchdog:
    """Warns of a loop that is blocked for a second, and tells `hung` beyond the limit."""

    def __init__(
        self,
        threads: Threads,
        running: Running,
        hung: Callable[[str], None],
        limit_ms: int,
    ) -> None:
        """`hung(reason)` is called once, in the watchdog's thread, while the loop is blocked."""
        self._threads = threads
        self._running = running
        self._hung = hung
        self._limit_s = limit_ms / 1000
        self._end = threading.Event()
        self._answered = True
        self._thread: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread_id = 0

    def start(self) -> None:
        """Watch the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread_id = threading.get_ident()
        self._thread = self._threads.start("cometmq-watchdog", self._watch)

    def stop(self) -> None:
        """Watch no more."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * INTERVAL_S + 1)
            self._thread = None

    def _watch(self) -> None:
        blocked_s = 0.0
        warned = hung = False
        while not self._end.wait(INTERVAL_S):
            if self._answered:
                blocked_s, warned, hung = 0.0, False, False
                if not self._ask():
                    return
                continue
            blocked_s += INTERVAL_S
            if blocked_s >= WARN_AFTER_S and not warned:
                warned = True
                logger.warning(
                    "the event loop is blocked: %s",
                    culprit(self._running(), self._loop_thread_id, blocked_s),
                )
            if blocked_s >= self._limit_s and not hung:
                hung = True
                self._hung(culprit(self._running(), self._loop_thread_id, blocked_s))

    def _ask(self) -> bool:
        """False: the loop is closed."""
        self._answered = False
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            return False
        return True

    def _answer(self) -> None:
        self._answered = True


def culprit(called: tuple[str, str] | None, thread_id: int, blocked_s: float) -> str:
    """Who holds the loop of a thread for so long, in one sentence: the hook that is being called,
    else a line of code."""
    if called is not None:
        plugin, hook = called
        return (
            f"hook {hook} of plugin {plugin} has not returned for {blocked_s:.1f} s; "
            "hooks may not block: move the work to environment.threads, or disable the plugin"
        )
    frame = sys._current_frames().get(thread_id)
    where = "an unknown place"
    if frame is not None:
        last = traceback.extract_stack(frame)[-1]
        where = f"{last.name} ({last.filename}, line {last.lineno})"
    return f"{where} has held it for {blocked_s:.1f} s"
