"""A broker that lies to a member of a group: any field of any answer, at its edges, and lies of
whole answers that no field alone can tell.

The member lives on or ends with one error of ours. It asks no more often than of an honest broker
that is busy, says little, keeps little, and hands no message to two handlers.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.attack.test_groups_member import MemberRig
from tests.attack.test_hostile_broker import SCREENFUL, lies, places, with_value

from cometmq.client.told import DETAIL_MAX
from cometmq.errors import Closed, CometError
from cometmq.protocol import (
    ClaimReply,
    ClaimResultPart,
    CommitReply,
    Fetch,
    FetchReply,
    FetchResultPart,
    GroupAdvice,
    HeldQueue,
    Operation,
    PartStatus,
    Status,
    Subscription,
    Token,
)
from cometmq.protocol.frames import PREFIX
from cometmq.testing.scripted_broker import Answer, Request

OPERATIONS = [
    Operation.GROUP_HEARTBEAT,
    Operation.CLAIM,
    Operation.RELEASE,
    Operation.COMMIT,
    Operation.FETCH,
    Operation.GROUP_LEAVE,
]
SECONDS = 10.0
REQUESTS_MAX = 100 * int(SECONDS)
"""An honest broker that says "later" is asked by each kind of request some 20 times a second."""
LINES_MAX = 50


class LiedRig(MemberRig):
    """A member whose broker lies with one operation."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked_before = 0

    def lie(self, operation: Operation, change: Callable[[Any], Any]) -> None:
        """Change the header of each of its answers, as the wire has it."""
        honest = self.broker.on.get(operation, self.broker.default)

        def answer(request: Request) -> None:
            self.bounded()
            found = honest(request)
            if found is not None:
                told = msgspec.msgpack.decode(msgspec.msgpack.encode(found.header))
                header = msgspec.msgpack.encode(change(told))
                head = PREFIX.pack(request.id, found.status, len(header)) + header
                request.channel.deliver([head, *found.body])

        self.broker.on[operation] = answer

    def say(self, operation: Operation, answer: Callable[[Request], Answer]) -> None:
        """Answer this operation so from now on."""

        def bounded(request: Request) -> Answer:
            self.bounded()
            return answer(request)

        self.broker.on[operation] = bounded

    def bounded(self) -> None:
        asked = len(self.broker.requests) - self.asked_before
        assert asked < REQUESTS_MAX, "it asks without end"

    def live(self, seconds: float = SECONDS) -> None:
        """Let time pass, handling what comes."""
        self.asked_before = len(self.broker.requests)
        for _ in range(10):
            self.pass_time(seconds / 10)
            self.wake()
            self.work()

    def wake(self) -> None:
        """As ever, but what is answered late is lied about, too."""
        answer = self.broker.on.get(Operation.FETCH, self.broker.default)
        for request in self.broker.asked(Operation.FETCH):
            if request.id in self.engine.connection.pending:
                found = answer(request)
                if found is not None:
                    request.answer(found)
        self.step()

    def handled_twice(self) -> bool:
        return len(set(self.seen)) < len(self.seen)

    def end(self) -> None:
        """It ends in time, whatever is said."""
        task = self.start(self.grouping.finish(2.0))
        self.pass_time(10.0)
        assert task.done, "it hangs"
        assert task.error is None or isinstance(task.error, CometError)
        over = self.grouping.over
        assert over.done
        if over.error is not None:
            assert isinstance(over.error, CometError)
            assert len(str(over.error)) < 2 * DETAIL_MAX and str(over.error).isprintable()


def life(operation: Operation, change: Callable[[Any], Any]) -> None:
    rig = LiedRig()
    rig.lie(operation, change)
    rig.join(0, 1)
    rig.put(b"a", b"b")
    rig.live(3.0)
    rig.advise(1, 2)
    rig.put(b"c", queue=1)
    rig.live(3.0)
    rig.end()
    rig.engine.close(Closed("a test"))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_any_field_of_an_answer_to_a_member_may_be_anything(operation: Operation) -> None:
    honest: list[Any] = []

    def listen(told: Any) -> Any:
        honest.append(told)
        return told

    life(operation, listen)
    longest: Any = max(honest, key=lambda told: len(str(told)))
    for at, value in places(longest):
        for lie in lies(value):
            life(operation, lambda told: with_value(told, at, lie))  # noqa: B023 - at once


# --- answers that come at once, for ever --------------------------------------------------------


def test_advice_that_never_waits_is_not_asked_for_without_end() -> None:
    """So does an honest broker when too many requests are parked there."""
    rig = LiedRig()
    advice = Answer(GroupAdvice(1, [HeldQueue("orders", 0)]))
    rig.say(Operation.GROUP_HEARTBEAT, lambda request: advice)
    rig.join(0)
    rig.live()
    assert rig.queues() == [0]


