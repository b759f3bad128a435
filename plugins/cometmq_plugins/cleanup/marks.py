"""Telling people and plugins that the disk passed a mark, before anything is refused."""

from __future__ import annotations

import logging

from cometmq.interfaces import DiskPressure
from cometmq.plugins import Composition
from cometmq_plugins.cleanup.disk import Disk
from cometmq_plugins.cleanup.options import CleanupOptions
from cometmq_plugins.cleanup.reports import in_words
from cometmq_plugins.cleanup.rules import Mark, mark_of

logger = logging.getLogger(__name__)

BACK_PERCENT = 1.0
"""A mark counts as left so far below it: a disk that hovers at one is told of once."""
_ORDER: tuple[Mark, ...] = ("", "space", "forced", "refuse")
_MEANING: dict[Mark, str] = {
    "space": "old segments go at once",
    "forced": "the oldest segments go whatever their age",
    "refuse": "sends are refused",
}


class MarkTeller:
    """Remembers what was told."""

    def __init__(self, composition: Composition, options: CleanupOptions) -> None:
        self._composition = composition
        self._options = options
        self._told: Mark = ""

    def update(self, disk: Disk, full_in_s: float | None) -> None:
        """The disk was looked at."""
        mark, used = disk.mark, disk.used_percent
        if _ORDER.index(mark) < _ORDER.index(self._told):
            mark = mark_of(used + BACK_PERCENT, self._options)
            if _ORDER.index(mark) >= _ORDER.index(self._told):
                return
        if mark == self._told:
            return
        risen = _ORDER.index(mark) > _ORDER.index(self._told)
        self._told = mark
        text = f"the disk of the log is {used:.1f} % full"
        if risen:
            full = "" if full_in_s is None else f"; full in {in_words(full_in_s)} at this rate"
            logger.warning("%s: %s%s", text, _MEANING[mark], full)
        else:
            logger.warning("%s again: %s", text, _MEANING.get(mark, "below all marks"))
        pressure = DiskPressure(mark, used / 100, disk.bytes_free, full_in_s)
        self._composition.collect_sound("disk_pressure", pressure=pressure)
