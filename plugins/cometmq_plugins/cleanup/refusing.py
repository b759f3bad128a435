"""Refusing sends while the disk is too full for them."""

from __future__ import annotations

from cometmq.environment import Clock
from cometmq.interfaces import Refuse
from cometmq_plugins.cleanup.disk import Disk
from cometmq_plugins.cleanup.options import CleanupOptions


class Refusing:
    """The answer to every send, and a count of what it cost."""

    def __init__(self, clock: Clock, options: CleanupOptions) -> None:
        self._clock = clock
        self._options = options
        self._refusal: Refuse | None = None
        self._since_s = 0.0
        self._past_s = 0.0
        self.count = 0
        """Sends that were refused."""

    def update(self, disk: Disk) -> None:
        """The disk was looked at."""
        now_s = self._clock.monotonic_s()
        if disk.mark == "refuse":
            if self._refusal is None:
                self._since_s = now_s
            self._refusal = Refuse(
                f"the disk of the log is {disk.used_percent:.1f} % full and takes no messages from "
                f"{self._options.refuse_percent:g} % on: try again later, free space there, or "
                "lower the retention",
                retry_after_ms=max(self._options.retry_after_ms, 1),
                code="NO_SPACE",
            )
        elif self._refusal is not None:
            self._refusal = None
            self._past_s += now_s - self._since_s

    def answer(self) -> Refuse | None:
        """To a send."""
        if self._refusal is not None:
            self.count += 1
        return self._refusal

    def seconds(self) -> float:
        """For how long sends were refused, all times together."""
        now_s = self._clock.monotonic_s() - self._since_s if self._refusal is not None else 0.0
        return self._past_s + now_s
