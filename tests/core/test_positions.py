"""Positions and their waiters: who is called when, in which order, and how often."""

from __future__ import annotations

import logging

import pytest

from cometmq.log.positions import Outcome, Positions, Waiters
from cometmq.log.segment_index import QueueKey


@pytest.fixture
def positions() -> Positions:
    return Positions("disk", 1000)


class Heard:
    """Notes which callback was called, and how."""

    def __init__(self, positions: Positions) -> None:
        self.positions = positions
        self.calls: list[tuple[str, Outcome]] = []

    def wait(self, name: str, position: int, label: str) -> None:
        self.positions.wait(name, position, lambda o: self.calls.append((label, o)))  # type: ignore[arg-type]

    def take(self) -> list[str]:
        labels = [label for label, _ in self.calls]
        self.calls.clear()
        return labels


def test_each_position_has_its_own_waiters(positions: Positions) -> None:
    heard = Heard(positions)
    for name in ("appended", "synced", "settled", "readable"):
        heard.wait(name, 100, name)
    positions.move_appended(100)
    assert heard.take() == ["appended"]
    positions.move_synced(100)
    assert heard.take() == ["synced", "settled", "readable"]
    assert positions.waiting() == 0


def test_waiters_are_called_by_position_whenever_they_came(positions: Positions) -> None:
    heard = Heard(positions)
    for position in (30, 10, 20, 10):
        heard.wait("appended", position, f"{position}")
    positions.move_appended(9)
    assert heard.take() == []
    positions.move_appended(20)
    assert heard.take() == ["10", "10", "20"]
    positions.move_appended(30)
    assert heard.take() == ["30"]


def test_what_is_reached_is_told_at_once(positions: Positions) -> None:
    positions.start_at(50)
    heard = Heard(positions)
    heard.wait("synced", 50, "now")
    assert heard.take() == ["now"]


def test_a_cut_ends_the_waits_beyond_it_in_order(positions: Positions) -> None:
    heard = Heard(positions)
    for position in (10, 20, 30):
        heard.wait("appended", position, f"{position}")
    positions.move_appended(10)
    heard.take()
    positions.cut(10, Outcome.NOT_WRITTEN)
    assert heard.calls == [("20", Outcome.NOT_WRITTEN), ("30", Outcome.NOT_WRITTEN)]
    assert positions.appended == 10


def test_everybody_hears_of_the_end(positions: Positions) -> None:
    heard = Heard(positions)
    heard.wait("synced", 5, "a")
    heard.wait("readable", 5, "b")
    positions.drop_all()
    assert heard.calls == [("a", Outcome.DROPPED), ("b", Outcome.DROPPED)]


def test_a_waiter_that_fails_takes_nobody_along(
    positions: Positions, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard(positions)

    def fail(outcome: Outcome) -> None:
        raise RuntimeError("no")

    positions.wait("appended", 5, fail)
    heard.wait("appended", 5, "next")
    with caplog.at_level(logging.ERROR):
        positions.move_appended(5)
    assert heard.take() == ["next"]
    assert "a waiter for a log position failed" in caplog.text


def test_a_callback_may_wait_again() -> None:
    waiters = Waiters()
    calls: list[int] = []

    def again(outcome: Outcome) -> None:
        calls.append(1)
        waiters.add(20, lambda _: calls.append(2))

    waiters.add(10, again)
    waiters.reach(10)
    waiters.reach(20)
    assert calls == [1, 2]


def test_too_much_unsynced_makes_those_wait_who_trust_memory(positions: Positions) -> None:
    heard = Heard(positions)
    heard.wait("appended", 1000, "within")
    heard.wait("appended", 1001, "beyond")
    positions.move_appended(1500)
    assert heard.take() == ["within"]
    assert positions.excess and positions.awaits_sync()
    positions.move_synced(1)
    assert heard.take() == ["beyond"]


def test_readers_hear_of_the_queues_that_got_something(positions: Positions) -> None:
    told: list[tuple[int, int, set[QueueKey]]] = []
    positions.on_readable = lambda start, end, queues: told.append((start, end, queues))
    positions.note_messages(10, (1, 0))
    positions.note_messages(20, (1, 1))
    positions.note_messages(30, (1, 1))
    positions.move_appended(30)
    positions.note_messages(40, (2, 0))
    positions.move_appended(50)
    assert told == []
    positions.move_synced(30)
    positions.move_synced(50)
    assert told == [(0, 30, {(1, 0), (1, 1)}), (30, 50, {(2, 0)})]


def test_control_batches_alone_wake_no_reader(positions: Positions) -> None:
    told: list[int] = []
    positions.on_readable = lambda start, end, queues: told.append(end)
    positions.move_appended(50)
    positions.move_synced(50)
    assert told == [] and positions.readable == 50


def test_one_queue_in_two_drains_is_told_twice(positions: Positions) -> None:
    told: list[int] = []
    positions.on_readable = lambda start, end, queues: told.append(end)
    for end in (10, 20):
        positions.note_messages(end, (1, 0))
        positions.move_appended(end)
    positions.move_synced(10)
    positions.move_synced(20)
    assert told == [10, 20]


def test_after_a_cut_readers_still_hear_of_what_was_kept(positions: Positions) -> None:
    told: list[set[QueueKey]] = []
    positions.on_readable = lambda start, end, queues: told.append(queues)
    positions.note_messages(10, (1, 0))
    positions.note_messages(20, (1, 0))
    positions.move_appended(20)
    positions.cut(10, Outcome.DROPPED)
    positions.move_synced(10)
    assert told == [{(1, 0)}]


def test_with_level_memory_readers_see_what_is_appended() -> None:
    positions = Positions("memory", 1000)
    positions.move_appended(10)
    assert positions.readable == 10
    assert not positions.awaits_sync()


def test_a_sync_is_awaited_by_who_waits_for_the_disk(positions: Positions) -> None:
    heard = Heard(positions)
    heard.wait("readable", 10, "reader")
    assert not positions.awaits_sync()
    positions.move_appended(10)
    assert positions.awaits_sync()
    positions.move_synced(10)
    assert not positions.awaits_sync()
