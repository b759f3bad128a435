"""The group consumer's inside, step by step on virtual time: claims, runs, commits, hand-over."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from cometmq import protocol
from cometmq.batch import RecordTuple, encode_messages
from cometmq.client.group_options import GroupOptions
from cometmq.client.grouping import Grouping, handle
from cometmq.client.listeners import Listener
from cometmq.client.runs import Run
from cometmq.errors import CometError, ConfigError, Damaged, Expired, Refused, Retryable
from cometmq.message import ReceivedMessage
from cometmq.protocol import Operation, Status
from cometmq.testing.client_rig import ClientRig
from cometmq.testing.scripted_broker import Answer, ScriptedBroker
from cometmq.testing.scripted_groups import ScriptedGroups

BORN_MS = 1_700_000_000_000
ORDERS = [("orders", queue) for queue in range(4)]


class GroupRig(ClientRig):
    """One member of the group `g`, and what its handlers saw."""

    def __init__(self, *, named: bool = False, **options: Any) -> None:
        super().__init__()
        self.groups = ScriptedGroups(self.broker)
        self.errors: list[CometError] = []
        self.seen: list[bytes] = []
        self.failing: set[bytes] = set()
        self.grouping = Grouping(
            self.engine,
            GroupOptions("g", **options),
            "skip",
            self.errors.append,
            lambda run: self.grouping.acked(run),
            named,
        )

    def subscribe(
        self, topic: str = "orders", tags: str = "*", orderly: bool = False, iterate: bool = False
    ) -> Listener:
        handler = None if iterate else self.handle
        return self.grouping.subscribe(topic, tags, handler, 8, orderly)

    def join(self, *queues: int, topic: str = "orders") -> None:
        """Start, with these queues as advice, and claim them."""
        self.groups.advise(*((topic, queue) for queue in queues))
        self.grouping.start()
        self.step()

    def advise(self, *queues: int) -> None:
        self.groups.advise(*(("orders", queue) for queue in queues))
        self.step()

    def put(
        self, *bodies: bytes, queue: int = 0, topic: str = "orders", tags: str = "", epoch: int = 1
    ) -> None:
        """Store one batch and wake who waits for it; `tags` are words, one a message."""
        words = tags.split() or [""] * len(bodies)
        records: list[RecordTuple] = [
            (BORN_MS, body, word, (), {}) for body, word in zip(bodies, words, strict=True)
        ]
        self.broker.put(topic, queue, encode_messages(topic, queue, records), epoch=epoch)
        self.wake()

    def handle(self, message: ReceivedMessage) -> None:
        if message.body in self.failing:
            raise ValueError("not now")
        self.seen.append(message.body)

    def take(self, listener: Listener) -> Run:
        """What a worker gets."""
        run = self.grouping.next(listener)
        assert run is not None
        return run

    def finish(self, run: Run) -> None:
        """A worker handles a run and reports it."""
        assert run.listener.handler is not None
        failure = handle(
            run, run.listener.handler, self.environment.clock.monotonic_s, self.grouping.lease
        )
        self.grouping.dispatch.report(run, failure)
        self.step()

    def work(self, listener: Listener) -> list[bytes]:
        """A worker handles all that there is; returns the bodies."""
        before = len(self.seen)
        while (run := self.grouping.next(listener)) is not None:
            self.finish(run)
        self.step()
        return self.seen[before:]

    def commit(self) -> None:
        self.run(self.grouping.commit())

    def committed(self, queue: int = 0) -> int | None:
        return self.groups.committed("g", "orders", queue)


def bodies(run: Run) -> list[bytes]:
    return [message.body for message in run.messages]


# --- joining and reading ----------------------------------------------------------------------


def test_a_member_claims_what_it_is_advised_and_says_what_it_holds() -> None:
    rig = GroupRig(start="latest", strategy="sticky", room="r1")
    rig.subscribe(tags="paid || refunded")
    rig.join(0, 2)
    assert rig.grouping.queues() == [("orders", 0), ("orders", 2)]
    (claim,) = rig.groups.claims()
    assert (claim.group, claim.member, claim.start) == (
        "g",
        rig.engine.connection.client_id,
        "latest",
    )
    first, *_, last = rig.groups.heartbeats()
    assert first.subscriptions == [protocol.Subscription("orders", "paid || refunded")]
    assert (first.strategy, first.room, first.wait_ms) == ("sticky", "r1", 0)
    assert last.held == [protocol.HeldQueue("orders", 0), protocol.HeldQueue("orders", 2)]


def test_messages_are_handed_out_in_order_and_committed_with_the_token() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a", b"b", b"c")
    assert rig.work(listener) == [b"a", b"b", b"c"]
    rig.pass_time(1.1)
    assert rig.committed() == 3
    part = rig.broker.committed["g", "orders", 0]
    assert part.token == rig.groups.tokens["orders", 0]
    fetch = rig.broker.asked(Operation.FETCH)[-1].header
    assert isinstance(fetch, protocol.Fetch)
    assert fetch.parts[0].token == part.token
    assert fetch.group == "g"


def test_nothing_is_committed_twice() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a")
    rig.work(listener)
    rig.commit()
    rig.commit()
    assert len(rig.broker.asked(Operation.COMMIT)) == 1


def test_a_commit_that_is_tried_again_takes_back_no_later_one() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"0")
    rig.work(listener)
    later = Answer(protocol.Failure("later", 1000), Status.RETRY)
    rig.broker.answer_once(Operation.COMMIT, later)
    first = rig.start(rig.grouping.commit())
    rig.put(b"1")
    rig.work(listener)
    rig.commit()
    assert rig.committed() == 2 and not first.done
    rig.pass_time(2)
    first.result()
    sent = [request.header for request in rig.broker.asked(Operation.COMMIT)]
    assert [h.parts[0].offset for h in sent if isinstance(h, protocol.Commit)] == [1, 2, 2]


def test_the_lowest_unfinished_offset_is_committed() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(*(b"%d" % number for number in range(7)))
    first, second, third = rig.take(listener), rig.take(listener), rig.take(listener)
    assert [bodies(run) for run in (first, second, third)] == [[b"0"], [b"1"], [b"2"]]
    rig.finish(second)
    rig.finish(third)
    rig.commit()
    assert rig.committed() is None
    rig.finish(first)
    rig.commit()
    assert rig.committed() == 3


def test_runs_grow_while_the_handler_is_quick() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(*(b"%d" % number for number in range(100)))
    sizes = []
    while (run := rig.grouping.next(listener)) is not None:
        sizes.append(len(run.messages))
        rig.finish(run)
    assert sizes[:4] == [1, 2, 4, 8]
    assert sum(sizes) == 100


def test_a_slow_run_is_left_to_others() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    listener.run_size = 4
    rig.put(b"a", b"b", b"c", b"d")
    run = rig.take(listener)
    run.until_s = 0.0
    rig.finish(run)
    assert rig.seen == [b"a"]
    assert listener.run_size == 1
    assert rig.work(listener) == [b"b", b"c", b"d"]
    rig.commit()
    assert rig.committed() == 4


def test_not_too_much_is_handed_out_behind_the_first_unfinished() -> None:
    rig = GroupRig(prefetch_messages=3)
    listener = rig.subscribe()
    rig.join(0)
    rig.put(*(b"%d" % number for number in range(9)))
    runs = [rig.take(listener) for _ in range(3)]
    assert rig.grouping.next(listener) is None
    rig.finish(runs[0])
    assert rig.take(listener) is not None


def test_queues_take_turns() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0, 1)
    rig.put(b"a", b"b", queue=0)
    rig.put(b"x", b"y", queue=1)
    listener.run_size = 1
    assert {bytes(rig.take(listener).messages[0].body) for _ in range(2)} == {b"a", b"x"}


# --- tags -------------------------------------------------------------------------------------


def test_only_the_tags_asked_for_arrive_and_the_rest_is_passed() -> None:
    rig = GroupRig()
    listener = rig.subscribe(tags="red")
    rig.join(0)
    rig.put(b"a", b"b", b"c", b"d", tags="red blue red blue")
    assert rig.work(listener) == [b"a", b"c"]
    rig.commit()
    assert rig.committed() == 4
    fetch = rig.broker.asked(Operation.FETCH)[-1].header
    assert isinstance(fetch, protocol.Fetch)
    assert fetch.filter == "red"


def test_a_filter_that_matches_nothing_makes_progress() -> None:
    rig = GroupRig()
    listener = rig.subscribe(tags="red")
    rig.broker.hold(Operation.FETCH)
    rig.join(0)
    part = protocol.FetchResultPart(0, 0, 50, 1, 0, 50, 0, 1)
    rig.broker.asked(Operation.FETCH)[-1].answer(Answer(protocol.FetchReply([part])))
    rig.step()
    assert rig.work(listener) == []
    rig.commit()
    assert rig.committed() == 50
    fetch = rig.broker.asked(Operation.FETCH)[-1].header
    assert isinstance(fetch, protocol.Fetch)
    assert (fetch.parts[0].offset, fetch.parts[0].epoch) == (50, 1)


def test_listeners_of_one_topic_get_their_own_tags() -> None:
    rig = GroupRig()
    red, blue = rig.subscribe(tags="red"), rig.subscribe(tags="blue")
    rig.join(0)
    red.run_size = blue.run_size = 10
    rig.put(b"a", b"b", b"c", b"d", b"e", tags="red blue green red blue")
    assert rig.grouping.dispatch.topics["orders"].expression == "blue || red"
    assert rig.work(blue) == [b"b", b"e"]
    rig.commit()
    assert rig.committed() is None
    assert rig.work(red) == [b"a", b"d"]
    rig.commit()
    assert rig.committed() == 5


def test_the_newest_subscription_of_the_group_wins(caplog: pytest.LogCaptureFixture) -> None:
    rig = GroupRig()
    listener = rig.subscribe(tags="red")
    rig.groups.winning = [protocol.Subscription("orders", "red || green")]
    rig.groups.warnings = ["members a and b subscribe orders with other tags"]
    rig.join(0)
    rig.put(b"a", b"b", b"c", tags="red green blue")
    assert rig.work(listener) == [b"a", b"b"]
    assert caplog.text.count("members a and b") == 1


def test_a_filter_that_changes_reads_again_what_was_read_ahead() -> None:
    rig = GroupRig()
    listener = rig.subscribe(tags="red")
    rig.join(0)
    rig.put(b"a", b"b", tags="red green")
    rig.groups.winning = [protocol.Subscription("orders", "green")]
    rig.advise(0)
    rig.wake()
    assert rig.work(listener) == [b"b"]


@pytest.mark.parametrize("tags", ["a ||", "|| a", "a || || b"])
def test_a_wrong_tag_expression_is_refused(tags: str) -> None:
    with pytest.raises(Refused, match="a tag is missing"):
        GroupRig().subscribe(tags=tags)


# --- failing handlers and order ---------------------------------------------------------------


def test_a_message_whose_handler_fails_is_handled_again_and_its_queue_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0, 1)
    listener.run_size = 10
    rig.put(b"a", b"bad", b"c", queue=0)
    rig.put(b"x", queue=1)
    rig.failing.add(b"bad")
    assert sorted(rig.work(listener)) == [b"a", b"x"]
    assert "the handler failed with offset 1 of queue 0 of orders" in caplog.text
    rig.commit()
    assert rig.committed() == 1
    rig.put(b"y", queue=1)
    assert rig.work(listener) == [b"y"]
    rig.pass_time(0.06)
    assert rig.work(listener) == []
    rig.failing.clear()
    rig.pass_time(0.2)
    assert rig.work(listener) == [b"bad", b"c"]


def test_pauses_between_tries_grow() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.failing.add(b"bad")
    rig.put(b"bad")
    waits = []
    for _ in range(9):
        assert rig.work(listener) == []
        (run,) = [run for run in rig.grouping.dispatch.lanes["orders", 0].runs if not run.finished]
        now_s = rig.environment.clock.monotonic_s()
        waits.append(run.retry_at_s - now_s)
        rig.pass_time(waits[-1] + 0.001)
    assert waits[0] < 0.06
    assert 2.5 <= waits[-1] <= 5


def test_orderly_hands_out_one_run_of_a_queue_at_a_time() -> None:
    rig = GroupRig()
    listener = rig.subscribe(orderly=True)
    rig.join(0)
    rig.put(b"a", b"b", b"c")
    run = rig.take(listener)
    assert rig.grouping.next(listener) is None
    rig.finish(run)
    assert rig.work(listener) == [b"b", b"c"]


def test_orderly_keeps_the_order_through_failures() -> None:
    rig = GroupRig()
    listener = rig.subscribe(orderly=True)
    rig.join(0)
    rig.failing.add(b"b")
    rig.put(b"a", b"b", b"c")
    assert rig.work(listener) == [b"a"]
    rig.failing.clear()
    rig.pass_time(0.06)
    assert rig.work(listener) == [b"b", b"c"]


def test_orderly_and_concurrent_listeners_do_not_mix() -> None:
    rig = GroupRig()
    rig.subscribe(tags="red")
    with pytest.raises(Refused, match="all be orderly or none"):
        rig.subscribe(tags="blue", orderly=True)


# --- handing over -----------------------------------------------------------------------------


def test_a_queue_is_released_with_its_last_commit_once_its_handlers_are_done() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0, 1)
    rig.put(b"a", b"b", b"c")
    first, second = rig.take(listener), rig.take(listener)
    rig.finish(second)
    rig.advise(1)
    assert rig.groups.releases() == []
    assert rig.grouping.next(listener) is None
    rig.finish(first)
    (part,) = rig.groups.releases()
    assert (part.queue, part.offset) == (0, 2)
    assert rig.grouping.queues() == [("orders", 1)]
    assert rig.groups.heartbeats()[-1].held == [protocol.HeldQueue("orders", 1)]


def test_what_lies_before_a_finished_message_is_finished_before_a_release() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    listener.run_size = 2
    rig.put(b"a", b"b", b"c", b"d")
    first, second = rig.take(listener), rig.take(listener)
    rig.finish(second)
    first.until_s = 0.0
    rig.advise()
    rig.finish(first)
    assert rig.groups.releases() == []
    assert rig.work(listener) == [b"b"]
    assert [part.offset for part in rig.groups.releases()] == [4]


def test_the_last_run_stops_at_once_when_its_queue_goes() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    listener.run_size = 4
    rig.put(b"a", b"b", b"c", b"d")
    run = rig.take(listener)
    rig.advise()
    rig.finish(run)
    assert rig.seen == []
    assert [part.offset for part in rig.groups.releases()] == [None]


def test_a_queue_that_fails_is_let_go_where_it_stands() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.failing.add(b"b")
    rig.put(b"a", b"b")
    rig.work(listener)
    rig.advise()
    assert [part.offset for part in rig.groups.releases()] == [1]


def test_a_queue_that_somebody_still_holds_is_claimed_again() -> None:
    rig = GroupRig()
    rig.subscribe()
    rig.groups.refusals["orders", 0] = protocol.ClaimResultPart(
        Status.CLAIMED, detail="held by m2", retry_after_ms=5000
    )
    rig.join(0, 1)
    assert rig.grouping.queues() == [("orders", 1)]
    rig.groups.refusals.clear()
    rig.pass_time(1.1)
    assert rig.grouping.queues() == ORDERS[:2]


def test_a_queue_that_is_never_granted_is_not_claimed_oftener_and_oftener(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = GroupRig()
    rig.subscribe()
    rig.broker.on[Operation.CLAIM] = lambda _: Answer(protocol.Failure("no"), Status.REFUSED)
    rig.join(0, 1)
    rig.pass_time(60)
    before = len(rig.broker.asked(Operation.CLAIM))
    rig.pass_time(60)
    assert 0 < len(rig.broker.asked(Operation.CLAIM)) - before <= 90
    assert len([told for told in caplog.messages if "can't be claimed" in told]) == 1


def test_a_release_is_tried_until_the_broker_has_it() -> None:
    rig = GroupRig()
    rig.subscribe()
    rig.join(0)
    rig.broker.answer_once(
        Operation.RELEASE,
        Answer(protocol.CommitReply([protocol.PartStatus(Status.RETRY, "busy", 10)])),
    )
    rig.advise()
    rig.pass_time(0.2)
    assert len(rig.groups.releases()) == 2
    assert rig.groups.tokens == {}


def test_queues_that_are_advised_again_while_they_go_come_back() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a", b"b")
    run = rig.take(listener)
    rig.advise()
    rig.advise(0)
    run.done = 1
    rig.grouping.dispatch.report(run)
    rig.step()
    assert [part.offset for part in rig.groups.releases()] == [1]
    assert rig.grouping.queues() == [("orders", 0)]
    assert rig.work(listener) == [b"b"]


@pytest.mark.parametrize("holds", [True, False])
def test_leaving_waits_for_a_broker_that_is_away_only_with_queues_to_release(holds: bool) -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(*([0] if holds else []))
    if holds:
        rig.put(b"a")
        assert rig.work(listener) == [b"a"]
    rig.broker.down = ("disconnected", "connection refused")
    rig.broker.break_connection()
    rig.step()
    task = rig.start(rig.grouping.finish(60))
    assert task.done is not holds
    rig.broker.down = None
    rig.pass_time(1.5)
    assert task.done
    assert rig.committed() == (1 if holds else None)


def test_leaving_finishes_releases_and_says_good_bye() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0, 1)
    rig.put(b"a")
    run = rig.take(listener)
    task = rig.start(rig.grouping.finish(5))
    assert not task.done
    assert {part.queue for part in rig.groups.releases()} == {1}
    run.done = 1
    rig.grouping.dispatch.report(run)
    rig.pass_time(0.06)
    assert task.done
    assert [part.offset for part in rig.groups.releases() if part.queue == 0] == [1]
    (leave,) = rig.broker.asked(Operation.GROUP_LEAVE)
    assert leave.header == protocol.GroupLeave("g", rig.engine.connection.client_id)


def test_leaving_waits_for_handlers_no_longer_than_it_was_told() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a", b"b")
    rig.take(listener)
    task = rig.start(rig.grouping.finish(5))
    rig.pass_time(5.1)
    assert task.done
    assert [part.offset for part in rig.groups.releases()] == [None]


def test_leaving_does_not_wait_for_a_broker_that_is_away() -> None:
    rig = GroupRig()
    rig.subscribe()
    rig.join(0)
    rig.broker.hold(Operation.RELEASE)
    rig.broker.hold(Operation.GROUP_LEAVE)
    task = rig.start(rig.grouping.finish(60))
    rig.pass_time(2.2)
    assert task.done


def test_who_closes_while_somebody_does_waits_for_that() -> None:
    """Its end closes the connection, with which a release that is still to come would be lost."""
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a")
    run = rig.take(listener)
    first, second = (rig.start(rig.grouping.finish(5)) for _ in range(2))
    hasty = rig.start(rig.grouping.finish(1))
    rig.pass_time(2)
    assert (first.done, second.done, hasty.done) == (False, False, True)
    run.done = 1
    rig.grouping.dispatch.report(run)
    rig.pass_time(0.06)
    assert first.done and second.done
    assert [part.offset for part in rig.groups.releases()] == [1]


def test_who_was_interrupted_at_closing_stores_and_leaves_at_once_the_next_time() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a", b"b")
    rig.finish(rig.take(listener))
    rig.take(listener)
    rig.start(rig.grouping.finish(60)).cancel("a ctrl-C")
    assert rig.groups.releases() == []
    again = rig.start(rig.grouping.finish(60))
    rig.pass_time(0.1)
    assert again.done
    assert [part.offset for part in rig.groups.releases()] == [1]
    assert len(rig.broker.asked(Operation.GROUP_LEAVE)) == 1
    rig.run(rig.grouping.finish(60))


# --- losing a queue ---------------------------------------------------------------------------


def test_a_voided_claim_begins_anew_at_the_committed_place() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a", b"b")
    rig.work(listener)
    rig.commit()
    rig.groups.void()
    rig.broker.committed["g", "orders", 0] = protocol.CommitPart("orders", 0, 0)
    rig.put(b"c")
    rig.work(listener)
    rig.commit()
    rig.step()
    assert rig.groups.claims()[-1].parts[0].token is not None
    rig.wake()
    assert rig.work(listener) == [b"a", b"b", b"c"]


def test_a_reset_is_not_undone_by_what_was_still_in_hand() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a", b"b")
    run = rig.take(listener)
    rig.groups.void()
    rig.broker.committed["g", "orders", 0] = protocol.CommitPart("orders", 0, 0)
    rig.grouping.dispatch.on_fenced(run.lane)
    rig.step()
    rig.finish(run)
    rig.commit()
    assert rig.committed() == 0


def test_a_claim_that_was_kept_goes_on_where_it_was() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a", b"b")
    rig.work(listener)
    rig.groups.kept = True
    rig.groups.void()
    rig.commit()
    rig.step()
    rig.put(b"c")
    assert rig.work(listener) == [b"c"]
    rig.commit()
    assert rig.committed() == 3


def test_a_queue_that_went_to_another_member_is_dropped() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a", b"b")
    run = rig.take(listener)
    rig.groups.void()
    rig.groups.refusals["orders", 0] = protocol.ClaimResultPart(Status.CLAIMED, detail="m2")
    rig.grouping.dispatch.on_fenced(run.lane)
    rig.step()
    assert rig.grouping.queues() == []
    rig.finish(run)
    assert rig.seen == []
    assert rig.grouping.next(listener) is None


def test_nothing_is_handed_out_once_the_session_lapsed_on_our_own_clock() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    listener.run_size = 2
    rig.put(b"a", b"b")
    run = rig.take(listener)
    rig.groups.silent = True
    rig.pass_time(13.5)
    rig.finish(run)
    assert rig.seen == []
    assert rig.grouping.next(listener) is None
    rig.groups.silent = False
    rig.pass_time(3)
    assert rig.work(listener) == [b"a", b"b"]


def test_a_process_that_froze_finishes_what_was_in_hand_and_nothing_behind_it() -> None:
    rig = GroupRig()
    listener = rig.subscribe(orderly=True)
    rig.join(0)
    listener.run_size = 3
    rig.put(b"a", b"b", b"c")
    run = rig.take(listener)
    assert listener.handler is not None
    handler = listener.handler

    def freeze(message: ReceivedMessage) -> None:
        rig.environment.clock.advance(13.5)
        rig.groups.void()
        rig.groups.refusals["orders", 0] = protocol.ClaimResultPart(Status.CLAIMED, detail="m2")
        handler(message)

    listener.handler = freeze
    rig.finish(run)
    assert rig.seen == [b"a"]
    assert rig.grouping.next(listener) is None
    rig.pass_time(3)
    assert rig.grouping.queues() == []
    assert rig.committed() is None


def test_a_heartbeat_that_broke_with_the_connection_is_sent_anew() -> None:
    rig = GroupRig()
    rig.subscribe()
    rig.join(0)
    before = len(rig.groups.heartbeats())
    rig.broker.break_connection()
    rig.pass_time(1)
    assert len(rig.groups.heartbeats()) > before
    assert rig.groups.heartbeats()[-1].held == [protocol.HeldQueue("orders", 0)]


def test_a_new_session_gets_the_claims_presented_and_nothing_stops() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a", b"b")
    run = rig.take(listener)
    rig.groups.kept = True
    rig.broker.hold(Operation.COMMIT)
    rig.finish(run)
    rig.pass_time(1.1)
    rig.broker.break_connection()
    rig.pass_time(1)
    claim = rig.groups.claims()[-1]
    assert claim.parts[0].token == protocol.Token(1, 1)
    assert claim.session_timeout_ms == 10_000
    late = rig.broker.asked(Operation.COMMIT)[-1]
    late.answer(Answer(protocol.CommitReply([protocol.PartStatus(Status.FENCED, "old")])))
    rig.step()
    assert len(rig.groups.claims()) == 2
    assert rig.work(listener) == [b"b"]


def test_a_broker_that_knows_no_filter_sends_everything() -> None:
    rig = GroupRig()
    listener = rig.subscribe(tags="red")
    failure = protocol.Failure("no plugin of this broker knows the filter red")
    rig.broker.answer_once(Operation.FETCH, Answer(failure, Status.REFUSED))
    rig.join(0)
    rig.pass_time(0.1)
    rig.put(b"a", b"b", tags="red blue")
    assert rig.work(listener) == [b"a"]
    assert rig.errors == []


def test_a_handler_that_hangs_loses_its_queue(caplog: pytest.LogCaptureFixture) -> None:
    rig = GroupRig(max_poll_s=20.0)
    listener = rig.subscribe()
    rig.join(0, 1)
    rig.put(b"a", b"b")
    rig.take(listener)
    run = rig.take(listener)
    rig.pass_time(10)
    run.done = 1
    rig.grouping.dispatch.report(run)
    rig.pass_time(11.5)
    assert "the handler is at offset 0 of queue 0 of orders" in caplog.text
    assert [(part.queue, part.offset) for part in rig.groups.releases()] == [(0, None)]
    assert rig.grouping.queues() == [("orders", 1)]


def test_a_queue_is_claimed_again_when_its_handler_returns() -> None:
    rig = GroupRig(max_poll_s=20.0)
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a", b"b")
    run = rig.take(listener)
    rig.pass_time(22)
    assert rig.grouping.queues() == []
    run.done = 1
    rig.grouping.dispatch.report(run)
    rig.step()
    assert rig.grouping.queues() == [("orders", 0)]


# --- pause ------------------------------------------------------------------------------------


def test_a_paused_topic_stands_still_and_stays_ours() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a", b"b")
    rig.grouping.pause("orders", True)
    rig.pass_time(30)
    assert rig.grouping.next(listener) is None
    assert rig.grouping.queues() == [("orders", 0)]
    rig.grouping.pause(None, False)
    assert rig.work(listener) == [b"a", b"b"]


def test_only_a_subscribed_topic_can_be_paused() -> None:
    rig = GroupRig()
    rig.subscribe()
    with pytest.raises(Refused, match="letters is not subscribed"):
        rig.grouping.pause("letters", True)


# --- places that can't be read ----------------------------------------------------------------


def test_a_cut_queue_goes_on_where_the_broker_says(caplog: pytest.LogCaptureFixture) -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a", b"b")
    rig.work(listener)
    part = protocol.FetchResultPart(0, Status.TRUNCATED, 1, 2, detail="cut to 1")
    rig.broker.stored["orders", 0].clear()
    batch = encode_messages("orders", 0, [(BORN_MS, b"c", "", (), {})])
    rig.broker.put("orders", 0, batch, offset=1, epoch=2)
    rig.broker.asked(Operation.FETCH)[-1].answer(Answer(protocol.FetchReply([part])))
    rig.step()
    assert "cut to 1" in caplog.text
    assert [error.next_offset for error in rig.errors if hasattr(error, "next_offset")] == [1]
    rig.wake()
    assert rig.work(listener) == [b"c"]


@pytest.mark.parametrize(("policy", "place"), [("earliest", 5), ("latest", 9), ("stop", 0)])
def test_a_queue_whose_place_expired_goes_on_by_the_policy(policy: str, place: int) -> None:
    rig = GroupRig(on_expired=policy)
    rig.subscribe()
    rig.join(0)
    part = protocol.FetchResultPart(0, Status.EXPIRED, 5, 1, 5, 9, detail="deleted before 5")
    rig.broker.asked(Operation.FETCH)[-1].answer(Answer(protocol.FetchReply([part])))
    rig.step()
    assert [type(error) for error in rig.errors] == [Expired]
    now = rig.grouping.dispatch.lanes["orders", 0].cursor.place
    assert now is not None and now.offset == place
    fetch = rig.broker.asked(Operation.FETCH)[-1].header
    assert isinstance(fetch, protocol.Fetch)
    assert fetch.parts[0].offset == place


def test_damage_stops_one_queue_and_no_other() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0, 1)
    part = protocol.FetchResultPart(0, Status.DAMAGED, 5, 1, detail="bad bytes")
    rig.broker.asked(Operation.FETCH)[-1].answer(Answer(protocol.FetchReply([part])))
    rig.step()
    assert [type(error) for error in rig.errors] == [Damaged]
    queue = next(
        key[1] for key, lane in rig.grouping.dispatch.lanes.items() if not lane.cursor.error
    )
    rig.put(b"x", queue=queue)
    assert rig.work(listener) == [b"x"]


def test_a_topic_that_was_deleted_is_claimed_again_in_its_new_life() -> None:
    rig = GroupRig()
    rig.subscribe()
    rig.join(0)
    part = protocol.FetchResultPart(0, Status.TOPIC_GONE, detail="deleted")
    rig.groups.refusals["orders", 0] = protocol.ClaimResultPart(Status.TOPIC_GONE, detail="deleted")
    rig.broker.asked(Operation.FETCH)[-1].answer(Answer(protocol.FetchReply([part])))
    rig.step()
    assert rig.grouping.queues() == []
    rig.groups.refusals.clear()
    rig.pass_time(1.1)
    assert rig.groups.claims()[-1].parts[0].incarnation == 0
    assert rig.grouping.queues() == [("orders", 0)]


# --- what can't work --------------------------------------------------------------------------


def test_a_group_that_refuses_us_ends_the_consumer() -> None:
    rig = GroupRig(strict=True)
    rig.subscribe()
    failure = protocol.Failure("members subscribe something else")
    rig.broker.answer_once(Operation.GROUP_HEARTBEAT, Answer(failure, Status.REFUSED))
    rig.join(0)
    assert rig.groups.heartbeats()[0].strict
    with pytest.raises(Refused, match="something else"):
        rig.grouping.over.result()


def test_a_start_without_a_subscription_is_refused() -> None:
    with pytest.raises(Refused, match="nothing is subscribed"):
        GroupRig().grouping.start()


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"mode": "queueing"}, Refused, "mode="),
        ({"start": 5}, Refused, "start=5"),
        ({"on_expired": "never"}, Refused, "on_expired="),
        ({"session_timeout_s": 5.0}, ConfigError, "two heartbeats"),
        ({"max_poll_s": 0.0}, ConfigError, "max_poll=0.0"),
        ({"prefetch_messages": 0}, ConfigError, "prefetch_messages=0"),
    ],
)
def test_settings_that_can_not_be_used_are_named(
    options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        GroupRig(**options)


def test_a_broker_that_can_not_be_reached_is_told_once_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def told() -> int:
        return sum("waits for its broker" in record.getMessage() for record in caplog.records)

    rig = GroupRig()
    rig.subscribe()
    rig.broker.down = ("disconnected", "connection refused")
    rig.join()
    with caplog.at_level(logging.WARNING):
        rig.pass_time(30)
        assert told() == 1
        assert "connection refused" in caplog.text and rig.engine.address in caplog.text
        rig.broker.down = None
        rig.pass_time(10)
        assert rig.groups.heartbeats() and told() == 1
        rig.broker.down = ("disconnected", "connection refused")
        rig.broker.break_connection()
        rig.pass_time(30)
        assert told() == 2


def test_a_commit_that_fails_is_covered_by_the_next() -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a")
    rig.work(listener)
    answer = Answer(protocol.CommitReply([protocol.PartStatus(Status.RETRY, "busy", 10)]))
    rig.broker.answer_once(Operation.COMMIT, answer)
    with pytest.raises(Retryable):
        rig.commit()
    rig.commit()
    assert rig.committed() == 1


def test_commits_that_fail_in_a_row_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = GroupRig()
    listener = rig.subscribe()
    rig.join(0)
    rig.put(b"a")
    rig.work(listener)
    busy = Answer(protocol.CommitReply([protocol.PartStatus(Status.RETRY, "busy", 10)]))
    before = rig.broker.on[Operation.COMMIT]
    rig.broker.on[Operation.COMMIT] = lambda request: busy
    rig.pass_time(3.5)
    assert caplog.text.count("commit failed: busy") == 1
    rig.broker.on[Operation.COMMIT] = before
    rig.pass_time(1.1)
    assert rig.committed() == 1


# --- iteration --------------------------------------------------------------------------------


def test_iterated_messages_are_finished_by_their_acks_in_any_order() -> None:
    rig = GroupRig()
    rig.subscribe(iterate=True)
    rig.join(0)
    rig.put(b"a", b"b", b"c")
    handout = rig.grouping.handout
    assert handout.turn()
    messages = [handout.next() for _ in range(3)]
    assert handout.next() is None
    first, second, _ = messages
    assert first is not None and second is not None
    second.ack()
    rig.commit()
    assert rig.committed() is None
    first.ack()
    first.ack()
    rig.commit()
    assert rig.committed() == 2


def test_a_queue_that_goes_waits_for_the_acks_of_what_was_handed_out() -> None:
    rig = GroupRig()
    rig.subscribe(iterate=True)
    rig.join(0)
    rig.put(b"a", b"b", b"c")
    handout = rig.grouping.handout
    handout.turn()
    message = handout.next()
    assert message is not None
    rig.advise()
    assert handout.next() is None
    assert rig.groups.releases() == []
    message.ack()
    rig.step()
    assert [part.offset for part in rig.groups.releases()] == [1]
    assert not handout.turn()


def test_leaving_does_not_wait_for_acks() -> None:
    rig = GroupRig()
    rig.subscribe(iterate=True)
    rig.join(0)
    rig.put(b"a", b"b")
    handout = rig.grouping.handout
    handout.turn()
    handout.next()
    task = rig.start(rig.grouping.finish(60))
    rig.pass_time(0.1)
    assert task.done
    assert [part.offset for part in rig.groups.releases()] == [None]


# --- broadcasting -----------------------------------------------------------------------------


def broadcast(named: bool) -> tuple[GroupRig, Listener]:
    rig = GroupRig(mode="broadcasting", named=named)
    rig.broker.on.pop(Operation.COMMIT)
    return rig, rig.subscribe()


def test_broadcasting_reads_all_queues_without_claims() -> None:
    rig, listener = broadcast(named=False)
    rig.grouping.start()
    rig.step()
    assert rig.grouping.queues() == ORDERS
    rig.put(b"a", queue=3)
    assert rig.work(listener) == [b"a"]
    assert rig.groups.heartbeats() == [] and rig.groups.claims() == []
    with pytest.raises(Refused, match="no name to keep offsets under"):
        rig.commit()


def test_a_named_broadcasting_member_goes_on_where_it_was() -> None:
    rig, listener = broadcast(named=True)
    rig.grouping.start()
    rig.step()
    rig.put(b"a", b"b")
    rig.work(listener)
    rig.run(rig.grouping.finish(1))
    own = f"g.{rig.engine.connection.client_id}"
    assert rig.broker.committed[own, "orders", 0].offset == 2


def test_broadcasting_reads_queues_added_later_from_their_beginning() -> None:
    rig, listener = broadcast(named=False)
    rig.grouping.start()
    rig.step()
    rig.broker.queues = 5
    rig.broker.put("orders", 4, encode_messages("orders", 4, [(BORN_MS, b"new", "", (), {})]))
    rig.pass_time(31)
    assert rig.work(listener) == [b"new"]


def test_broadcasting_waits_for_a_topic_that_is_not_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, _ = broadcast(named=False)
    missing = Answer(protocol.Failure("no topic orders"), Status.TOPIC_NOT_FOUND)
    rig.broker.on[Operation.TOPIC_DESCRIBE] = lambda request: missing
    rig.grouping.start()
    rig.pass_time(3)
    assert caplog.text.count("no topic orders") == 1
    rig.broker.on.pop(Operation.TOPIC_DESCRIBE)
    rig.pass_time(1.1)
    assert rig.grouping.queues() == ORDERS


def test_the_scripted_broker_is_left_as_it_is_without_groups() -> None:
    assert Operation.CLAIM not in ScriptedBroker().on
