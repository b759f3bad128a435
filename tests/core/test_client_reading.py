"""The pull consumer's inside: start, read-ahead, positions with epochs, damage, commits."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from cometmq import protocol
from cometmq.batch import decode_messages, encode_messages, parse
from cometmq.batch.layout import seal
from cometmq.client.background_commits import LATEST_S
from cometmq.client.consumer import assign
from cometmq.client.fetcher import AHEAD_FROM_BYTES, FetchOptions
from cometmq.client.offsets import Start
from cometmq.client.reading import Reader, Taken
from cometmq.client.taking import FAREWELL_S, UnreadablePolicy
from cometmq.errors import Closed, Damaged, Expired, Refused, Retryable, Truncated, Unreadable
from cometmq.message import ReceivedMessage, UnreadableMessage
from cometmq.protocol import Operation, Status
from cometmq.testing.client_rig import ClientRig
from cometmq.testing.scripted_broker import LOG_ID, Answer

FETCH = Operation.FETCH
BORN_MS = 1_700_000_000_000


class ConsumerRig(ClientRig):
    """The consumer's inside, reading `orders`."""

    def __init__(
        self,
        *,
        queues: int = 1,
        group: str = "",
        start: Start = "earliest",
        unreadable: UnreadablePolicy = "skip",
        read: list[int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(queues=queues)
        self.reader = Reader(
            self.engine,
            FetchOptions(group, **options),
            start=start,
            unreadable=unreadable,
            timeout_s=10,
        )
        if read is None:
            self.reader.assignment.assign_topics(["orders"])
        else:
            self.reader.assignment.assign_queues([("orders", queue) for queue in read])

    def put(self, *bodies: bytes, queue: int = 0, epoch: int = 1) -> None:
        """Store one batch."""
        batch = encode_messages("orders", queue, [(BORN_MS, body, "", (), {}) for body in bodies])
        self.broker.put("orders", queue, batch, epoch=epoch)

    def poll(self, max_messages: int = 100) -> list[ReceivedMessage]:
        """What a poll gives that may wait only for answers that come at once."""
        task = self.start(self.reader.poll(max_messages, 0.001))
        self.pass_time(0.002)
        assert task.done
        return task.result()

    def fetches(self) -> list[protocol.Fetch]:
        return [
            request.header
            for request in self.broker.asked(FETCH)
            if isinstance(request.header, protocol.Fetch)
        ]

    def wake(self) -> None:
        """Answer the fetch that is parked."""
        request = self.broker.asked(FETCH)[-1]
        answer = self.broker.default(request)
        assert answer is not None
        request.answer(answer)
        self.step()


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def part_error(status: int, next_offset: int, epoch: int = 2) -> Answer:
    """An answer in which the first queue has a problem and the others have nothing."""
    part = protocol.FetchResultPart(0, status, next_offset, epoch, detail="so it is")
    return Answer(protocol.FetchReply([part]))


# --- messages ---


def test_messages_come_with_all_that_is_known_of_them() -> None:
    rig = ConsumerRig()
    batch = encode_messages("orders", 0, [(BORN_MS, b"body", "paid", ("42",), {"city": "Ulm"})])
    rig.broker.put("orders", 0, batch)
    (message,) = rig.poll()
    assert (message.topic, message.queue, message.offset) == ("orders", 0, 0)
    assert (message.body, message.tag, message.keys) == (b"body", "paid", ("42",))
    assert message.properties == {"city": "Ulm"}
    assert (message.born_time, message.store_time) == (BORN_MS, 1000)
    assert message.message_id == f"{LOG_ID.hex()}-1-0-0"


def test_all_queues_are_read_each_in_its_order() -> None:
    rig = ConsumerRig(queues=3)
    for number in range(9):
        rig.put(b"%d" % number, queue=number % 3)
    messages = rig.poll()
    assert len(messages) == 9
    for queue in range(3):
        mine = [message for message in messages if message.queue == queue]
        assert [message.offset for message in mine] == [0, 1, 2]
        assert bodies(mine) == [b"%d" % number for number in range(queue, 9, 3)]


def test_small_polls_take_turns_from_the_first_one_on() -> None:
    rig = ConsumerRig(queues=3)
    for queue in range(3):
        rig.put(b"a", b"b", queue=queue)
    assert [rig.poll(1)[0].queue for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_the_log_in_the_words_for_a_message_is_the_one_that_people_know() -> None:
    rig = ConsumerRig()
    rig.put(b"body")
    (message,) = rig.poll()
    assert f"log_id='{LOG_ID.hex()}'" in repr(message)


def test_max_messages_cuts_through_a_batch() -> None:
    rig = ConsumerRig()
    rig.put(*[b"%d" % number for number in range(7)])
    rig.put(b"7", b"8")
    got = [bodies(rig.poll(3)) for _ in range(4)]
    assert got == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6", b"7", b"8"], []]


def test_only_what_was_assigned_is_read() -> None:
    rig = ConsumerRig(queues=3, read=[2])
    for queue in range(3):
        rig.put(b"%d" % queue, queue=queue)
    assert bodies(rig.poll()) == [b"2"]
    rig.reader.assignment.assign_queues([("orders", 0)])
    assert bodies(rig.poll()) == [b"0"]


def test_a_queue_that_is_not_there_is_refused() -> None:
    rig = ConsumerRig(queues=3, read=[3])
    with pytest.raises(Refused, match="0 to 2, not 3"):
        rig.poll()


def test_nothing_assigned_is_refused() -> None:
    rig = ConsumerRig(read=[])
    with pytest.raises(Refused, match="nothing to read"):
        rig.poll()


def test_poll_waits_for_news_and_no_longer_than_told() -> None:
    rig = ConsumerRig()
    task = rig.start(rig.reader.poll(10, 1.0))
    rig.pass_time(0.9)
    assert not task.done
    rig.pass_time(0.2)
    assert task.result() == []
    task = rig.start(rig.reader.poll(10, 1.0))
    rig.put(b"news")
    rig.wake()
    assert bodies(task.result()) == [b"news"]


def test_without_a_broker_the_first_poll_ends_in_time() -> None:
    rig = ConsumerRig()
    rig.broker.down = ("refused", "nobody listens there")
    task = rig.start(rig.reader.poll(10, 1.0))
    rig.pass_time(11)
    with pytest.raises(Retryable, match="nobody listens there"):
        task.result()


def test_a_queue_added_later_is_read_from_its_beginning() -> None:
    rig = ConsumerRig(start="latest")
    assert rig.poll() == []
    rig.broker.queues = 2
    rig.put(b"first of queue 1", queue=1)
    rig.pass_time(31)
    rig.poll()
    assert bodies(rig.poll()) == [b"first of queue 1"]


def test_queues_are_placed_once_however_many_polls_are_given_up_meanwhile() -> None:
    """A second round of it would end later and take the consumer back, or past what came since."""
    rig = ConsumerRig(start="latest")
    rig.broker.hold(Operation.OFFSETS)
    for _ in range(3):
        task = rig.start(rig.reader.poll(10, 1.0))
        task.cancel("the caller has no more time")
    (asked,) = rig.broker.asked(Operation.OFFSETS)
    task = rig.start(rig.reader.poll(10, 1.0))
    answer = rig.broker.default(asked)
    assert answer is not None
    asked.answer(answer)
    rig.put(b"news")
    rig.step()
    assert bodies(task.result()) == [b"news"]
    assert len(rig.broker.asked(Operation.OFFSETS)) == 1


def test_the_same_assignment_again_does_not_hear_of_the_one_before() -> None:
    rig = ConsumerRig()
    rig.broker.hold(Operation.OFFSETS)
    rig.start(rig.reader.poll(10, 1.0)).cancel("the caller has no more time")
    rig.reader.assignment.assign_topics(["orders"])
    task = rig.start(rig.reader.poll(10, 1.0))
    before, now = rig.broker.asked(Operation.OFFSETS)
    rig.put(b"0")
    for asked in (now, before):
        answer = rig.broker.default(asked)
        assert answer is not None
        asked.answer(answer)
        rig.step()
    assert bodies(task.result()) == [b"0"]
    assert rig.poll() == []


def test_a_queue_that_is_not_placed_yet_has_no_position() -> None:
    rig = ConsumerRig()
    assert rig.poll() == []
    rig.broker.queues = 2
    rig.pass_time(31)
    rig.poll()
    rig.broker.hold(Operation.OFFSETS)
    task = rig.start(rig.reader.position(1, None))
    with pytest.raises(Retryable, match="queue 1 of orders is new"):
        task.result()


def test_a_poll_beside_one_that_ends_before_hears_of_news() -> None:
    rig = ConsumerRig()
    patient = rig.start(rig.reader.poll(10, 60.0))
    other = rig.start(rig.reader.poll(10, 1.0))
    rig.pass_time(2.0)
    assert other.result() == []
    rig.put(b"news")
    rig.wake()
    assert patient.done and bodies(patient.result()) == [b"news"]


# --- polls that are given up ---


def test_a_poll_that_is_given_up_leaves_what_is_on_its_way() -> None:
    """Or who gives each of them less time than a fetch takes would never get anything."""
    rig = ConsumerRig()
    for _ in range(3):
        taken: Taken = {}
        rig.start(rig.reader.poll(10, 60.0, taken)).cancel("the caller has no more time")
        rig.reader.put_back(taken)
    assert len(rig.fetches()) == 1
    rig.put(b"news")
    rig.wake()
    assert bodies(rig.poll()) == [b"news"]


def test_what_a_poll_took_in_vain_comes_again_unless_its_queue_was_sought() -> None:
    rig = ConsumerRig()
    rig.put(b"0", b"1", b"2")
    for sought, expected in [(None, [b"0", b"1", b"2"]), (2, [b"2"])]:
        taken: Taken = {}
        rig.run(rig.reader.seek(0, 0, None))
        task = rig.start(rig.reader.poll(10, 1.0, taken))
        assert bodies(task.result()) == [b"0", b"1", b"2"]
        if sought is not None:
            rig.run(rig.reader.seek(sought, 0, None))
        rig.reader.put_back(taken)
        task = rig.start(rig.reader.poll(10, 1.0))
        rig.pass_time(0.5)
        assert bodies(task.result()) == expected


def test_what_was_to_be_told_of_a_queue_is_told_by_the_next_poll() -> None:
    """Or it would go on behind what was cut or deleted, and nobody had heard of it."""
    rig = ConsumerRig()
    rig.put(b"0")
    assert bodies(rig.poll()) == [b"0"]
    (cut,) = [
        fetch for fetch in rig.broker.asked(FETCH) if fetch.id in rig.engine.connection.pending
    ]
    taken: Taken = {}
    task = rig.start(rig.reader.poll(10, 1.0, taken))
    cut.answer(part_error(Status.TRUNCATED, 0))
    rig.step()
    assert isinstance(task.error, Truncated)
    rig.broker.answer_once(FETCH, part_error(Status.TRUNCATED, 0))
    rig.reader.put_back(taken)
    task = rig.start(rig.reader.poll(10, 1.0))
    rig.pass_time(0.5)
    assert isinstance(task.error, Truncated)
    assert rig.run(rig.reader.position(0, None)) == 0


def test_polls_that_could_have_waited_long_leave_nothing_behind() -> None:
    rig = ConsumerRig()
    for number in range(2000):
        task = rig.start(rig.reader.poll(10, 86_400.0))
        rig.put(b"%d" % number)
        rig.wake()
        assert len(task.result()) == 1
    assert len(rig.engine._timers) < 600


# --- reading ahead ---


def test_the_next_fetch_is_out_before_anything_is_decoded() -> None:
    rig = ConsumerRig()
    rig.put(b"0")
    rig.poll()
    assert [part.offset for fetch in rig.fetches() for part in fetch.parts] == [0, 1]
    rig.put(b"1")
    rig.wake()
    assert len(rig.fetches()) == 3, "nobody polled, and yet the next one is out"


@pytest.mark.parametrize(("size", "fetches"), [(AHEAD_FROM_BYTES, 2), (100, 1)])
def test_who_waits_for_much_decodes_it_while_the_broker_reads_on(
    monkeypatch: pytest.MonkeyPatch, size: int, fetches: int
) -> None:
    rig = ConsumerRig()
    rig.put(bytes(size))
    out: list[int] = []

    def decode(*args: Any, **options: Any) -> Any:
        out.append(len(rig.fetches()))
        return decode_messages(*args, **options)

    monkeypatch.setattr("cometmq.client.cursor.decode_messages", decode)
    assert bodies(rig.poll()) == [bytes(size)]
    assert out == [fetches], "what is little is handed out first"


def test_reading_ahead_is_bounded() -> None:
    rig = ConsumerRig(read_ahead_bytes=3000)
    rig.put(bytes(1000))
    rig.poll()
    for _ in range(3):
        rig.put(bytes(1000))
        rig.wake()
    count = len(rig.fetches())
    rig.put(bytes(1000))
    rig.pass_time(1)
    assert len(rig.fetches()) == count, "3,300 bytes wait: no fetch is out"
    assert len(rig.poll()) == 3
    assert len(rig.fetches()) > count


def test_one_fetch_asks_for_all_queues() -> None:
    rig = ConsumerRig(queues=4, fetch_bytes=5555, wait_ms=2222)
    rig.poll()
    (fetch,) = rig.fetches()
    assert [part.queue for part in fetch.parts] == [0, 1, 2, 3]
    assert (fetch.max_bytes, fetch.wait_ms) == (5555, 2222)


def test_a_broker_that_does_not_wait_is_not_asked_all_the_time() -> None:
    rig = ConsumerRig()
    rig.broker.on[FETCH] = lambda request: Answer(protocol.FetchReply([]))
    rig.poll()
    rig.pass_time(10)
    assert 40 <= len(rig.fetches()) <= 70


def test_a_lost_connection_is_no_error_of_the_reading() -> None:
    rig = ConsumerRig()
    rig.put(b"0")
    assert bodies(rig.poll()) == [b"0"]
    rig.broker.break_connection()
    rig.put(b"1")
    rig.pass_time(1)
    assert bodies(rig.poll()) == [b"1"]


def test_later_and_no_sense_are_asked_again() -> None:
    rig = ConsumerRig()
    rig.put(b"0")
    rig.broker.answer_once(FETCH, Answer(protocol.Failure("not now", 50), Status.RETRY))
    assert rig.poll() == []
    rig.pass_time(1)
    assert bodies(rig.poll()) == [b"0"]


def test_a_refused_fetch_is_raised_and_tried_again() -> None:
    rig = ConsumerRig()
    rig.put(b"0")
    rig.broker.answer_once(FETCH, Answer(protocol.Failure("not you"), Status.NOT_AUTHORIZED))
    with pytest.raises(Refused, match="not you"):
        rig.poll()
    rig.pass_time(1)
    assert bodies(rig.poll()) == [b"0"]


# --- where reading starts ---


def test_committed_comes_before_start() -> None:
    rig = ConsumerRig(group="billing", queues=2, start="latest")
    for queue in range(2):
        rig.put(b"0", b"1", b"2", queue=queue)
    rig.broker.committed["billing", "orders", 1] = protocol.CommitPart("orders", 1, 1, 7)
    assert [(message.queue, message.offset) for message in rig.poll()] == [(1, 1), (1, 2)]
    places = {part.queue: (part.offset, part.epoch) for part in rig.fetches()[0].parts}
    assert places == {0: (3, 1), 1: (1, 7)}


@pytest.mark.parametrize(
    ("start", "place"), [("earliest", (0, 1)), ("latest", (2, 1)), (1, (1, 0))]
)
def test_start_without_a_commit(start: Start, place: tuple[int, int]) -> None:
    rig = ConsumerRig(start=start)
    rig.put(b"0", b"1")
    rig.poll()
    (part,) = rig.fetches()[0].parts
    assert (part.offset, part.epoch, part.incarnation) == (*place, 1)


def test_start_at_a_time() -> None:
    rig = ConsumerRig(start=datetime(2026, 5, 1, tzinfo=UTC))
    part = protocol.OffsetsPart(0, offset=5, epoch=3, incarnation=1)
    rig.broker.answer_once(Operation.OFFSET_BY_TIME, Answer(protocol.OffsetsReply([part])))
    rig.poll()
    asked = rig.broker.asked(Operation.OFFSET_BY_TIME)[0].header
    assert isinstance(asked, protocol.OffsetByTime) and asked.time_ms == 1_777_593_600_000
    (fetched,) = rig.fetches()[0].parts
    assert (fetched.offset, fetched.epoch) == (5, 3)


@pytest.mark.parametrize("start", ["middle", -1, True, None])
def test_a_start_that_is_none_is_refused(start: Any) -> None:
    with pytest.raises(Refused, match="start="):
        ConsumerRig(start=start)


# --- epochs and positions ---


def test_the_epoch_of_what_was_read_goes_back_and_into_the_commit() -> None:
    rig = ConsumerRig(group="billing")
    rig.put(b"0", b"1", epoch=3)
    rig.put(b"2", b"3", epoch=5)
    rig.poll(1)
    assert [(part.offset, part.epoch) for part in rig.fetches()[-1].parts] == [(4, 5)]
    commits = []
    for _ in range(3):
        rig.run(rig.reader.commit())
        part = rig.broker.committed["billing", "orders", 0]
        commits.append((part.offset, part.epoch))
        rig.poll(2)
    assert commits == [(1, 3), (3, 5), (4, 5)]


def test_the_place_that_a_reply_names_counts_even_without_messages() -> None:
    rig = ConsumerRig(group="billing")
    rig.put(b"0")
    rig.poll()
    part = protocol.FetchResultPart(0, 0, 9, 4)
    request = rig.broker.asked(FETCH)[-1]
    request.answer(Answer(protocol.FetchReply([part])))
    rig.pass_time(0.1)
    assert rig.run(rig.reader.position(None, None)) == 1, "nobody has polled past it yet"
    rig.poll()
    assert rig.run(rig.reader.position(None, None)) == 9
    rig.run(rig.reader.commit())
    committed = rig.broker.committed["billing", "orders", 0]
    assert (committed.offset, committed.epoch) == (9, 4)


def test_a_seek_goes_at_once_and_what_was_out_is_stale() -> None:
    rig = ConsumerRig()
    rig.put(b"0", b"1", b"2")
    rig.poll()
    stale = rig.broker.asked(FETCH)[-1]
    rig.run(rig.reader.seek(1, None, None))
    rig.step()
    (part,) = rig.fetches()[-2].parts
    assert (part.offset, part.epoch) == (1, 0)
    rig.put(b"3")
    reply = rig.broker.default(stale)
    assert reply is not None
    stale.answer(reply)
    rig.step()
    assert bodies(rig.poll()) == [b"1", b"2"]
    assert rig.poll() == [], "what is behind them comes by the fetch that is parked now"
    rig.wake()
    assert bodies(rig.poll()) == [b"3"]


def test_seeks_to_the_ends() -> None:
    rig = ConsumerRig(queues=2)
    rig.put(b"0", b"1")
    rig.put(b"x", queue=1)
    rig.poll()
    rig.run(rig.reader.seek_to("earliest", 0, None))
    assert bodies(rig.poll()) == [b"0", b"1"]
    rig.run(rig.reader.seek_to("latest", None, None))
    assert rig.poll() == []
    assert [rig.run(rig.reader.position(queue, None)) for queue in range(2)] == [2, 1]


def test_a_seek_that_could_mean_several_queues_is_refused() -> None:
    rig = ConsumerRig(queues=2)
    with pytest.raises(Refused, match="name queue"):
        rig.run(rig.reader.seek(0, None, None))
    with pytest.raises(Refused, match="not read"):
        rig.run(rig.reader.seek(0, 7, None))
    with pytest.raises(Refused, match="offset=-1: a whole number from 0 up"):
        rig.run(rig.reader.seek(-1, 0, None))


# --- what stands in a queue's way ---


@pytest.mark.parametrize(("status", "kind"), [(51, Expired), (50, Truncated)])
def test_truncated_and_expired_are_said_once_and_passed(
    status: int, kind: type[Truncated | Expired]
) -> None:
    rig = ConsumerRig(queues=2)
    rig.put(b"other queue", queue=1)
    rig.broker.answer_once(FETCH, part_error(status, 90))
    with pytest.raises(kind, match="so it is") as caught:
        rig.poll()
    error = caught.value
    assert (error.topic, error.queue, error.next_offset) == ("orders", 0, 90)
    assert bodies(rig.poll()) == [b"other queue"]
    assert rig.run(rig.reader.position(0, None)) == 90
    assert any(
        (part.queue, part.offset, part.epoch) == (0, 90, 2)
        for fetch in rig.fetches()
        for part in fetch.parts
    )


def test_messages_before_a_problem_come_first() -> None:
    rig = ConsumerRig()
    rig.put(b"0")
    first = rig.start(rig.reader.poll(10, 0.001))
    request = rig.broker.asked(FETCH)[-1]
    request.answer(part_error(Status.TRUNCATED, 0))
    rig.step()
    assert bodies(first.result()) == [b"0"]
    with pytest.raises(Truncated):
        rig.poll()


def test_damage_stands_until_a_seek_and_others_go_on() -> None:
    rig = ConsumerRig(queues=2)
    rig.broker.answer_once(FETCH, part_error(Status.DAMAGED, 5))
    with pytest.raises(Damaged):
        rig.poll()
    rig.put(b"other queue", queue=1)
    rig.wake()
    assert bodies(rig.poll()) == [b"other queue"]
    with pytest.raises(Damaged) as caught:
        rig.poll()
    assert all(part.queue == 1 for part in rig.fetches()[-1].parts)
    rig.run(rig.reader.seek(caught.value.next_offset, None, None))
    assert rig.poll() == []
    assert rig.run(rig.reader.position(0, None)) == 5


def test_a_topic_that_is_gone_is_said_by_every_empty_poll() -> None:
    rig = ConsumerRig()
    part = protocol.FetchResultPart(0, Status.TOPIC_GONE, detail="orders was deleted")
    rig.broker.on[FETCH] = lambda request: Answer(protocol.FetchReply([part]))
    for _ in range(2):
        with pytest.raises(Refused, match="deleted"):
            rig.poll()


def test_wrong_bytes_are_fetched_once_more_before_anything_is_said() -> None:
    rig = ConsumerRig()
    rig.put(b"0")
    good = rig.broker.stored["orders", 0][0]
    bad = bytearray(good)
    bad[-1] ^= 1
    reply = protocol.FetchReply([protocol.FetchResultPart(0, 0, 1, 1, batches=1)], [len(bad)])
    rig.broker.answer_once(FETCH, Answer(reply, body=[bad]))
    assert bodies(rig.poll()) == [b"0"]
    assert not rig.broker.asked(Operation.REPORT_DAMAGE)


def test_wrong_bytes_twice_are_damage_reported_and_passed_only_by_a_seek() -> None:
    rig = ConsumerRig()
    rig.put(b"0")
    rig.put(b"1", b"2")
    rig.put(b"3")
    rig.broker.stored["orders", 0][1][-1] ^= 1
    assert bodies(rig.poll()) == [b"0"]
    with pytest.raises(Damaged) as caught:
        for _ in range(3):
            rig.poll()
    assert (caught.value.queue, caught.value.next_offset) == (0, 3)
    (report,) = rig.broker.asked(Operation.REPORT_DAMAGE)
    assert isinstance(report.header, protocol.ReportDamage)
    assert (report.header.topic, report.header.queue, report.header.offset) == ("orders", 0, 1)
    assert rig.run(rig.reader.position(None, None)) == 1
    rig.run(rig.reader.seek(3, None, None))
    assert bodies(rig.poll()) == [b"3"]


def test_a_batch_of_another_log_or_queue_is_no_batch_of_ours() -> None:
    rig = ConsumerRig()
    foreign = encode_messages("orders", 3, [(BORN_MS, b"x", "", (), {})])
    rig.broker.put("orders", 3, foreign)
    reply = protocol.FetchReply([protocol.FetchResultPart(0, 0, 1, 1, batches=1)], [len(foreign)])
    rig.broker.on[FETCH] = lambda request: Answer(reply, body=[foreign])
    with pytest.raises(Damaged, match="queue 3"):
        for _ in range(3):
            rig.poll()


# --- records that can't be decoded ---


def poisoned(rig: ConsumerRig) -> None:
    """A batch of three with good CRCs whose middle record is no record."""
    rig.put(b"0", b"a" * 20, b"2")
    batch = rig.broker.stored["orders", 0].pop()
    parsed = parse(batch)
    # The first byte of the record's array header becomes a number: the length stays.
    batch[parsed.records_at + 5 + parsed.lengths[0]] = 0x01
    seal(batch)
    rig.broker.put("orders", 0, batch)


def test_by_default_a_poisoned_record_is_skipped_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = ConsumerRig()
    poisoned(rig)
    with caplog.at_level(logging.WARNING, "cometmq.client"):
        messages = rig.poll()
    assert [(message.offset, message.body) for message in messages] == [(0, b"0"), (2, b"2")]
    assert "offset 1 of queue 0 of orders" in caplog.text
    assert rig.run(rig.reader.position(None, None)) == 3


def test_a_poisoned_record_can_stop_its_queue() -> None:
    rig = ConsumerRig(unreadable="raise")
    poisoned(rig)
    rig.put(b"3")
    assert bodies(rig.poll()) == [b"0"]
    assert rig.run(rig.reader.position(None, None)) == 1
    for _ in range(2):
        with pytest.raises(Unreadable) as caught:
            rig.poll()
    assert caught.value.next_offset == 2
    rig.run(rig.reader.seek(2, None, None))
    assert bodies(rig.poll()) == [b"2", b"3"]


def test_a_poisoned_record_can_be_handed_over() -> None:
    seen: list[UnreadableMessage] = []
    rig = ConsumerRig(unreadable=seen.append)
    poisoned(rig)
    assert bodies(rig.poll()) == [b"0", b"2"]
    (message,) = seen
    assert (message.offset, message.queue, message.topic) == (1, 0, "orders")


def test_an_unknown_policy_is_refused() -> None:
    policy: Any = "ignore"
    with pytest.raises(Refused, match="unreadable="):
        ConsumerRig(unreadable=policy)


# --- commits ---


def test_only_what_moved_is_committed() -> None:
    rig = ConsumerRig(group="billing", queues=3)
    rig.put(b"0", queue=1)
    rig.poll()
    rig.run(rig.reader.commit())
    rig.run(rig.reader.commit())
    (request,) = rig.broker.asked(Operation.COMMIT)
    assert isinstance(request.header, protocol.Commit)
    assert [(part.queue, part.offset) for part in request.header.parts] == [(1, 1)]
    assert rig.run(rig.reader.committed()) == {
        ("orders", 0): None,
        ("orders", 1): 1,
        ("orders", 2): None,
    }


def test_a_failed_commit_is_covered_by_the_next() -> None:
    rig = ConsumerRig(group="billing", queues=2)
    rig.put(b"0", queue=0)
    rig.put(b"0", queue=1)
    rig.poll()
    parts = [protocol.PartStatus(0), protocol.PartStatus(Status.FENCED, "an old token")]
    rig.broker.answer_once(Operation.COMMIT, Answer(protocol.CommitReply(parts)))
    with pytest.raises(Refused, match="an old token"):
        rig.run(rig.reader.commit())
    rig.run(rig.reader.commit())
    last = rig.broker.asked(Operation.COMMIT)[-1].header
    assert isinstance(last, protocol.Commit) and [part.queue for part in last.parts] == [1]


def test_commit_without_waiting_logs_what_fails(caplog: pytest.LogCaptureFixture) -> None:
    rig = ConsumerRig(group="billing")
    rig.put(b"0")
    rig.poll()
    rig.broker.answer_once(Operation.COMMIT, Answer(protocol.Failure("no"), Status.REFUSED))
    with caplog.at_level(logging.WARNING, "cometmq.client"):
        rig.reader.commit_soon()
        rig.step()
    assert "group billing: commit failed: no" in caplog.text
    rig.reader.commit_soon()
    rig.pass_time(LATEST_S)
    assert rig.broker.committed["billing", "orders", 0].offset == 1


def test_commits_of_a_moment_that_nobody_waits_for_are_one_request() -> None:
    rig = ConsumerRig(group="billing")
    rig.put(*[b"%d" % number for number in range(20)])

    def commit_each(count: int) -> list[int]:
        for _ in range(count):
            rig.poll(1)  # takes 2 ms
            rig.reader.commit_soon()
            rig.step()
        asked = [request.header for request in rig.broker.asked(Operation.COMMIT)]
        return [header.parts[0].offset for header in asked if isinstance(header, protocol.Commit)]

    assert commit_each(10) == [1, 4, 7, 10]
    assert commit_each(2) == [1, 4, 7, 10]
    rig.poll(1)
    rig.pass_time(LATEST_S)  # what was polled since is not committed
    assert rig.broker.committed["billing", "orders", 0].offset == 12
    rig.pass_time(60)
    assert len(rig.broker.asked(Operation.COMMIT)) == 5


@pytest.mark.parametrize("what", ["commit", "committed", "farewell", "seek", "assign"])
def test_a_commit_in_the_background_is_overtaken_by_nothing(what: str) -> None:
    rig = ConsumerRig(group="billing")
    rig.put(b"0", b"1", b"2")
    for _ in range(2):
        rig.poll(1)
        rig.reader.commit_soon()
        rig.step()
    assert rig.reader.unfinished
    assert rig.broker.committed["billing", "orders", 0].offset == 1
    if what == "commit":
        rig.run(rig.reader.commit())
    elif what == "committed":
        assert rig.run(rig.reader.committed()) == {("orders", 0): 2}
    elif what == "seek":
        rig.run(rig.reader.seek(0, 0, "orders"))
    elif what == "assign":
        assign(rig.reader, [0], "orders")
        assert bodies(rig.poll()) == [b"2"], "it goes on behind what was committed"
    else:
        rig.run(rig.reader.farewell())
    assert rig.broker.committed["billing", "orders", 0].offset == 2
    assert not rig.reader.unfinished
    rig.pass_time(60)
    assert len(rig.broker.asked(Operation.COMMIT)) == 2


def test_a_commit_of_nothing_leaves_nothing_to_do() -> None:
    rig = ConsumerRig(group="billing")
    rig.put(b"0")
    rig.poll()
    rig.run(rig.reader.commit())
    for _ in range(2):
        rig.reader.commit_soon()
    assert not rig.reader.unfinished


def test_a_commit_that_is_interrupted_is_covered_by_the_next() -> None:
    rig = ConsumerRig(group="billing")
    rig.put(b"0")
    rig.poll()
    rig.broker.answer_once(Operation.COMMIT, Answer(protocol.Failure("later", 1000), Status.RETRY))
    task = rig.start(rig.reader.commit())
    rig.step()
    task.cancel("interrupted")
    rig.run(rig.reader.commit())
    assert rig.broker.committed["billing", "orders", 0].offset == 1


def test_the_end_of_a_consumer_waits_for_a_commit_no_longer_than_a_moment(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = ConsumerRig(group="billing")
    rig.put(b"0")
    rig.poll()
    rig.broker.hold(Operation.COMMIT)
    rig.reader.commit_soon()
    task = rig.start(rig.reader.farewell())
    rig.pass_time(FAREWELL_S / 2)
    assert not task.done
    rig.pass_time(FAREWELL_S)
    assert task.done
    rig.engine.close(Closed("closed"))
    (said,) = caplog.messages
    assert "commit failed before the end" in said and "may come again" in said


def test_a_commit_that_is_tried_again_takes_back_no_later_one() -> None:
    """Nor does it commit what was polled since, which nobody may have handled yet."""
    rig = ConsumerRig(group="billing")
    later = Answer(protocol.Failure("later", 1000), Status.RETRY)
    rig.broker.answer_once(Operation.COMMIT, later)
    rig.put(b"0", b"1", b"2")
    for _ in range(2):
        rig.poll(1)
        rig.reader.commit_soon()
        rig.pass_time(LATEST_S)
    rig.poll(1)
    assert rig.broker.committed["billing", "orders", 0].offset == 2
    rig.pass_time(3)
    assert len(rig.broker.asked(Operation.COMMIT)) == 3
    assert rig.broker.committed["billing", "orders", 0].offset == 2


def test_commit_without_a_group_is_refused() -> None:
    rig = ConsumerRig()
    with pytest.raises(Refused, match="group="):
        rig.run(rig.reader.commit())


def test_a_bad_group_name_is_refused() -> None:
    with pytest.raises(Refused, match="group name"):
        ConsumerRig(group="no spaces")
