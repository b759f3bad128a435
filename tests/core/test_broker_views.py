"""The broker's state views under the contract that all views are held to."""

from __future__ import annotations

from random import Random

from cometmq.batch import Batch, Kind
from cometmq.broker.claims import ClaimChange, Claims, GroupChange, Holder
from cometmq.broker.offsets import CommittedOffsets, OffsetCommit
from cometmq.broker.topics import Topics
from cometmq.interfaces import StateView
from cometmq.log.records import TopicChange
from cometmq.testing.log_bytes import LogBytes
from cometmq.testing.state_view_contract import StateViewContract

NAMES = "abcde"


class History:
    """Changes as a broker would decide on them."""

    def __init__(self, log: LogBytes, random: Random) -> None:
        self._log = log
        self._random = random
        self._next = 1
        self._living: dict[str, TopicChange] = {}

    def topic_change(self) -> Batch:
        name = self._random.choice(NAMES)
        topic = self._living.pop(name, None)
        if topic is not None and self._random.random() < 0.5:
            gone = TopicChange(topic.incarnation, name, deleted=True)
            return self._log.control(Kind.TOPIC_CHANGE, [gone])
        if topic is None:
            topic = TopicChange(self._next, name, created_ms=self._next)
            self._next += 1
        queues = topic.queues + self._random.randint(1, 3)
        writable = self._random.random() < 0.5
        changed = TopicChange(topic.incarnation, name, queues, True, writable, topic.created_ms)
        self._living[name] = changed
        return self._log.control(Kind.TOPIC_CHANGE, [changed])

    def commits(self) -> Batch:
        if not self._living:
            return self.topic_change()
        return self._log.control(
            Kind.OFFSET_COMMIT,
            [
                OffsetCommit(
                    self._random.choice("gh"),
                    self._random.choice(list(self._living.values())).incarnation,
                    self._random.randint(0, 2),
                    self._random.randint(0, 99),
                    self._random.randint(1, 3),
                )
                for _ in range(self._random.randint(1, 3))
            ],
        )

    def claims(self) -> Batch:
        """Claims, releases, resets, and now and then the end of a group."""
        if not self._living:
            return self.topic_change()
        if self._random.random() < 0.2:
            gone = self._random.random() < 0.5
            change = GroupChange(self._random.choice("gh"), deleted=gone)
            return self._log.control(Kind.GROUP_CHANGE, [change])
        return self._log.control(
            Kind.CLAIM, [self._claim() for _ in range(self._random.randint(1, 3))]
        )

    def _claim(self) -> ClaimChange:
        choice = self._random.choice
        return ClaimChange(
            choice("gh"),
            choice(list(self._living.values())).incarnation,
            self._random.randint(0, 2),
            choice((None, "", "one", "two")),
            1000,
            choice((None, 5, 6)),
            1,
            choice((None, 7)),
            1,
        )


class TestTopics(StateViewContract):
    def make_view(self) -> Topics:
        return Topics()

    def make_history(self, log: LogBytes, random: Random) -> list[Batch]:
        history = History(log, random)
        return [history.topic_change() for _ in range(random.randint(0, 60))]

    def observe(self, view: StateView) -> object:
        assert isinstance(view, Topics)
        by_incarnation = [view.of(number) for number in range(view.next_incarnation)]
        return list(view), by_incarnation, view.next_incarnation, len(view)

    def test_the_counter_outlives_the_topics(self) -> None:
        log, view = LogBytes(), Topics()
        log.begin()
        view.apply(log.control(Kind.TOPIC_CHANGE, [TopicChange(7, "t", 1)]))
        view.apply(log.control(Kind.TOPIC_CHANGE, [TopicChange(7, "t", deleted=True)]))
        copy = Topics()
        for shard in view.slices():
            copy.load(shard)
        assert copy.next_incarnation == 8
        assert copy.get("t") is None

    def test_many_topics_make_many_shards(self) -> None:
        log, view = LogBytes(), Topics()
        log.begin()
        for number in range(1, 1001):
            view.apply(log.control(Kind.TOPIC_CHANGE, [TopicChange(number, f"t{number}", 4)]))
        shards = list(view.slices())
        assert len(shards) == 11
        copy = Topics()
        for shard in shards:
            copy.load(shard)
        assert self.observe(copy) == self.observe(view)


