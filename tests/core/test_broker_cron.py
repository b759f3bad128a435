"""Cron lines by the wall time of a place: every day once, whatever its nights do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cometmq.broker.cron import Cron
from cometmq.errors import ConfigError

BERLIN = "Europe/Berlin"


def due(fields: str, begin: str, count: int, timezone: str = BERLIN) -> list[str]:
    """The next times after `begin`, all in UTC."""
    cron, at = Cron(fields, timezone), datetime.fromisoformat(begin).replace(tzinfo=UTC)
    found = []
    for _ in range(count):
        following = cron.after(at)
        assert following is not None and following > at
        at = following
        found.append(f"{at:%m-%d %H:%M}")
    return found


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ("25:00", "hours go from 0 to 23"),
        ("04:60", "minutes from 0 to 59"),
        ("04:30", r"every day at that time is '30 4 \* \* \*'"),
        ("* * * * * *", "fields: 6"),
        ("", "fields: 0"),
    ],
)
def test_what_has_no_five_fields_is_not_blamed_on_a_weekday(fields: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Cron(fields)


@pytest.mark.parametrize(
    ("fields", "begin", "expected"),
    [
        # Summer time begins on 29 March 2026 at 01:00 UTC: 02:00 to 02:59 are left out.
        ("0 4 * * *", "2026-03-28", ["03-28 03:00", "03-29 02:00", "03-30 02:00"]),
        ("30 2 * * *", "2026-03-28", ["03-28 01:30", "03-29 01:00", "03-30 00:30"]),
        ("0 2 * * *", "2026-03-28T12:00", ["03-29 01:00", "03-30 00:00"]),
        ("*/30 * * * *", "2026-03-29T00:20", ["03-29 00:30", "03-29 01:00", "03-29 01:30"]),
        # It ends on 25 October 2026 at 01:00 UTC: 02:00 to 02:59 come twice.
        ("0 4 * * *", "2026-10-24", ["10-24 02:00", "10-25 03:00", "10-26 03:00"]),
        ("30 2 * * *", "2026-10-24", ["10-24 00:30", "10-25 00:30", "10-26 01:30"]),
        ("*/30 * * * *", "2026-10-25T00:00", ["10-25 00:30", "10-25 02:00", "10-25 02:30"]),
    ],
)
def test_both_nights_of_the_clock_change(fields: str, begin: str, expected: list[str]) -> None:
    assert due(fields, begin, len(expected)) == expected


def test_a_gap_of_half_an_hour_ends_where_it_ends() -> None:
    # Lord Howe Island: on 4 October 2026 at 02:00 the clocks go to 02:30.
    assert due("15 2 * * *", "2026-10-03T12:00", 1, "Australia/Lord_Howe") == ["10-03 15:30"]


def test_a_time_that_is_now_is_due_now_but_not_after_now() -> None:
    cron, at = Cron("0 4 * * *"), datetime(2026, 1, 1, 4, tzinfo=UTC)
    assert cron.next(at) == at
    assert cron.after(at) == at + timedelta(days=1)


def test_the_first_minute_after_a_gap_is_found_from_within_it() -> None:
    end = datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert Cron("30 2 * * *", BERLIN).next(end) == end


def test_the_machines_own_zone_is_taken_by_its_name() -> None:
    assert Cron("0 4 * * *", "local").after(datetime(2026, 1, 1, tzinfo=UTC)) is not None


def test_a_date_that_never_comes_is_never_due() -> None:
    assert Cron("0 0 30 2 *").next(datetime(2026, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("fields", "timezone", "sentence"),
    [
        ("4 o'clock", "UTC", 'cron is "4 o\'clock".*five fields'),
        ("0 25 * * *", "UTC", "five fields"),
        ("0 4 * * *", "Ulm", "timezone is 'Ulm'.*Europe/Berlin"),
        ("0 4 * * *", "../etc/passwd", "timezone is"),
    ],
)
def test_what_is_no_time_or_no_place_is_named(fields: str, timezone: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Cron(fields, timezone)
