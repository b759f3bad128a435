"""How full the disk is, when to look again, and when it will be full."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from cometmq.environment import Clock
from cometmq_plugins.cleanup.options import CleanupOptions
from cometmq_plugins.cleanup.rules import Mark, mark_of, used_percent

SAMPLE_S = 30.0
SAMPLES = 120
"""The rate is that of the last hour."""
RATE_OVER_S = 60.0
"""A shorter time says nothing about a rate."""
LOOK_BYTES_MIN = 1 << 20


class Disk(NamedTuple):
    """What was seen."""

    bytes_total: int
    bytes_free: int
    mark: Mark

    @property
    def used_percent(self) -> float:
        """0 to 100."""
        return used_percent(self.bytes_total, self.bytes_free)


class DiskWatch:
    """Looks at the file system of the log: when asked, and when so much was sent that it may have
    come near to a mark."""

    def __init__(
        self, clock: Clock, space: Callable[[], tuple[int, int]], options: CleanupOptions
    ) -> None:
        """`space` tells bytes in all and bytes free."""
        self._clock = clock
        self._space = space
        self._options = options
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES)
        self._budget = 0
        self.now = Disk(0, 0, "")

    def look(self) -> Disk:
        """Look now. Raises OSError."""
        total, free = self._space()
        self.now = Disk(total, free, mark_of(used_percent(total, free), self._options))
        self._budget = self._distance() // 4
        now_s = self._clock.monotonic_s()
        if not self._samples or now_s - self._samples[-1][0] >= SAMPLE_S:
            self._samples.append((now_s, total - free))
        return self.now

    def spend(self, size_bytes: int) -> bool:
        """So much is about to be written; True if it was time for a look."""
        self._budget -= size_bytes
        if self._budget >= 0:
            return False
        self.look()
        return True

    def full_in_s(self) -> float | None:
        """When the disk is full at the rate of late; None while it does not fill."""
        if not self._samples:
            return None
        begin_s, used_then = self._samples[0]
        lasted_s = self._clock.monotonic_s() - begin_s
        grown = self.now.bytes_total - self.now.bytes_free - used_then
        if lasted_s < RATE_OVER_S or grown <= 0:
            return None
        return self.now.bytes_free * lasted_s / grown

    def _distance(self) -> int:
        """Bytes up to the next mark."""
        disk, options = self.now, self._options
        used = disk.bytes_total - disk.bytes_free
        percents = (options.space_percent, options.forced_percent, options.refuse_percent)
        above = [percent for percent in percents if percent > disk.used_percent]
        if not above:
            return LOOK_BYTES_MIN
        return max(int(above[0] / 100 * disk.bytes_total) - used, LOOK_BYTES_MIN)
