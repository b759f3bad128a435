"""What is done in fewer steps while little is going on must be what is done otherwise."""

from __future__ import annotations

import errno
from collections import deque
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq import Message, Refused, SendResult
from cometmq.client.flows import Task
from cometmq.client.lone import Lone
from cometmq.client.producer_options import ProducerOptions
from cometmq.client.producing import Accumulator
from cometmq.interfaces import Level
from cometmq.log import LogSettings, Outcome, writer
from cometmq.protocol import Operation, Send, SendReply, SendResultPart, Status
from cometmq.protocol.sends import SEQUENCES
from cometmq.testing.client_rig import ClientRig
from cometmq.testing.log_kit import LogKit, in_loop
from cometmq.testing.scripted_broker import Answer, Request

HOUR_S = 3600.0
AGING = LogSettings(mark_idle_ms=3_000_000_000, segment_age_s=10 * HOUR_S)


# --- the log ------------------------------------------------------------------------------------


@in_loop
async def test_a_segment_closes_by_its_first_message_s_age(kit: LogKit) -> None:
    await kit.open(settings=AGING)
    await kit.settle(20 * HOUR_S)
    assert len(kit.storage.segments()) == 1, "it has no message"
    await kit.send()
    await kit.settle(9.9 * HOUR_S)
    await kit.send()
    assert len(kit.storage.segments()) == 1
    await kit.settle(0.2 * HOUR_S)
    assert len(kit.storage.segments()) == 2, "it needs no further message for that"


@in_loop
async def test_the_age_of_what_was_cut_is_nobody_s(kit: LogKit) -> None:
    await kit.open(settings=AGING)
    await kit.send()
    await kit.settle(9 * HOUR_S)
    kit.environment.files.fail("write", errno.EIO, name=".seg")
    lost = kit.wait("disk", kit.append())
    kit.log.write()
    assert lost == [Outcome.NOT_WRITTEN]
    await kit.send()
    begun = len(kit.storage.segments())
    await kit.settle(2 * HOUR_S)
    assert len(kit.storage.segments()) == begun, "its first message is two hours old"
    await kit.settle(8.1 * HOUR_S)
    assert len(kit.storage.segments()) == begun + 1


@in_loop
async def test_a_segment_that_was_begun_after_a_cut_keeps_more_than_one_message(
    kit: LogKit,
) -> None:
    await kit.open(settings=AGING)
    await kit.send()
    kit.environment.files.fail("write", errno.EIO, name=".seg")
    kit.append()
    kit.log.write()
    await kit.settle(11 * HOUR_S)
    begun = len(kit.storage.segments())
    for _ in range(3):
        await kit.send()
    assert len(kit.storage.segments()) == begun


