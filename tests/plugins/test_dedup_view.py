"""The view of `dedup`: what is remembered of a producer, whatever the order of the replay."""

from __future__ import annotations

from random import Random

from cometmq.batch import Batch, Kind, RecordTuple, encode_messages
from cometmq.interfaces import StateView
from cometmq.log.records import TopicChange
from cometmq.testing.log_bytes import LogBytes
from cometmq.testing.state_view_contract import StateViewContract
from cometmq_plugins.dedup.view import WINDOW, Producers

IDLE_MS = 1000
KEY = ("orders", 0, 7)


def sent(
    log: LogBytes,
    sequence: int,
    *,
    epoch: int = 0,
    count: int = 1,
    producer: int = 7,
    topic: str = "orders",
    queue: int = 0,
) -> Batch:
    """A numbered batch in the log."""
    records: list[RecordTuple] = [(log.store_time, b"x", "", (), {})] * count
    numbers = producer, epoch, sequence
    return log.append(encode_messages(topic, queue, records, producer=numbers), (1, queue), 10)


def log_of() -> LogBytes:
    log = LogBytes()
    log.begin()
    return log


def view_of(*batches: Batch) -> Producers:
    view = Producers(IDLE_MS)
    for batch in batches:
        view.apply(batch)
    return view


class TestProducers(StateViewContract):
    def make_view(self) -> StateView:
        return Producers(IDLE_MS)

    def make_history(self, log: LogBytes, random: Random) -> list[Batch]:
        history = []
        expected: dict[tuple[str, int, int], tuple[int, int]] = {}
        for _ in range(random.randint(0, 150)):
            log.store_time += random.choice(
                (0, 0, 1, 5, 100, IDLE_MS + 1 if random.random() < 0.1 else 0)
            )
            topic = random.choice(("orders", "bills"))
            what = random.random()
            if what < 0.04:
                gone = TopicChange(1, topic, deleted=True)
                history.append(log.control(Kind.TOPIC_CHANGE, [gone]))
            elif what < 0.08:
                history.append(log.messages())
            else:
                key = topic, random.randint(0, 1), random.randint(1, 4)
                epoch, sequence = expected.get(key, (0, 0))
                if random.random() < 0.1:
                    epoch, sequence = epoch + 1, 0
                count = random.randint(1, 3)
                batch = sent(
                    log,
                    sequence,
                    epoch=epoch,
                    count=count,
                    topic=topic,
                    queue=key[1],
                    producer=key[2],
                )
                history.append(batch)
                expected[key] = epoch, sequence + count
        return history

    def observe(self, view: StateView) -> object:
        assert isinstance(view, Producers)
        return {key: view.window(key) for key in view.keys()}


def test_the_last_batches_of_an_unbroken_row_may_be_repeated() -> None:
    log = log_of()
    batches = [sent(log, 2 * number, count=2) for number in range(WINDOW + 3)]
    window = view_of(*batches).window(KEY)
    assert [it.sequence for it in window] == [14, 12, 10, 8, 6]
    assert window[0].position == batches[-1].position
    assert window[0].end == batches[-1].position + batches[-1].length
    assert (window[0].base_offset, window[0].count, window[0].log_epoch) == (10, 2, 1)


def test_a_new_epoch_leaves_the_old_one_behind() -> None:
    log = log_of()
    view = view_of(sent(log, 0), sent(log, 1), sent(log, 0, epoch=1))
    assert [(it.epoch, it.sequence) for it in view.window(KEY)] == [(1, 0)]


def test_producers_and_queues_and_topics_are_apart() -> None:
    log = log_of()
    view = view_of(sent(log, 0), sent(log, 5, producer=8), sent(log, 6, queue=1))
    view.apply(sent(log, 9, topic="bills"))
    assert {key: view.window(key)[0].sequence for key in view.keys()} == {
        KEY: 0,
        ("orders", 0, 8): 5,
        ("orders", 1, 7): 6,
        ("bills", 0, 7): 9,
    }


def test_batches_without_a_number_and_re_appended_ones_leave_no_trace() -> None:
    log = log_of()
    again = sent(log, 0)
    again.origin_kind = 2
    assert view_of(log.messages(), again).keys() == []
    diverted = sent(log, 0)
    diverted.origin_kind = 1
    assert view_of(diverted).keys() == [KEY]


def test_an_idle_producer_is_forgotten_by_the_time_of_the_log() -> None:
    log = log_of()
    view = view_of(sent(log, 0), sent(log, 1))
    log.store_time += IDLE_MS
    view.apply(log.messages())
    assert view.last(KEY) is not None
    log.store_time += 1
    view.apply(log.messages())
    assert view.last(KEY) is None and view.window(KEY) == [] and view.keys() == []
    for number in range(3):
        view.apply(sent(log, 0, producer=100 + number))
    assert len(view) == 3, "its place is given to others"


def test_a_clock_that_was_far_ahead_forgets_nobody_who_comes_later() -> None:
    log = log_of()
    view = view_of(sent(log, 0))
    log.store_time += 1_000_000_000
    view.apply(sent(log, 0, producer=8))
    log.store_time -= 1_000_000_000
    view.apply(sent(log, 0, producer=9))
    assert view.last(("orders", 0, 9)) is not None
    view.apply(sent(log, 1, producer=9))
    assert [it.sequence for it in view.window(("orders", 0, 9))] == [1, 0]


def test_a_topics_new_life_starts_fresh_and_a_replay_keeps_what_came_later() -> None:
    log = log_of()
    before = sent(log, 0), sent(log, 1)
    gone = log.control(Kind.TOPIC_CHANGE, [TopicChange(1, "orders", deleted=True)])
    other = sent(log, 0, topic="bills")
    after = sent(log, 0)
    view = view_of(*before, other, gone)
    assert view.keys() == [("bills", 0, 7)]
    view.apply(after)
    view.apply(before[1])  # a replay that begins before the deletion
    view.apply(gone)
    assert [it.position for it in view.window(KEY)] == [after.position]
