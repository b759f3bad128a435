"""Runs of one queue under any order of events: nothing is skipped, only what is done committed."""

from __future__ import annotations

import random

import pytest

from cometmq.batch import RecordTuple, encode_messages
from cometmq.client.group_options import GroupOptions
from cometmq.client.grouping import Grouping
from cometmq.client.lane import Lane
from cometmq.client.runs import Run
from cometmq.message import ReceivedMessage
from cometmq.testing.client_rig import ClientRig
from cometmq.testing.scripted_groups import ScriptedGroups

TAGS = ["red", "blue", "green"]
STEPS = 150


class Walk:
    """Workers that take, finish, fail and give back runs of one queue, while it is read."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.orderly = seed % 5 < 2
        words = [["*"], ["red"], ["red", "blue"]][seed % 3]
        self.wanted = set(TAGS) if words == ["*"] else set(words)
        self.rig = ClientRig()
        self.groups = ScriptedGroups(self.rig.broker)
        options = GroupOptions("g", prefetch_messages=20)
        self.grouping = Grouping(self.rig.engine, options, "skip", None, self.acked, False)
        self.listeners = [
            self.grouping.subscribe("orders", word, self.handle, 8, self.orderly) for word in words
        ]
        self.stored: list[str] = []
        self.handled: list[int] = []
        self.out: list[Run] = []
        self.failed = False
        self.failures = 0.05 if seed % 2 else 0.0
        self.groups.advise(("orders", 0))
        self.grouping.start()
        self.rig.step()

    def handle(self, message: ReceivedMessage) -> None:
        """The steps play the handlers."""

    def acked(self, run: Run) -> None:
        """Only an iteration acknowledges."""

    @property
    def lane(self) -> Lane | None:
        return self.grouping.dispatch.lanes.get(("orders", 0))

    @property
    def committed(self) -> int:
        return self.groups.committed("g", "orders", 0) or 0

    def store(self) -> None:
        tags = self.chance.choices(TAGS, k=self.chance.randint(1, 9))
        records: list[RecordTuple] = [(0, b"x", tag, (), {}) for tag in tags]
        self.rig.broker.put("orders", 0, encode_messages("orders", 0, records))
        self.stored += tags
        self.rig.wake()

    def take(self) -> None:
        listener = self.chance.choice(self.listeners)
        listener.run_size = self.chance.randint(1, 6)
        run = self.grouping.next(listener)
        if run is not None:
            assert {message.tag for message in run.messages} <= (listener.tags or self.wanted)
            self.out.append(run)
        assert not (self.orderly and len(self.out) > 1)

    def give_back(self, fail: bool) -> None:
        if not self.out:
            return
        run = self.out.pop(self.chance.randrange(len(self.out)))
        whole = len(run.messages)
        count = self.chance.choice([whole, self.chance.randint(0, whole)])
        failure = ValueError() if fail and count < whole else None
        self.failed |= failure is not None
        self.finish(run, count, failure)

    def finish(self, run: Run, count: int, failure: Exception | None = None) -> None:
        self.handled += [message.offset for message in run.messages[:count]]
        run.done = count
        self.grouping.dispatch.report(run, failure)
        self.rig.step()

    def step(self) -> None:
        """One event."""
        dice = self.chance.random()
        if dice < 0.15:
            self.store()
        elif dice < 0.55:
            self.take()
        elif dice < 0.95:
            self.give_back(fail=dice > 0.95 - self.failures)
        else:
            self.rig.pass_time(6)
        self.rig.run(self.grouping.commit())
        self.check()

    def check(self) -> None:
        done = set(self.handled)
        for offset in range(self.committed):
            assert offset in done or self.stored[offset] not in self.wanted
        assert len(done) == len(self.handled), "handled twice"
        if self.orderly and len(self.listeners) == 1:
            assert self.handled == sorted(self.handled)

    def work(self) -> bool:
        """A worker of each listener takes and finishes what it can."""
        runs = [self.grouping.next(listener) for listener in self.listeners]
        for run in runs:
            if run is not None:
                self.finish(run, len(run.messages))
        return any(runs)

    def end(self) -> None:
        """Finish everything that can be."""
        for run in self.out:
            self.finish(run, len(run.messages))
        self.out.clear()
        self.rig.pass_time(6)
        while self.work():
            self.rig.pass_time(6)


@pytest.mark.parametrize("seed", range(30))
def test_a_queue_that_is_read_to_its_end(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
    walk.end()
    walk.rig.run(walk.grouping.commit())
    walk.check()
    assert walk.committed == len(walk.stored)
    wanted = {at for at, tag in enumerate(walk.stored) if tag in walk.wanted}
    assert set(walk.handled) == wanted


@pytest.mark.parametrize("seed", range(30))
def test_a_queue_that_goes_takes_along_all_that_was_handled(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS // 2):
        walk.step()
    walk.groups.advise()
    for _ in range(STEPS // 2):
        if walk.lane is not None:
            walk.step()
    walk.end()
    walk.check()
    assert walk.lane is None
    assert walk.groups.tokens == {}
    if not walk.failed:
        assert max(walk.handled, default=-1) < walk.committed
