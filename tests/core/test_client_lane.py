"""Runs of one queue under any order of events: nothing is skipped, only what is done committed."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cometmq.batch import RecordTuple, encode_messages
from cometmq.client.group_options import GroupOptions
from cometmq.client.grouping import Grouping
from cometmq.client.lane import Lane
from cometmq.client.listeners import Listener
from cometmq.client.runs import Run
from cometmq.message import ReceivedMessage
from cometmq.protocol import Operation
from cometmq.testing.client_rig import ClientRig
from cometmq.testing.scripted_groups import ScriptedGroups

TAGS = ["red", "blue", "green"]


def nothing(message: ReceivedMessage) -> None:
    """Handlers are played by the rules."""


class LaneMachine(RuleBasedStateMachine):
    """Workers that take, finish, fail and give back runs of one queue, while it is read."""

    @initialize(orderly=st.booleans(), tags=st.sampled_from(["*", "red", "red || blue"]))
    def begin(self, orderly: bool, tags: str) -> None:
        self.rig = ClientRig()
        self.groups = ScriptedGroups(self.rig.broker)
        self.grouping = Grouping(
            self.rig.engine,
            GroupOptions("g", prefetch_messages=20),
            "skip",
            None,
            self.acked,
            False,
        )
        self.listeners: list[Listener] = []
        words = tags.split(" || ")
        for word in words:
            self.listeners.append(self.grouping.subscribe("orders", word, nothing, 8, orderly))
        self.wanted = set(TAGS) if tags == "*" else set(words)
        self.orderly = orderly
        self.groups.advise(("orders", 0))
        self.grouping.start()
        self.rig.step()
        self.stored: list[str] = []
        self.handled: set[int] = set()
        self.out: list[Run] = []
        self.draining = False

    def acked(self, run: Run) -> None:
        """Only an iteration acknowledges."""

    @property
    def lane(self) -> Lane | None:
        return self.grouping.dispatch.lanes.get(("orders", 0))

    @rule(tags=st.lists(st.sampled_from(TAGS), min_size=1, max_size=8))
    def store(self, tags: list[str]) -> None:
        records: list[RecordTuple] = [(0, b"x", tag, (), {}) for tag in tags]
        self.rig.broker.put("orders", 0, encode_messages("orders", 0, records))
        self.stored += tags
        for request in self.rig.broker.asked(Operation.FETCH):
            if request.id in self.rig.engine.connection.pending:
                answer = self.rig.broker.default(request)
                if answer is not None:
                    request.answer(answer)
        self.rig.step()

    @rule(data=st.data(), size=st.integers(1, 5))
    def take(self, data: Any, size: int) -> None:
        listener = data.draw(st.sampled_from(self.listeners))
        listener.run_size = size
        run = self.grouping.next(listener)
        if run is not None:
            for message in run.messages:
                assert message.tag in (listener.tags or TAGS)
            self.out.append(run)
        assert not (self.orderly and len(self.out) > 1)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), failing=st.booleans())
    def give_back(self, data: Any, failing: bool) -> None:
        run = data.draw(st.sampled_from(self.out))
        count = data.draw(st.integers(0, len(run.messages)))
        self.out.remove(run)
        self.handled |= {message.offset for message in run.messages[:count]}
        run.done = count
        failure = ValueError() if failing and count < len(run.messages) else None
        self.grouping.dispatch.report(run, failure)
        self.rig.step()

    @rule()
    def wait(self) -> None:
        self.rig.pass_time(6)

    @rule()
    def commit(self) -> None:
        self.rig.run(self.grouping.commit())

    @precondition(lambda self: not self.draining)
    @rule()
    def drain(self) -> None:
        self.groups.advise()
        self.rig.step()
        self.draining = True

    @invariant()
    def only_what_is_done_is_committed(self) -> None:
        if not hasattr(self, "stored"):
            return
        committed = self.groups.committed("g", "orders", 0) or 0
        for offset in range(committed):
            assert offset in self.handled or self.stored[offset] not in self.wanted

    def teardown(self) -> None:
        if not hasattr(self, "stored"):
            return
        for run in self.out:
            self.handled |= {message.offset for message in run.messages}
            run.done = len(run.messages)
            self.grouping.dispatch.report(run)
        self.rig.pass_time(6)
        while self.lane is not None and any(self.work(each) for each in self.listeners):
            self.rig.pass_time(6)
        if not self.draining:
            self.rig.run(self.grouping.commit())
            wanted = {at for at, tag in enumerate(self.stored) if tag in self.wanted}
            assert wanted <= self.handled
            assert (self.groups.committed("g", "orders", 0) or 0) == len(self.stored)
        else:
            assert self.lane is None
            assert self.groups.tokens == {}

    def work(self, listener: Listener) -> bool:
        run = self.grouping.next(listener)
        if run is None:
            return False
        self.handled |= {message.offset for message in run.messages}
        run.done = len(run.messages)
        self.grouping.dispatch.report(run)
        self.rig.step()
        return True


LaneMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLane = LaneMachine.TestCase
