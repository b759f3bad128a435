"""When a cron line is due, by the wall time of a place.

Reckoned on the local times of the calendar, each of which comes once: a time that a night of the
clock change leaves out is the first minute after the gap, one that it has twice is the first of
the two. So a job of every day runs every day, and once.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.cron import CronTrigger
from tzlocal import get_localzone

from cometmq.errors import ConfigError

_FIELDS = 5
_TICK = timedelta(microseconds=1)
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_TIME_OF_DAY = re.compile(r"([0-9]{1,2}):([0-9]{2})")
_NUMBERS = re.compile(r"(?:\*|([0-9]+)(?:-([0-9]+))?)(?:/([1-9][0-9]*))?")


class Cron:
    """Five fields (minute, hour, day, month, day of the week) and a place. The day of the week is
    a name or a number from 0, Sunday; if a day of the month is given too, both must fit."""

    def __init__(self, fields: str, timezone: str = "UTC") -> None:
        """`timezone`: a name as in `Europe/Berlin`, or `local`. Raises ConfigError."""
        try:
            # UTC stands for the calendar of the place, where no time is left out or comes twice.
            self._calendar = CronTrigger.from_crontab(_with_named_days(fields), timezone=UTC)
        except ValueError as error:
            raise ConfigError(
                f"cron is {fields!r} ({error}); give five fields as in '0 4 * * *'"
            ) from None
        try:
            self._zone = get_localzone() if timezone == "local" else ZoneInfo(timezone)
        except (ValueError, OSError, ZoneInfoNotFoundError) as error:
            raise ConfigError(
                f"timezone is {timezone!r} ({error}); give a name as in 'Europe/Berlin', or 'local'"
            ) from None

    def next(self, at: datetime) -> datetime | None:
        """The first time that is due at or after `at`, in UTC; None if there is none any more."""
        local = self._local(at)
        while (due := self._calendar.get_next_fire_time(None, local)) is not None:
            instant = self._instant(due)
            if instant >= at:
                return instant
            # In the second pass of an hour that comes twice: it was due in the first one.
            local = due + _TICK
        return None

    def after(self, at: datetime) -> datetime | None:
        """The same, strictly after `at`."""
        return self.next(at + _TICK)

    def _local(self, at: datetime) -> datetime:
        """What the calendar says; in a gap's last moment it is the gap's beginning, so that times
        left out are not skipped."""
        local = at.astimezone(self._zone).replace(tzinfo=UTC)
        before = (at - _TICK).astimezone(self._zone).replace(tzinfo=UTC)
        return min(local, before + _TICK)

    def _instant(self, due: datetime) -> datetime:
        """When the calendar says `due`: in UTC."""
        naive = due.replace(tzinfo=None)
        first = naive.replace(tzinfo=self._zone).astimezone(UTC)
        if first.astimezone(self._zone).replace(tzinfo=None) == naive:
            return first
        return self._gap_end(first)

    def _gap_end(self, inside: datetime) -> datetime:
        """The first minute after a gap; `inside` is a time left out, taken with the offset before
        the change, so it lies behind the gap by as much as it lay within."""
        minute = timedelta(minutes=1)
        offset = inside.astimezone(self._zone).utcoffset()
        at = inside
        while (at - minute).astimezone(self._zone).utcoffset() == offset:
            at -= minute
        return at


def _with_named_days(fields: str) -> str:
    """The line with names for the numbers of weekdays: APScheduler counts them from Monday, cron
    from Sunday, which is 0 or 7. Raises ValueError."""
    *others, weekdays = fields.split() or [""]
    if len(others) != _FIELDS - 1:
        raise ValueError(_no_line(fields))
    return " ".join([*others, ",".join(map(_named, weekdays.split(",")))])


def _no_line(fields: str) -> str:
    """What is wrong with other than five fields; a time of day is often meant for every day."""
    found = _TIME_OF_DAY.fullmatch(fields.strip())
    if found is None:
        return f"fields: {len(fields.split())}"
    hour, minute = map(int, found.groups())
    if hour > 23 or minute > 59:
        return "hours go from 0 to 23, minutes from 0 to 59"
    return f"every day at that time is '{minute} {hour} * * *'"


def _named(part: str) -> str:
    if part in ("", "*") or any(map(str.isalpha, part)):
        return part
    found = _NUMBERS.fullmatch(part)
    if found is not None:
        first, last, step = found.groups()
        low = int(first or 0)
        high = int(last) if last else 6 if step else low
        if low <= high <= 7:
            return ",".join(_DAYS[day % 7] for day in range(low, high + 1, int(step or 1)))
    raise ValueError(f"{part!r} is no part of a week from 0 (Sunday) to 6, or 7 (Sunday)")
