"""Cleanup's parts one by one: rules, options, forecasts, telling of marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.config import load_config
from cometmq.errors import ConfigError
from cometmq.interfaces import DiskPressure
from cometmq.plugins import compose
from cometmq.testing.clock import VirtualClock
from cometmq_plugins.cleanup.disk import Disk, DiskWatch
from cometmq_plugins.cleanup.marks import MarkTeller
from cometmq_plugins.cleanup.messages import CleanupStatus
from cometmq_plugins.cleanup.options import CleanupOptions
from cometmq_plugins.cleanup.refusing import Refusing
from cometmq_plugins.cleanup.reports import in_words, metrics, status_lines
from cometmq_plugins.cleanup.rules import (
    Mark,
    SegmentFacts,
    is_old,
    mark_of,
    reason_to_go,
    worth_closing,
)

HOUR_MS = 3_600_000
DAY_S = 86_400.0
OPTIONS = CleanupOptions()


# --- rules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "mark"),
    [(0, ""), (75, ""), (75.1, "space"), (85, "forced"), (89.9, "forced"), (90, "refuse")],
)
def test_marks(used: float, mark: Mark) -> None:
    assert mark_of(used, OPTIONS) == mark


@pytest.mark.parametrize(
    ("mark", "due", "old", "held", "reason"),
    [
        ("", True, True, False, "age"),
        ("", False, True, False, None),
        ("", True, False, False, None),
        ("", True, True, True, None),
        ("space", False, True, False, "space"),
        ("space", True, True, False, "age"),
        ("space", False, False, False, None),
        ("space", False, True, True, None),
        ("forced", False, False, False, "forced"),
        ("forced", False, False, True, "forced"),
        ("refuse", True, True, True, "forced"),
    ],
)
def test_why_a_segment_goes(
    mark: Mark, due: bool, old: bool, held: bool, reason: str | None
) -> None:
    assert reason_to_go(mark, due=due, old=old, held=held) == reason


@pytest.mark.parametrize(
    ("newest_ms", "old"),
    [
        ([100], True),
        ([200], False),
        ([], False),
        ([None, 950], True),
        ([None], True),
        ([1001, None, 100], True),
        ([1001, None, 950], False),
        ([1001, 100], True),
        ([1001, None], False),
        ([1000], False),
        ([199], True),
    ],
)
def test_age_counts_from_the_newest_time_that_is_not_in_the_future(
    newest_ms: list[int | None], old: bool
) -> None:
    segments = [SegmentFacts(at, at + 1, time) for at, time in enumerate(newest_ms)]
    assert is_old(segments, now_ms=1000, max_age_ms=800) is old


@pytest.mark.parametrize(
    ("used", "data", "file", "closed"),
    [
        (895, 100, 110, False),
        (900, 100, 110, True),
        (999, 100, 110, True),
        (1000, 100, 110, False),
        (910, 10, 19, False),
        (910, 11, 21, True),
        (910, 100, 200, False),
    ],
)
def test_the_last_segment_is_closed_only_where_that_helps(
    used: int, data: int, file: int, closed: bool
) -> None:
    assert worth_closing(1000, 1000 - used, file, data, OPTIONS) is closed


# --- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("refuse_percent = 80", r"forced_percent \(85\) and refuse_percent \(80\) must not fall"),
        ("space_percent = 86", r"space_percent \(86\), forced_percent \(85\)"),
        ("max_age_hours = -1", "`max_age_hours`.*is -1"),
        ("forced_percent = 101", "`forced_percent`.*is 101"),
        ("check_interval_s = 0", "`check_interval_s`.*is 0"),
        ('at = "4 Uhr"', "at: cron is '4 Uhr'"),
        ('timezone = "Ulm"', "at: timezone is 'Ulm'"),
        ("max_age = 5", "max_age_hours"),
    ],
)
def test_options_that_make_no_sense_are_refused_with_file_and_line(
    tmp_path: Path, line: str, sentence: str
) -> None:
    file = tmp_path / "mq.toml"
    file.write_text(f"[broker]\nname = 'x'\n\n[plugin.cleanup]\n{line}\n")
    with pytest.raises(ConfigError, match=sentence) as error:
        compose(load_config(str(file), {}, {}))
    assert f"{file}:5" in str(error.value) or f"{file}, line 5" in str(error.value)


# --- the disk ---------------------------------------------------------------------------------


class Space:
    """A disk of 1 GB."""

    def __init__(self, used_percent: float = 0.0) -> None:
        self.used_percent = used_percent
        self.looks = 0

    def __call__(self) -> tuple[int, int]:
        self.looks += 1
        return 10**9, int(10**7 * (100 - self.used_percent))


def test_the_disk_is_looked_at_again_before_a_mark_can_be_passed() -> None:
    space = Space(74.0)
    watch = DiskWatch(VirtualClock(), space, OPTIONS)
    watch.look()
    for _ in range(100):
        watch.spend(100_000)
        space.used_percent += 0.01
    assert 4 <= space.looks <= 60, "a quarter of the way is 2.5 MB, then less"
    assert watch.now.used_percent > 74.9


def test_a_forecast_is_made_from_the_last_hour() -> None:
    clock, space = VirtualClock(), Space(10.0)
    watch = DiskWatch(clock, space, OPTIONS)
    watch.look()
    assert watch.full_in_s() is None
    for _ in range(6 * 60):
        clock.advance(30.0)
        space.used_percent += 0.05
        watch.look()
    assert watch.now.used_percent == pytest.approx(28.0)
    assert watch.full_in_s() == pytest.approx(72 / 0.05 * 30, rel=0.01)
    for _ in range(3 * 60):
        clock.advance(30.0)
        watch.look()
    assert watch.full_in_s() is None, "it does not fill any more"


def test_a_disk_of_no_size_is_full() -> None:
    assert Disk(0, 0, "").used_percent == 100.0


def test_sends_are_refused_from_the_mark_on_and_the_time_is_counted() -> None:
    clock = VirtualClock()
    refusing = Refusing(clock, OPTIONS)
    refusing.update(Disk(100, 11, "forced"))
    assert refusing.answer() is None
    refusing.update(Disk(100, 9, "refuse"))
    refusal = refusing.answer()
    assert refusal is not None and (refusal.code, refusal.retry_after_ms) == ("NO_SPACE", 1000)
    assert "91.0 % full" in refusal.reason
    clock.advance(5.0)
    assert (refusing.count, refusing.seconds()) == (1, 5.0)
    refusing.update(Disk(100, 11, "forced"))
    clock.advance(5.0)
    assert refusing.answer() is None
    assert (refusing.count, refusing.seconds()) == (1, 5.0)


class Composed:
    """Stands for the plugins that listen."""

    def __init__(self) -> None:
        self.heard: list[DiskPressure] = []

    def collect_sound(self, hook: str, pressure: DiskPressure) -> list[Any]:
        assert hook == "disk_pressure"
        self.heard.append(pressure)
        return []


def test_each_mark_is_told_once_up_and_down(caplog: pytest.LogCaptureFixture) -> None:
    composed = Composed()
    teller = MarkTeller(composed, OPTIONS)  # type: ignore[arg-type]
    told: list[tuple[float, str]] = []
    for used in (70, 76, 74.5, 75.5, 85, 84.5, 85.5, 91, 89.5, 83.9, 76, 73):
        disk = Disk(1000, int(1000 - 10 * used), mark_of(used, OPTIONS))
        before = len(composed.heard)
        teller.update(disk, 21_600.0)
        told.extend((used, it.mark) for it in composed.heard[before:])
    assert told == [(76, "space"), (85, "forced"), (91, "refuse"), (83.9, "space"), (73, "")]
    assert "full in 6 h at this rate" in caplog.text
    assert composed.heard[0] == DiskPressure("space", 0.76, 240, 21_600.0)


# --- what is said -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1, "1 s"), (119, "119 s"), (120, "2 min"), (6 * 3600, "6 h"), (12 * DAY_S, "12 d")],
)
def test_lengths_of_time_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_what_is_said_in_words_and_numbers() -> None:
    quiet = CleanupStatus(1000, 400, 60.0, 75, 85, 90, "")
    assert status_lines(quiet) == {
        "disk": "60.0 % used, marks 75/85/90 %",
        "cleanup": "nothing deleted since the start",
    }
    loud = msgspec.structs.replace(
        quiet,
        mark="refuse",
        full_in_s=3600.0 * 6,
        refused=7,
        refused_s=200.0,
        last_gone_ms=1_750_000_000_000,
        deleted={"age": (2, 3_000_000), "forced": (0, 0)},
        clock_in_doubt_ms=240 * HOUR_MS,
        clock_confirmed_in_ms=12 * HOUR_MS,
    )
    lines = status_lines(loud)
    assert lines["disk"].endswith("past the mark refuse, full in 6 h at this rate")
    assert lines["cleanup"].endswith("2 by age (3.0 MB); last at 2025-06-15 15:06:40 UTC")
    assert lines["refused"] == "7 sends, for 3 min altogether"
    assert lines["clock"].startswith("10 d ahead of what is believed; ages count by it in 12 h")
    named = {(it.name, *it.labels.values()): it.value for it in metrics(loud)}
    assert named["segments_deleted", "age"] == 2
    assert named["disk_full_in_seconds",] == 21_600
    assert ("disk_full_in_seconds",) not in {(it.name,) for it in metrics(quiet)}
