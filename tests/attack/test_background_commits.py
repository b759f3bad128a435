"""Commits that nobody waits for, attacked: refused again and again, cancelled, in a tight loop."""

from __future__ import annotations

import logging

import pytest
from tests.core.test_client_reading import ConsumerRig

from cometmq import PullConsumer
from cometmq.batch import encode_messages
from cometmq.client.background_commits import LATEST_S
from cometmq.client.driver import LOOK_AWAY_S
from cometmq.errors import OutcomeUnknown
from cometmq.protocol import Failure, Operation, Status
from cometmq.real_environment import RealEnvironment
from cometmq.testing.clock import VirtualClock
from cometmq.testing.scripted_broker import Answer, ScriptedBroker
from cometmq.testing.waiting import until

COMMIT = Operation.COMMIT


def committed(rig: ConsumerRig) -> int | None:
    part = rig.broker.committed.get(("billing", "orders", 0))
    return None if part is None else part.offset


def test_commits_that_are_refused_again_and_again_are_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    rig = ConsumerRig(group="billing")
    rig.put(*[b"%d" % number for number in range(100)])
    rig.broker.on[COMMIT] = lambda request: Answer(Failure("no"), Status.REFUSED)
    for _ in range(50):
        assert rig.poll(1)
        rig.reader.commit_soon()
        rig.pass_time(LATEST_S)
    assert len(rig.broker.asked(COMMIT)) > 10
    assert len(caplog.records) == 1
    rig.broker.on.clear()
    rig.reader.commit_soon()
    rig.pass_time(LATEST_S)
    assert committed(rig) == 50
    rig.broker.on[COMMIT] = lambda request: Answer(Failure("no"), Status.REFUSED)
    rig.poll(1)
    rig.reader.commit_soon()
    rig.pass_time(LATEST_S)
    assert len(caplog.records) == 2, "it worked in between, so this is news"


@pytest.mark.parametrize("background", [False, True])
def test_a_commit_that_was_cancelled_is_covered_by_the_next(background: bool) -> None:
    """As `asyncio.wait_for` does, or ctrl-C."""
    rig = ConsumerRig(group="billing")
    rig.put(b"0", b"1")
    rig.poll(1)
    rig.broker.hold(COMMIT)
    if background:
        rig.reader.commit_soon()
        rig.poll(1)
        rig.reader.commit_soon()  # waits to be sent, and the next one takes it along
    task = rig.start(rig.reader.commit())
    task.cancel("a test")
    rig.step()
    rig.broker.on.clear()
    rig.run(rig.reader.commit())
    assert committed(rig) == (2 if background else 1)


def test_no_answer_for_ever_keeps_a_bounded_number_of_commits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = ConsumerRig(group="billing")
    rig.put(*[b"%d" % number for number in range(1000)])
    rig.broker.hold(COMMIT)
    for _ in range(1000):
        assert rig.poll(1)
        rig.reader.commit_soon()
        rig.pass_time(0.002)
    rig.pass_time(20)
    assert len(rig.engine.connection.pending) < 10
    task = rig.start(rig.reader.farewell())
    rig.pass_time(2)
    assert task.done and not isinstance(task.error, OutcomeUnknown)
    assert caplog.text.count("commit failed") == 1


def test_who_commits_in_a_tight_loop_keeps_nobody_from_sending_it() -> None:
    """The calls follow each other at once, which the clock stands for that stands still."""
    broker, clock = ScriptedBroker(queues=1), VirtualClock()
    broker.put("orders", 0, encode_messages("orders", 0, [(1, b"x", "", (), {})] * 10))
    with PullConsumer(
        "scripted://broker",
        connect=broker.connect,
        topic="orders",
        group="g",
        environment=RealEnvironment(clock=clock),
    ) as consumer:
        assert len(consumer.poll(timeout=20)) == 10
        clock.advance(2 * LOOK_AWAY_S)

        def commit_on() -> bool:
            consumer.commit(wait=False)
            return bool(broker.committed)

        assert until(commit_on, 20)
        assert broker.committed["g", "orders", 0].offset == 10