def test_advice_that_always_changes_is_not_followed_without_end() -> None:
    rig = LiedRig()
    numbers = itertools.count(1)

    def advice(request: Request) -> Answer:
        number = next(numbers)
        return Answer(GroupAdvice(number, [HeldQueue("orders", number % 2)]))

    rig.say(Operation.GROUP_HEARTBEAT, advice)
    rig.join(0)
    rig.put(b"a")
    rig.live()
    assert not rig.handled_twice()


def test_generations_that_go_back_are_followed_all_the_same() -> None:
    """A broker that lost its log begins anew; what it says last counts."""
    rig = LiedRig()
    rig.groups.generation = 1_000_000
    rig.join(0)
    assert rig.queues() == [0]
    rig.groups.generation = 3
    rig.advise(1)
    rig.live(1.0)
    assert rig.queues() == [1]


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("fenced", [Operation.FETCH, Operation.COMMIT])
def test_a_token_that_is_never_good_is_not_claimed_without_end(
    fenced: Operation, kept: bool
) -> None:
    rig = LiedRig()
    rig.groups.kept = kept
    rig.join(0)
    rig.put(b"a")
    rig.work()

    def answer(request: Request) -> Answer:
        parts: list[Any] = request.header.parts  # type: ignore[attr-defined]
        if fenced is Operation.COMMIT:
            return Answer(CommitReply([PartStatus(Status.FENCED, "no") for _ in parts]))
        results = [FetchResultPart(at, Status.FENCED, detail="no") for at in range(len(parts))]
        return Answer(FetchReply(results))

    rig.say(fenced, answer)
    waiting = rig.broker.asked(Operation.FETCH)[-1]
    if fenced is Operation.FETCH:
        waiting.answer(answer(waiting))
    rig.live()
    if kept:
        assert not rig.handled_twice()


# --- words --------------------------------------------------------------------------------------


def test_warnings_are_bounded_and_printable(caplog: pytest.LogCaptureFixture) -> None:
    rig = LiedRig()
    numbers = itertools.count()
    rig.join(0)
    caplog.set_level(logging.WARNING)
    for _ in range(30):
        rig.groups.warnings = [f"{SCREENFUL}{next(numbers)}" for _ in range(1000)]
        rig.advise(0)
        rig.live(0.1)
    assert len(caplog.records) < 30 * LINES_MAX
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert len(rig.grouping._members._membership._warned) < 1000  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "refusal",
    [
        ClaimResultPart(Status.LIMIT_REACHED, detail="no room"),
        ClaimResultPart(Status.OK),
        ClaimResultPart(12345, detail="what?"),
    ],
    ids=lambda part: str(part.status),
)
def test_a_claim_that_is_refused_again_and_again_is_told_seldom(
    refusal: ClaimResultPart, caplog: pytest.LogCaptureFixture
) -> None:
    rig = LiedRig()
    caplog.set_level(logging.WARNING)
    for queue in range(4):
        rig.groups.refusals["orders", queue] = refusal
    rig.join(0, 1, 2, 3)
    rig.live()
    assert 1 <= len(caplog.records) < LINES_MAX
    rig.groups.refusals.clear()
    rig.live(3.0)
    assert rig.queues() == [0, 1, 2, 3]


def test_filters_that_are_none_end_no_membership(caplog: pytest.LogCaptureFixture) -> None:
    rig = LiedRig()
    rig.join(0)
    for text in ("a ||", "|| ||", SCREENFUL, "x" * 100_000, ""):
        rig.groups.winning = [Subscription("orders", text), Subscription("foreign", "a")]
        rig.advise(0)
        rig.live(1.0)
        # What the newest member wants can't be known, so nothing may be passed over.
        assert "||" not in text or rig.grouping.dispatch.topics["orders"].tags is None
    rig.groups.winning = []
    rig.advise(1)
    rig.live(1.0)
    assert rig.queues() == [1]


