"""A member in bad weather, step by step on virtual time: frozen, cut off, without answers, with a
poisonous message, with acks that never come. What each would do wrong was seen before it was
mended."""

from __future__ import annotations

from typing import Any

from cometmq.batch import RecordTuple, encode_messages
from cometmq.client.group_options import GroupOptions
from cometmq.client.grouping import Grouping, handle
from cometmq.client.handout import HeldMessage
from cometmq.client.listeners import Listener
from cometmq.message import ReceivedMessage
from cometmq.protocol import RECONNECT_MS, Operation
from cometmq.testing.client_rig import ClientRig
from cometmq.testing.scripted_broker import Answer, Request
from cometmq.testing.scripted_groups import ScriptedGroups

BORN_MS = 1_700_000_000_000


class MemberRig(ClientRig):
    """One member of a group that subscribes `orders`, and what it handled."""

    def __init__(self, *, iterate: bool = False, orderly: bool = False, **options: Any) -> None:
        super().__init__()
        self.groups = ScriptedGroups(self.broker)
        self.seen: list[bytes] = []
        self.poison = b""
        self.grouping = Grouping(
            self.engine,
            GroupOptions("g", **options),
            "skip",
            None,
            lambda run: self.grouping.acked(run),
            False,
        )
        handler = None if iterate else self.handle
        self.listener: Listener = self.grouping.subscribe("orders", "*", handler, 8, orderly)

    def join(self, *queues: int) -> None:
        """Start, and get these queues."""
        self.advise(*queues)
        self.grouping.start()
        self.step()

    def advise(self, *queues: int) -> None:
        self.groups.advise(*(("orders", queue) for queue in queues))
        self.step()

    def put(self, *bodies: bytes, queue: int = 0) -> None:
        """Store one batch and answer the fetches that wait."""
        records: list[RecordTuple] = [(BORN_MS, body, "", (), {}) for body in bodies]
        self.broker.put("orders", queue, encode_messages("orders", queue, records), epoch=1)
        self.wake()

    def handle(self, message: ReceivedMessage) -> None:
        if message.body == self.poison:
            raise ValueError("poison")
        self.seen.append(message.body)

    def work(self) -> list[bytes]:
        """A worker handles all that there is; returns the bodies."""
        before = len(self.seen)
        grouping, now_s = self.grouping, self.environment.clock.monotonic_s
        while (run := grouping.next(self.listener)) is not None:
            failure = handle(run, self.handle, now_s, grouping.lease)
            grouping.dispatch.report(run, failure)
            self.step()
        return self.seen[before:]

    def receive(self) -> HeldMessage | None:
        """What an iteration gets."""
        handout = self.grouping.handout
        message = handout.next()
        if message is None:
            handout.turn()
            message = handout.next()
        self.step()
        return message

    def queues(self) -> list[int]:
        return [queue for _, queue in self.grouping.queues()]


def unanswered(rig: MemberRig, operation: Operation, *, carried_out: bool) -> list[Request]:
    """The broker answers these requests no more; returns those that come."""
    found: list[Request] = []
    original = rig.broker.on[operation]

    def silence(request: Request) -> Answer | None:
        found.append(request)
        if carried_out:
            original(request)
        return None

    rig.broker.on[operation] = silence
    return found


def test_who_wakes_up_hands_out_nothing_before_its_claims_are_confirmed() -> None:
    rig = MemberRig(session_timeout_s=10.0)
    rig.join(0)
    rig.put(b"a", b"b")
    rig.groups.void()
    answer = rig.broker.on[Operation.CLAIM]
    asked = unanswered(rig, Operation.CLAIM, carried_out=False)
    rig.environment.clock.advance(30.0)
    rig.pass_time(0.5)
    assert rig.grouping.lease.until_s > rig.environment.clock.monotonic_s(), "it is heard again"
    assert len(asked) == 1
    assert rig.work() == []
    rig.broker.on[Operation.CLAIM] = answer
    late = answer(asked[0])
    assert late is not None
    asked[0].answer(late)
    rig.step()
    rig.wake()
    assert rig.work() == [b"a", b"b"]


def test_who_wakes_up_and_still_has_its_queues_goes_on_where_it_was() -> None:
    rig = MemberRig(session_timeout_s=10.0)
    rig.groups.kept = True
    rig.join(0)
    rig.put(b"a", b"b")
    assert rig.work() == [b"a", b"b"]
    rig.put(b"c")
    rig.environment.clock.advance(30.0)
    rig.pass_time(0.5)
    assert rig.work() == [b"c"]


