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
from collections.abc import Callable, Iterator
from typing import Any

from cometmq.broker.loop_pulse import INTERVAL_S, LoopPulse
from cometmq.plugins import Composition

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)
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
        self._pulse = LoopPulse()
        self._asked = False
        self._awaited: str | None = None
        self._awaited_s = 0.0
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
        for _ in self._signals():
            if self._asked:
                os._exit(1)
            self._asked = True
            self._loop.call_soon_threadsafe(self._stop)

    def _signals(self) -> Iterator[int]:
        """Those that mean us, as they come, until the end."""
        while True:
            while self._asked and not select.select([self._read], [], [], INTERVAL_S)[0]:
                self._look()
            heard = self._read.recv(64)
            if _END in heard:
                return
            yield from (number for number in heard if number in SIGNALS)

    def _look(self) -> None:
        """End the process if nothing moves any more. It counts its own waits, so that a process
        that was stopped for a while isn't taken for one that hangs."""
        composition = self.composition
        awaited = None if composition is None else composition.awaited
        same = awaited is not None and awaited is self._awaited
        self._awaited, self._awaited_s = awaited, self._awaited_s + INTERVAL_S if same else 0.0
        if self._pulse.look() >= self._limit_s:
            _end(self._pulse.culprit(None if composition is None else composition.running))
        elif awaited is not None and self._awaited_s >= self._limit_s:
            _end(f"{awaited} has not returned for {self._awaited_s:.1f} s")


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
