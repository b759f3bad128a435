"""The log's own state views under the contract that all views are held to."""

from __future__ import annotations

from random import Random

from cometmq.batch import Batch, Kind
from cometmq.interfaces import StateView
from cometmq.log.epochs import Epochs
from cometmq.log.kinds import CORE_KINDS, FIRST_FREE, Kinds
from cometmq.log.log_start import LogStart
from cometmq.log.next_offsets import NextOffsets
from cometmq.log.records import EpochStart, KindName, TopicChange, Trim
from cometmq.testing.log_bytes import LogBytes
from cometmq.testing.state_view_contract import StateViewContract


class TestNextOffsets(StateViewContract):
    def make_view(self) -> NextOffsets:
        return NextOffsets()

    def make_history(self, log: LogBytes, random: Random) -> list[Batch]:
        living = list(range(1, 31))
        history = []
        for _ in range(random.randint(0, 80)):
            topic = random.choice(living)
            if len(living) > 1 and random.random() < 0.2:
                living.remove(topic)
                gone = TopicChange(topic, f"t{topic}", deleted=True)
                history.append(log.control(Kind.TOPIC_CHANGE, [gone]))
            else:
                history.append(log.messages(topic, random.randint(0, 3), random.randint(1, 4)))
        return history

    def observe(self, view: StateView) -> object:
        assert isinstance(view, NextOffsets)
        return dict(view.items())

    def test_it_never_falls(self) -> None:
        view = NextOffsets()
        view.advance(1, 0, 10)
        view.advance(1, 0, 4)
        assert view.get(1, 0) == 10
        assert view.get(1, 1) == view.get(2, 0) == 0

    def test_messages_of_no_topic_have_no_queue(self) -> None:
        view = NextOffsets()
        log = LogBytes()
        log.begin()
        view.apply(log.messages(incarnation=0))
        assert dict(view.items()) == {}

    def test_many_queues_make_many_shards(self) -> None:
        view = NextOffsets()
        for incarnation in range(1, 5001):
            view.advance(incarnation, incarnation % 7, incarnation)
        shards = list(view.slices())
        assert len(shards) > 2
        copy = NextOffsets()
        for shard in shards:
            copy.load(shard)
        assert dict(copy.items()) == dict(view.items())


class TestEpochs(StateViewContract):
    def make_view(self) -> Epochs:
        return Epochs()

    def make_history(self, log: LogBytes, random: Random) -> list[Batch]:
        history = []
        epoch = 0
        for _ in range(random.randint(0, 30)):
            if random.random() < 0.8:
                epoch += random.randint(1, 3)
                start = EpochStart(epoch, random.choice("ab"), log.end)
                history.append(log.control(Kind.EPOCH_START, [start]))
            else:
                history.append(log.control(Kind.TRIM, [Trim(random.randint(0, log.end))]))
        return history

    def observe(self, view: StateView) -> object:
        # What was trimmed away may be known or not; nobody can ask for it.
        assert isinstance(view, Epochs)
        newest = view.last
        return newest, view.node_of(newest), view.start_of(newest)

    def test_where_epochs_begin_and_end(self) -> None:
        view = Epochs()
        log = LogBytes()
        log.begin()
        for epoch, position in ((1, 0), (2, 500), (5, 900)):
            view.apply(log.control(Kind.EPOCH_START, [EpochStart(epoch, "n", position)]))
        assert [view.end_of(epoch) for epoch in (1, 2, 3, 5, 6)] == [500, 900, 900, None, None]
        assert (view.start_of(5), view.start_of(4)) == (900, None)
        assert (view.node_of(2), view.node_of(3)) == ("n", "")

    def test_a_trim_forgets_what_ended_below_it_and_no_judgement_changes(self) -> None:
        view = Epochs()
        log = LogBytes()
        log.begin()
        for epoch, position in ((1, 0), (2, 500), (3, 900)):
            view.apply(log.control(Kind.EPOCH_START, [EpochStart(epoch, "n", position)]))
        view.apply(log.control(Kind.TRIM, [Trim(700)]))
        assert view.start_of(1) is None
        # Everything of epoch 1 is below the log's start, which its end may not exceed.
        end = view.end_of(1)
        assert end is not None and end <= 700
        assert view.end_of(2) == 900
        view.apply(log.control(Kind.TRIM, [Trim(900)]))
        assert view.start_of(2) is None and view.start_of(3) == 900


class TestLogStart(StateViewContract):
    def make_view(self) -> LogStart:
        return LogStart()

    def make_history(self, log: LogBytes, random: Random) -> list[Batch]:
        return [
            log.control(Kind.TRIM, [Trim(random.randint(0, 1000))])
            for _ in range(random.randint(0, 5))
        ]

    def observe(self, view: StateView) -> object:
        assert isinstance(view, LogStart)
        return view.position


class TestKinds(StateViewContract):
    def make_view(self) -> Kinds:
        return Kinds()

    def make_history(self, log: LogBytes, random: Random) -> list[Batch]:
        """Plugins that come and go, each with one kind of its own name."""
        history = []
        model = Kinds()
        for _ in range(random.randint(0, 12)):
            name = random.choice("abc")
            if model.number_of(name) is None:
                records = model.missing([(name, name)])
            else:
                records = model.drops(name)
            history.append(log.control(Kind.KIND_NAME, records))
            model.apply(history[-1])
        return history

    def observe(self, view: StateView) -> object:
        assert isinstance(view, Kinds)
        return sorted((entry.name, entry.number) for entry in view.live())

    def test_the_core_needs_no_names(self) -> None:
        kinds = Kinds()
        assert kinds.number_of("messages") == 0
        assert kinds.number_of("offset-commit") == CORE_KINDS["offset-commit"] == 9
        assert kinds.missing([("trim", "x")]) == []

    def test_a_number_is_never_given_twice(self) -> None:
        kinds = Kinds()
        log = LogBytes()
        log.begin()
        first = kinds.missing([("delay", "delays"), ("ack", "leases")])
        assert [record.number for record in first] == [FIRST_FREE, FIRST_FREE + 1]
        kinds.apply(log.control(Kind.KIND_NAME, first))
        kinds.apply(log.control(Kind.KIND_NAME, kinds.drops("leases")))
        assert kinds.number_of("ack") is None
        again = kinds.missing([("ack", "leases")])
        assert again == [KindName(FIRST_FREE + 2, "ack", "leases")]
