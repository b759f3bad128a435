"""Parked requests: woken by their keys only, answered at their deadline, bounded in number."""

from __future__ import annotations

import asyncio
import weakref

from cometmq.broker.park import Park
from cometmq.testing.clock import VirtualClock


class Waiter:
    """Is answered once `ready` is set."""

    def __init__(self) -> None:
        self.ready = False
        self.looks = 0
        self.answers: list[str] = []

    def retry(self) -> bool:
        self.looks += 1
        if self.ready:
            self.answers.append("found")
        return self.ready

    def answer_empty(self) -> None:
        self.answers.append("empty")


def test_only_who_waits_for_the_key_looks_again() -> None:
    async def scenario() -> None:
        park = Park(VirtualClock(), 10)
        one, two = Waiter(), Waiter()
        assert park.hold(one, [("a", 0), ("a", 1)], 1000)
        assert park.hold(two, [("b", 0)], 1000)
        park.fire(("a", 1))
        assert (one.looks, two.looks) == (1, 0)
        assert len(park) == 2, "who found nothing goes on waiting"
        one.ready = True
        park.fire(("a", 0))
        assert one.answers == ["found"]
        assert len(park) == 1
        assert not park.waiting(("a", 1))
        assert park.waiting(("b", 0))
        park.close()

    asyncio.run(scenario())


class Timed(Waiter):
    """Notes when it was told that nothing came."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self.began_s = clock.monotonic_s()
        self.ended_s = 0.0

    def answer_empty(self) -> None:
        self.ended_s = self.clock.monotonic_s()


def test_those_who_wait_about_as_long_are_answered_together_and_none_is_late() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        park = Park(clock, 100)
        waiters = []
        for _ in range(100):
            waiters.append(Timed(clock))
            park.hold(waiters[-1], ["k"], 12_800)
            await clock.run_for(0.01)
        await clock.run_for(12.8)
        assert len({waiter.ended_s for waiter in waiters}) <= 12
        for waiter in waiters:
            assert 12.7 - 1e-6 <= waiter.ended_s - waiter.began_s <= 12.8 + 1e-6

    asyncio.run(scenario())


def test_the_deadline_answers_empty_and_each_has_its_own() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        park = Park(clock, 10)
        late, early = Waiter(), Waiter()
        park.hold(late, ["k"], 5000)
        park.hold(early, ["k"], 1000)
        await clock.run_for(1.5)
        assert (early.answers, late.answers) == (["empty"], [])
        await clock.run_for(4.0)
        assert late.answers == ["empty"]
        assert len(park) == 0

    asyncio.run(scenario())


def test_a_last_look_at_the_deadline_finds_what_is_there() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        park = Park(clock, 10)
        waiter = Waiter()
        park.hold(waiter, ["k"], 1000)
        waiter.ready = True
        await clock.run_for(2.0)
        assert waiter.answers == ["found"]

    asyncio.run(scenario())


def test_the_number_is_bounded_and_a_dropped_one_makes_room() -> None:
    async def scenario() -> None:
        park = Park(VirtualClock(), 1)
        one, two = Waiter(), Waiter()
        assert park.hold(one, ["k"], 1000)
        assert not park.hold(two, ["k"], 1000)
        park.drop(one)
        assert park.hold(two, ["k"], 1000)
        park.release("k")
        assert (one.answers, two.answers) == ([], ["empty"])

    asyncio.run(scenario())


def test_deadlines_of_those_who_left_do_not_pile_up() -> None:
    async def scenario() -> None:
        park = Park(VirtualClock(), 10)
        for _ in range(5000):
            waiter = Waiter()
            waiter.ready = True
            park.hold(waiter, ["k"], 15_000)
            park.fire("k")
        assert len(park._deadlines) < 600
        park.close()

    asyncio.run(scenario())


def test_nothing_is_kept_of_who_left_but_a_deadline() -> None:
    class Key:
        """One of thousands that a fetch may name."""

    async def scenario() -> None:
        park = Park(VirtualClock(), 10)
        waiter, key = Waiter(), Key()
        seen = weakref.ref(waiter), weakref.ref(key)
        park.hold(waiter, [key], 15_000)
        park.drop(waiter)
        del waiter, key
        assert [each() for each in seen] == [None, None]
        park.close()

    asyncio.run(scenario())


def test_close_answers_everybody() -> None:
    async def scenario() -> None:
        park = Park(VirtualClock(), 10)
        waiters = [Waiter() for _ in range(3)]
        for waiter in waiters:
            park.hold(waiter, ["k"], 1000)
        park.fire_all()
        assert [waiter.looks for waiter in waiters] == [1, 1, 1]
        park.close()
        assert [waiter.answers for waiter in waiters] == [["empty"]] * 3

    asyncio.run(scenario())