def test_who_is_cut_off_stops_before_the_broker_gives_its_queues_away() -> None:
    rig = MemberRig(session_timeout_s=10.0)
    rig.join(0)
    rig.put(*(b"%d" % number for number in range(4)))
    run = rig.grouping.next(rig.listener)
    assert run is not None
    rig.grouping.dispatch.report(run)  # a message that it did not begin
    rig.broker.on[Operation.HELLO] = lambda request: None
    rig.engine.connection.lost(rig.environment.clock.monotonic_s(), "a test")
    rig.pass_time(RECONNECT_MS / 1000 - 1.0)
    assert rig.grouping.next(rig.listener) is not None, "a short break stops nothing"
    rig.pass_time(0.9)
    assert rig.grouping.next(rig.listener) is None


def test_a_claim_without_an_answer_does_not_leave_a_queue_with_nobody() -> None:
    rig = MemberRig()
    answer = rig.broker.on[Operation.CLAIM]
    unanswered(rig, Operation.CLAIM, carried_out=True)
    rig.join(0)
    rig.pass_time(5.0)
    assert rig.groups.tokens, "the broker believes that the queue is the member's"
    rig.advise()
    rig.pass_time(10.0)
    rig.broker.on[Operation.CLAIM] = answer
    rig.pass_time(10.0)
    assert not rig.groups.tokens, "though nobody wanted it any more"
    assert rig.queues() == []


def test_a_release_waits_for_the_claim_that_renews_its_token() -> None:
    rig = MemberRig()
    rig.groups.kept = True
    rig.join(0)
    rig.put(b"a", b"b")
    assert rig.work() == [b"a", b"b"]
    claim = rig.broker.on[Operation.CLAIM]
    late: list[tuple[Request, Answer]] = []

    def answer_late(request: Request) -> None:
        answer = claim(request)
        assert answer is not None
        late.append((request, answer))

    rig.broker.on[Operation.CLAIM] = answer_late
    rig.engine.connection.lost(rig.environment.clock.monotonic_s(), "a test")
    rig.pass_time(0.2)
    assert len(late) == 1, "the claim is presented in the new session"
    rig.advise()
    rig.pass_time(0.2)
    for request, answer in late:
        request.answer(answer)
    rig.step()
    assert not rig.groups.tokens, "released"
    assert rig.groups.committed("g", "orders", 0) == 2
    assert rig.queues() == []


def test_a_poisonous_message_stops_its_queue_and_no_other_however_much_waits_behind_it() -> None:
    for orderly in (False, True):
        rig = MemberRig(orderly=orderly, prefetch_bytes=10_000, fetch_bytes=5_000)
        rig.poison = b"poison"
        rig.join(0, 1)
        rig.put(b"poison")
        for number in range(40):
            rig.put(b"%d" % number * 1000, queue=0)
        sent = [b"%d" % number * 1000 for number in range(40)]
        for body in sent:
            rig.put(body, queue=1)
        handled: list[bytes] = []
        for _ in range(100):
            handled += rig.work()
            rig.pass_time(0.1)
        assert handled == sent
        lanes = rig.grouping.dispatch.lanes.values()
        assert sum(lane.cursor.buffered_bytes for lane in lanes) < 20_000


def test_an_iteration_over_max_poll_gets_its_queue_again_when_it_goes_on() -> None:
    rig = MemberRig(iterate=True, max_poll_s=1.0)
    rig.join(0)
    rig.put(b"a", b"b")
    slow = rig.receive()
    assert slow is not None
    rig.pass_time(5.0)
    assert rig.queues() == [], "left to others"
    slow.ack()
    assert rig.receive() is None
    rig.pass_time(0.1)
    assert rig.queues() == [0]
    rig.wake()
    again = rig.receive()
    assert again is not None
    assert again.body == b"a", "the ack came too late to count"


def test_a_message_that_is_never_acknowledged_comes_again_after_max_poll() -> None:
    rig = MemberRig(iterate=True, max_poll_s=2.0)
    rig.join(0)
    rig.put(b"a", b"b", b"c")
    seen: list[bytes] = []
    for _ in range(60):
        message = rig.receive()
        if message is not None:
            seen.append(message.body)
            if message.body != b"b" or seen.count(b"b") > 1:
                message.ack()
        rig.pass_time(0.1)
        rig.wake()
    assert seen == [b"a", b"b", b"c", b"b", b"c"]
    rig.pass_time(1.5)
    assert rig.groups.committed("g", "orders", 0) == 3


def test_an_iteration_without_acks_gets_no_more_than_it_may_owe() -> None:
    rig = MemberRig(iterate=True, prefetch_messages=10)
    rig.join(0)
    rig.put(*(b"%d" % number for number in range(300)))
    held: list[HeldMessage] = []
    while (message := rig.receive()) is not None:
        held.append(message)
    assert len(held) == 10
    held[0].ack()
    held[1].ack()
    assert rig.receive() is not None
    assert rig.receive() is not None
    assert rig.receive() is None