@in_loop
async def test_a_message_for_which_memory_is_short_leaves_no_hole(
    kit: LogKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kit.open()
    await kit.send(count=3)

    def short(*arguments: object) -> bytearray:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(writer, "stamped", short)
        with pytest.raises(MemoryError):
            kit.append(count=5)
    kit.log.write()
    assert kit.log.next_offset(1, 0) == 3
    assert (await kit.send()).base_offset == 3


# --- the producer -------------------------------------------------------------------------------


class Side(ClientRig):
    """A producer of which the test knows everything that can be seen from outside, and when."""

    def __init__(self, *, lone: bool, sequences: bool, **options: Any) -> None:
        super().__init__(queues=2)
        self.broker.features = [SEQUENCES] if sequences else []
        self.lone = lone
        self.taken = 0
        """How many went the short way."""
        self.broker.on[Operation.SEND] = self._hold
        self.producer = Accumulator(self.engine, ProducerOptions(**options), self, nullcontext())
        self.held: deque[Request] = deque()
        self.seen: list[object] = []
        self.tasks: list[Task[SendResult]] = []

    def _hold(self, request: Request) -> None:
        assert isinstance(request.header, Send)
        batches = [bytes(view) for view in request.batches]
        self.seen.append((self._now(), request.id, request.header, batches))
        self.held.append(request)

    def _now(self) -> float:
        return round(self.environment.clock.monotonic_s(), 6)

    def send(self, message: Message, level: Level | None) -> None:
        number = len(self.tasks) + 1
        try:
            lone = self.producer.begin_lone(message, level) if self.lone else None
        except Refused as error:
            self.seen.append((self._now(), "refused", str(error)))
            return
        if lone is None:
            task = self.start(self.producer.send(message, level))
            if task.done and isinstance(task.error, Refused):
                self.seen.append((self._now(), "refused", str(task.error)))
                return
        else:
            self.taken += 1
            self.engine.send_now()
            task = self.engine.spawn(_result_of(lone))
        self.tasks.append(task)
        task.add_waiter(lambda: self.seen.append((self._now(), number, _outcome(task))))
        self.step()

    def answer(self, status: int, pause_ms: int) -> None:
        if not self.held:
            return
        request = self.held.popleft()
        if status == Status.OK:
            request.answer(Answer(self.broker.store(request)))
        elif status == PART:
            part = SendResultPart(Status.RETRY, detail="part", retry_after_ms=pause_ms)
            request.answer(Answer(SendReply([part] * len(request.batches))))
        elif status == OUT_OF_ROW:
            part = SendResultPart(Status.OUT_OF_SEQUENCE, detail="row")
            request.answer(Answer(SendReply([part] * len(request.batches))))
        elif status == TOO_FEW:
            request.answer(Answer(SendReply([])))
        else:
            request.fail(status, "because", pause_ms)
        self.step()

    def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("send", key, size, tag, level):
                self.send(Message("t", bytes(size), tag, sharding_key=key), level)
            case ("soon", key):
                self.start(self.producer.append(Message("t", b"soon", sharding_key=key), None))
            case ("one way",):
                self.start(self.producer.send_one_way(Message("t", b"gone")))
            case ("answer", status, pause_ms):
                self.answer(status, pause_ms)
            case ("break",):
                self.held.clear()
                if not self.broker.channels[-1].closed:
                    self.broker.break_connection()
                self.step()
            case ("full", full):
                self.broker.full = full
                self.step()
            case ("wait", seconds):
                self.pass_time(seconds)
            case ("flush",):
                self.start(self.producer.flush(0))

    def state(self) -> tuple[object, ...]:
        """What else must be equal at every moment."""
        producer = self.producer
        return (
            self.seen,
            producer.unacknowledged(),
            producer.room.used_bytes,
            producer.sender.requests,
            [state.in_flight for state in producer.topics.values()],
            [state.next_queue for state in producer.topics.values()],
        )


async def _result_of(lone: Lone) -> SendResult:
    stored = await lone
    return SendResult(stored.base_offset, stored)


def _outcome(task: Task[SendResult]) -> object:
    if task.error is not None:
        return type(task.error).__name__, getattr(task.error, "code", ""), str(task.error)
    return task.result()


PART, OUT_OF_ROW, TOO_FEW = -1, -2, -3
keys = st.sampled_from([None, None, "a", "b"])
pauses_ms = st.sampled_from([0, 0, 700, 5000])
statuses = st.sampled_from(
    [0, 0, 0, PART, OUT_OF_ROW, TOO_FEW]
    + [Status.RETRY, Status.NO_SPACE, Status.IN_DOUBT, Status.TOPIC_GONE, Status.BAD_BATCH]
    + [Status.LEVEL_NOT_AVAILABLE, Status.HELLO_REQUIRED, Status.STOPPING]
)
sends = st.tuples(
    st.just("send"),
    keys,
    st.sampled_from([0, 1, 300, 16 << 10, (16 << 10) + 1, 40_000, 5 << 20]),
    st.sampled_from(["", "x", "t" * 40_000]),
    st.sampled_from([None, None, "memory", "disk", "quorum", "gold"]),
)
plain_sends = st.tuples(st.just("send"), keys, st.just(10), st.just(""), st.just(None))
steps = st.one_of(
    plain_sends,
    plain_sends,
    sends,
    st.tuples(st.just("answer"), st.just(0), st.just(0)),
    st.tuples(st.just("answer"), statuses, pauses_ms),
    st.tuples(st.just("soon"), keys),
    st.sampled_from([("break",), ("flush",), ("one way",), ("full", True), ("full", False)]),
    st.tuples(st.just("wait"), st.sampled_from([0.001, 0.2, 1.0, 4.9, 5.1, 31.0, 400.0])),
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.lists(steps, min_size=3, max_size=25), st.booleans(), st.sampled_from(["block", "raise"]))
def test_who_sends_alone_sees_what_he_sees_on_the_long_way(
    script: list[tuple[Any, ...]], sequences: bool, when_full: Any
) -> None:
    options = {"send_timeout": 5.0, "buffer_bytes": 60_000, "when_full": when_full}
    short = Side(lone=True, sequences=sequences, **options)
    long = Side(lone=False, sequences=sequences, **options)
    known = ("send", None, 1, "", None), ("answer", 0, 0)
    for step in [*known, *script, ("full", False), ("wait", 40.0)]:
        short.do(step)
        long.do(step)
        assert short.state() == long.state(), step
    for task in short.tasks + long.tasks:
        assert task.done