# --- how many -----------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [Operation.CLAIM, Operation.RELEASE, Operation.COMMIT])
@pytest.mark.parametrize("parts", ["none", "one less", "one more"])
def test_an_answer_with_more_or_fewer_parts_leaves_no_queue_with_nobody(
    operation: Operation, parts: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = LiedRig()
    honest = rig.broker.on[operation]

    def answer(request: Request) -> Answer:
        found = honest(request)
        assert found is not None and isinstance(found.header, ClaimReply | CommitReply)
        given: list[Any] = found.header.parts
        if parts == "none":
            given.clear()
        elif parts == "one less":
            given.pop()
        else:
            given.append(given[0])
        return found

    rig.say(operation, answer)
    rig.join(0, 1)
    rig.put(b"a")
    rig.live(5.0)
    rig.advise(2, 3)
    rig.live(5.0)
    assert "answers for" in caplog.text
    assert len(caplog.records) < LINES_MAX
    rig.broker.on[operation] = honest
    rig.advise(0, 1)
    rig.live(15.0)
    assert rig.queues() == [0, 1]
    assert not rig.handled_twice()
    rig.end()


def test_a_release_that_has_to_wait_long_is_not_asked_for_without_end() -> None:
    """A plugin of an honest broker may say so, too."""
    rig = LiedRig()
    rig.join(0)
    release = rig.broker.on[Operation.RELEASE]

    def later(request: Request) -> None:
        rig.bounded()
        request.fail(Status.RETRY, "in an hour", 3_600_000)

    rig.broker.on[Operation.RELEASE] = later
    rig.advise(1)
    rig.live()
    rig.broker.on[Operation.RELEASE] = release
    rig.live(70.0)
    assert ("orders", 0) not in rig.groups.tokens


@pytest.mark.parametrize("status", [Status.OK, Status.RETRY])
def test_a_part_of_a_release_that_is_put_off_for_ever(status: Status) -> None:
    rig = LiedRig()
    rig.join(0)
    rig.say(
        Operation.RELEASE, lambda request: Answer(CommitReply([PartStatus(status, "", 1 << 40)]))
    )
    rig.advise(1)
    rig.live()
    assert rig.queues() == [1]
    rig.end()


def test_advice_of_more_queues_than_any_broker_gives_costs_little() -> None:
    """Foreign topics are none of ours; and a member of very many queues takes them in no time that
    grows with their square."""
    rig = LiedRig()
    looked = 0
    dispatch = rig.grouping.dispatch
    pump = dispatch.topics["orders"].fetcher.pump

    def counted() -> None:
        nonlocal looked
        looked += 1
        pump()

    dispatch.topics["orders"].fetcher.pump = counted  # type: ignore[method-assign]
    rig.groups.advised = [(f"foreign-{number}", 0) for number in range(100_000)]
    rig.groups.advised += [("orders", number) for number in range(5000)]
    rig.groups.generation = 1
    rig.grouping.start()
    rig.pass_time(0.1)
    assert len(rig.queues()) == 5000
    assert looked < 100, "all its queues are looked at for each of them"
    asked = [request.header for request in rig.broker.asked(Operation.FETCH)]
    sizes = [len(fetch.parts) for fetch in asked if isinstance(fetch, Fetch)]
    assert sum(sizes) >= 5000 and max(sizes) <= 1000, "a broker takes 4096 in one request"
    assert len(sizes) < 100


# --- claims -------------------------------------------------------------------------------------


def test_kept_is_no_word_for_a_queue_that_was_never_held() -> None:
    rig = LiedRig()
    parts = [ClaimResultPart(Status.OK, Token(1, 7), 0, 1, 1, kept=True)]
    rig.broker.answer_once(Operation.CLAIM, Answer(ClaimReply(parts)))
    rig.groups.tokens["orders", 0] = Token(1, 7)
    rig.join(0)
    rig.put(b"a", b"b")
    assert rig.work() == [b"a", b"b"]
    rig.live(2.0)
    assert rig.groups.committed("g", "orders", 0) == 2


def test_one_token_for_all_and_the_same_again_hands_out_nothing_twice() -> None:
    rig = LiedRig()

    def answer(request: Request) -> Answer:
        parts: list[Any] = request.header.parts  # type: ignore[attr-defined]
        part = ClaimResultPart(Status.OK, Token(1, 7), 0, 1, 1, kept=True)
        return Answer(ClaimReply([part] * len(parts)))

    rig.say(Operation.CLAIM, answer)
    rig.join(0, 1)
    rig.groups.tokens = {("orders", queue): Token(1, 7) for queue in (0, 1)}
    rig.put(b"a", b"b")
    rig.put(b"c", b"d", queue=1)
    rig.work()
    rig.engine.connection.lost(rig.environment.clock.monotonic_s(), "a test")
    rig.live(5.0)
    assert sorted(rig.seen) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("offset", [10, (1 << 63) - 1])
def test_an_offset_beyond_the_queue_is_told_and_gone_on_from(
    offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = LiedRig()
    part = ClaimResultPart(Status.OK, Token(1, 7), offset, 1, 1)
    rig.broker.answer_once(Operation.CLAIM, Answer(ClaimReply([part])))
    rig.groups.tokens["orders", 0] = Token(1, 7)
    rig.join(0)
    waiting = rig.broker.asked(Operation.FETCH)[-1]
    assert waiting.header.parts[0].offset == offset  # type: ignore[attr-defined]
    cut = FetchResultPart(0, Status.TRUNCATED, next_offset=0, epoch=1, incarnation=1, detail="cut")
    waiting.answer(Answer(FetchReply([cut])))
    rig.step()
    rig.put(b"a", b"b")
    assert rig.work() == [b"a", b"b"]
    assert caplog.text.count("cut") == 1
