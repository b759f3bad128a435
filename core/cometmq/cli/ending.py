"""The end of `mq run`: the first signal asks for a clean stop, a second one ends it at once, and a
hook that never returns can't keep it from ending.

Signals are heard in a thread of its own, by the system's handler and a socket: so they are heard
too while a plugin holds the event loop, be it in code of another language.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from cometmq.broker.watchdog import culprit
from cometmq.plugins import Composition

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERVAL_S = 0.1
_LAST_WORDS_S = 2.0
_END = b"\0"
_LIMIT = "broker.loop_stall_limit_ms"


class Ending:
    """Calls `stop` on the running loop at the first signal. To be made and closed on that loop's
    thread, which is the main one.

    Once asked to stop, it ends the process (exit code 1) at a second signal, or when for `limit_s`
    the loop has given no sign of life or one and the same hook has been awaited. Once closed it
    does so if `limit_s` later the process is still there. The log can take it.
    """

    def __init__(self, stop: Callable[[], None], limit_s: float) -> None:
        self.composition: Composition | None = None
        """The plugins, once there are some to blame."""
        self._stop = stop
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._loop_thread_id = threading.get_ident()
        self._alive = True
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._fd_before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        # Without one of Python's, the system's handler would not write to the socket.
        self._before: dict[signal.Signals, Any] = {
            number: signal.signal(number, _ignore) for number in SIGNALS
        }
        self._thread = threading.Thread(target=self._hear, name="mq-signals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Signals do again what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        self._write.send(_END)
        self._thread.join()
        self._read.close()
        self._write.close()
        threading.Thread(target=self._outlive, name="mq-end", daemon=True).start()

    def _outlive(self) -> None:
        """The broker has ended, and the process must: what is left by now, tasks that will not be
        cancelled and threads, began in plugins, and asyncio and Python wait for it for ever."""
        idle = threading.Event()
        for _ in range(round(self._limit_s / INTERVAL_S)):
            idle.wait(INTERVAL_S)
        names = [each.name for each in threading.enumerate() if not each.daemon]
        names.remove(threading.main_thread().name)
        threads = f": threads {', '.join(names)}" if names else ""
        _leave(
            f"the broker has ended, but what a plugin began has not {self._limit_s:.1f} s later "
            f"({_LIMIT} is the limit){threads}; this process ends all the same: disable the plugin "
            "or ask its author"
        )

    # --- in the thread --------------------------------------------------------------------------

    def _hear(self) -> None:
        asked = 0
        while not asked:
            heard = self._read.recv(64)
            if _END in heard:
                return
            asked = sum(number in SIGNALS for number in heard)
        self._loop.call_soon_threadsafe(self._stop)
        while asked < 2:
            heard = self._wait()
            if _END in heard:
                return
            asked += sum(number in SIGNALS for number in heard)
        os._exit(1)

    def _wait(self) -> bytes:
        """What is heard next. Ends the process if nothing moves any more: it counts its own waits,
        so that a process that was stopped for a while isn't taken for one that hangs."""
        blocked_s = awaited_s = 0.0
        awaited = self._awaited()
        self._ask()
        while not select.select([self._read], [], [], INTERVAL_S)[0]:
            now = self._awaited()
            awaited_s = awaited_s + INTERVAL_S if now is not None and now is awaited else 0.0
            awaited = now
            blocked_s += INTERVAL_S
            if self._alive:
                blocked_s = 0.0
                self._ask()
            if blocked_s >= self._limit_s:
                called = None if self.composition is None else self.composition.running
                _end(culprit(called, self._loop_thread_id, blocked_s))
            elif awaited is not None and awaited_s >= self._limit_s:
                _end(f"{awaited} has not returned for {awaited_s:.1f} s")
        return self._read.recv(64)

    def _awaited(self) -> str | None:
        return None if self.composition is None else self.composition.awaited

    def _ask(self) -> None:
        """Ask the loop for a sign of life."""
        self._alive = False
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            self._alive = True  # it is closed: the process is about to end

    def _answer(self) -> None:
        self._alive = True


def _ignore(number: int, frame: object) -> None:
    """The thread has heard it."""


def _end(reason: str) -> None:
    _leave(
        f"asked to stop, but {reason} ({_LIMIT} is the limit): this process ends without a clean "
        "stop, which the log can take; disable the plugin or ask its author"
    )


def _leave(last_words: str) -> None:
    # Whoever hangs may hold the lock of the log: then it ends without a word.
    words = threading.Thread(target=logger.critical, args=("%s", last_words), daemon=True)
    words.start()
    words.join(_LAST_WORDS_S)
    os._exit(1)