class TestCommittedOffsets(StateViewContract):
    def make_view(self) -> CommittedOffsets:
        return CommittedOffsets()

    def make_history(self, log: LogBytes, random: Random) -> list[Batch]:
        history = History(log, random)
        return [
            random.choice((history.topic_change, history.commits, history.claims))()
            for _ in range(random.randint(0, 60))
        ]

    def observe(self, view: StateView) -> object:
        assert isinstance(view, CommittedOffsets)
        return {
            (group, incarnation, queue): place
            for group in "gh"
            for incarnation in range(80)
            for queue in range(3)
            if (place := view.get(group, incarnation, queue)) is not None
        }

    def test_a_deleted_topic_takes_its_offsets_along(self) -> None:
        log, view = LogBytes(), CommittedOffsets()
        log.begin()
        commits = [OffsetCommit("g", 1, 0, 5, 1), OffsetCommit("g", 2, 0, 6, 1)]
        view.apply(log.control(Kind.OFFSET_COMMIT, commits))
        view.apply(log.control(Kind.TOPIC_CHANGE, [TopicChange(1, "t", deleted=True)]))
        assert view.get("g", 1, 0) is None
        assert view.get("g", 2, 0) == (6, 1)

    def test_a_deleted_group_takes_its_offsets_along(self) -> None:
        log, view = LogBytes(), CommittedOffsets()
        log.begin()
        commits = [OffsetCommit("g", 1, 0, 5, 1), OffsetCommit("h", 1, 0, 6, 1)]
        view.apply(log.control(Kind.OFFSET_COMMIT, commits))
        view.apply(log.control(Kind.GROUP_CHANGE, [GroupChange("g", deleted=True)]))
        assert (view.names(), view.count, view.topics_of("g")) == (["h"], 1, [])
        assert view.get("g", 1, 0) is None
        assert view.get("h", 1, 0) == (6, 1)


class TestClaims(StateViewContract):
    def make_view(self) -> Claims:
        return Claims()

    def make_history(self, log: LogBytes, random: Random) -> list[Batch]:
        history = History(log, random)
        return [
            history.topic_change() if random.random() < 0.3 else history.claims()
            for _ in range(random.randint(0, 60))
        ]

    def observe(self, view: StateView) -> object:
        assert isinstance(view, Claims)
        keys = [
            (group, topic, queue) for group in "gh" for topic in range(80) for queue in range(3)
        ]
        members = {holder.member for _, holder in view.items()} | {"nobody"}
        for group in "gh":
            mine = [(key, holder.member) for key, holder in view.items() if key[0] == group]
            assert sorted(view.held(group)) == sorted(key for key, _ in mine)
            for member in members:
                held = sorted(key for key, holder in mine if holder == member)
                assert sorted(view.held(group, member)) == held
        undos = {key: view.undo(key) for key in keys if view.undo(key) is not None}
        modes = {group: view.mode(group) for group in sorted(view.groups())}
        return sorted(view.items()), undos, modes, len(view)

    def test_a_claim_is_known_by_its_batch(self) -> None:
        log, view = LogBytes(), Claims()
        log.begin()
        batch = log.control(Kind.CLAIM, [ClaimChange("g", 1, 0, "one", 500)])
        view.apply(batch)
        token = batch.epoch, batch.position
        held = Holder("one", *token, 500, token)
        assert view.get(("g", 1, 0)) == held
        view.apply(log.control(Kind.CLAIM, [ClaimChange("g", 1, 0, offset=3)]))
        assert view.get(("g", 1, 0)) == held
        again = log.control(Kind.CLAIM, [ClaimChange("g", 1, 0, "one", 500, kept=True)])
        view.apply(again)
        assert view.get(("g", 1, 0)) == Holder("one", again.epoch, again.position, 500, token)
        view.apply(log.control(Kind.CLAIM, [ClaimChange("g", 1, 0, "")]))
        assert view.get(("g", 1, 0)) is None
