"""Whether an event loop lives, as another thread sees it, and who holds it if not."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from types import FrameType

INTERVAL_S = 0.1
CALM_S = 0.2
"""From one look to the next at a loop that gives signs of life by itself, twice in that time."""
OURS = ("cometmq", "cometmq_plugins", "cometmq_transports", "asyncio")
"""Who calls what plugins bring."""


def _place(frame: FrameType) -> str:
    """Where the loop is. Of code that is not ours also where it was entered: a plugin's function,
    say, that waits deep in a library."""
    entered = frame
    for each, _ in traceback.walk_stack(frame):
        if each.f_globals.get("__name__", "").partition(".")[0] in OURS:
            break
        entered = each
    places = [entered] if entered is frame else [entered, frame]
    return ", in ".join(
        f"{each.f_code.co_name} ({each.f_code.co_filename}, line {each.f_lineno})"
        for each in places
    )


class LoopPulse:
    """To be made on the running loop; then one thread looks at it every `wait_s`.

    It asks the loop for a sign of life, if there was none unasked, and counts the looks until one
    comes, so that neither a stepped clock nor a stopped process looks like a stall.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread_id = threading.get_ident()
        self._answered = True
        self._beaten = False
        self._blocked_s = 0.0
        self.closed = False
        """The loop is: nothing more will come from it, and nothing has to."""

    def beat(self) -> None:
        """The loop says so without being asked: to wake it for that would be most of what a broker
        costs that has nothing to do."""
        self._beaten = True

    @property
    def wait_s(self) -> float:
        """How long to wait before the next look."""
        return CALM_S if self._answered else INTERVAL_S

    def look(self) -> float:
        """For how long the loop has given no sign of life, 0.0 if it has since the last look."""
        if self._beaten:
            self._beaten = False
            self._blocked_s = 0.0
            return 0.0
        if not self._answered:
            self._blocked_s += INTERVAL_S
            return self._blocked_s
        self._blocked_s = 0.0
        self._answered = False
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            self._answered = self.closed = True
        return 0.0

    def culprit(self, called: tuple[str, str] | None) -> str:
        """Who holds the loop, in one sentence: the (plugin, hook) that is being called, and the
        line of code, since a hook may have called what another plugin brings."""
        frame = sys._current_frames().get(self._loop_thread_id)
        where = "an unknown place" if frame is None else _place(frame)
        if called is not None:
            plugin, hook = called
            return (
                f"hook {hook} of plugin {plugin} has not returned for {self._blocked_s:.1f} s, it "
                f"is in {where}; hooks may not block: move the work to environment.threads, or "
                "disable the plugin"
            )
        return f"{where} has held it for {self._blocked_s:.1f} s"

    def _answer(self) -> None:
        self._answered = True
