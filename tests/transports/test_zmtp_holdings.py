"""What connections hold together: the sum, and who goes first."""

from __future__ import annotations

from cometmq.testing.clock import VirtualClock
from cometmq_transports.zmtp.holdings import Holdings


class Someone:
    def __init__(self, held_bytes: int) -> None:
        self.held_bytes = held_bytes
        self.counted_bytes = 0
        self.moved_s = 0.0


def goes(holdings: Holdings) -> list[int]:
    """What those held who have to go, in their order."""
    gone = []
    for holder in holdings.excess():
        gone.append(holder.held_bytes)
        holdings.forget(holder)
    return gone


def test_the_sum_follows_what_each_holds() -> None:
    holdings = Holdings(VirtualClock(), 1000)
    one, other = Someone(600), Someone(300)
    holdings.count(one)
    holdings.count(other)
    assert holdings.total_bytes == 900 and not holdings.too_much
    other.held_bytes = 500
    holdings.count(other)
    assert holdings.too_much
    one.held_bytes = 0
    holdings.count(one)
    assert holdings.total_bytes == 500
    holdings.forget(one)
    holdings.forget(other)
    holdings.forget(other)
    assert holdings.total_bytes == 0


def test_whoever_holds_most_goes_first_and_no_more_than_have_to() -> None:
    holdings = Holdings(VirtualClock(), 1600)
    for size in (100, 800, 400, 500):
        holdings.count(Someone(size))
    assert goes(holdings) == [800]
    assert holdings.total_bytes == 1000


def test_whoever_does_not_move_goes_before_who_holds_more_and_moves() -> None:
    clock = VirtualClock()
    holdings = Holdings(clock, 1000)
    still, moving = Someone(400), Someone(700)
    holdings.count(still)
    holdings.count(moving)
    clock.advance(10.0)
    moving.held_bytes = 701
    holdings.count(moving)
    assert goes(holdings) == [400]


def test_room_is_made_for_more_than_one_byte() -> None:
    holdings = Holdings(VirtualClock(), 1600)
    for _ in range(161):
        holdings.count(Someone(10))
    assert goes(holdings) == [10] * 11
