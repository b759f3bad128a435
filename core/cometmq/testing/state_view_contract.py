"""What every state view must hold to, as tests that a plugin's author inherits.

    class TestClaims(StateViewContract):
        def make_view(self) -> Claims:
            return Claims()

        def make_history(self, log: LogBytes, random: Random) -> list[Batch]:
            return [log.control(KIND, [...]) for _ in range(random.randint(0, 60))]

        def observe(self, view: StateView) -> object:
            return view.table()

A checkpoint is made while the state goes on changing, shard by shard, and a start loads all of
its shards and then replays from before the first one was made. So each batch may be applied to a
state that has its effect, and that of later batches, already. The result must be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from cometmq.batch import Batch
from cometmq.interfaces import StateView
from cometmq.testing.log_bytes import LogBytes

HISTORIES = 25
"""How many random histories each test goes through."""
SHARD_BYTES_MAX = 256 << 10
"""A larger shard holds up the loop while it is encoded."""


class StateViewContract:
    """Inherit and fill in three methods; `make_history` should reach every kind of change."""

    def make_view(self) -> StateView:
        """A new, empty view."""
        raise NotImplementedError

    def make_history(self, log: LogBytes, random: Random) -> list[Batch]:
        """Stamped batches of the view's kinds, as a broker would append them; any number."""
        raise NotImplementedError

    def observe(self, view: StateView) -> object:
        """All that the view answers, in a form that can be compared."""
        raise NotImplementedError

    # --- the tests ------------------------------------------------------------------------------

    @pytest.mark.parametrize("seed", range(HISTORIES))
    def test_a_fuzzy_checkpoint_and_a_replay_give_the_plain_state(self, seed: int) -> None:
        random = Random(seed)
        history = self._history(random)
        begin = random.randint(0, len(history))
        shards, end = self._checkpoint(history, begin, random)
        for cut in sorted({end, len(history), random.randint(end, len(history))}):
            started = self.make_view()
            for shard in shards:
                started.load(shard)
            _apply(started, history[begin:cut])
            assert self.observe(started) == self.observe(self._plain(history[:cut])), (
                f"checkpoint begun after {begin} batches, ended after {end}, log cut after {cut}"
            )

    @pytest.mark.parametrize("seed", range(HISTORIES))
    def test_one_state_whatever_the_order_of_the_shards(self, seed: int) -> None:
        random = Random(seed)
        history = self._history(random)
        shards = list(self._plain(history).slices())
        random.shuffle(shards)
        started = self.make_view()
        for shard in shards:
            started.load(shard)
        assert self.observe(started) == self.observe(self._plain(history))

    @pytest.mark.parametrize("seed", range(HISTORIES))
    def test_a_batch_can_be_applied_to_any_state(self, seed: int) -> None:
        random = Random(seed)
        history = self._history(random)
        random.shuffle(history)
        _apply(self.make_view(), history)

    @pytest.mark.parametrize("seed", range(HISTORIES))
    def test_the_same_batches_give_the_same_state(self, seed: int) -> None:
        history = self._history(Random(seed))
        assert self.observe(self._plain(history)) == self.observe(self._plain(history))

    @pytest.mark.parametrize("seed", range(HISTORIES))
    def test_slices_change_nothing_and_are_small(self, seed: int) -> None:
        view = self._plain(self._history(Random(seed)))
        before = self.observe(view)
        shards = list(view.slices())
        assert self.observe(view) == before
        assert all(len(shard) <= SHARD_BYTES_MAX for shard in shards)

    def test_a_reset_leaves_an_empty_view(self) -> None:
        view = self._plain(self._history(Random(1)))
        view.reset()
        assert self.observe(view) == self.observe(self.make_view())
        assert list(view.slices()) == list(self.make_view().slices())

    def test_histories_change_something(self) -> None:
        empty = self.observe(self.make_view())
        seen = [self.observe(self._plain(self._history(Random(s)))) for s in range(HISTORIES)]
        assert any(state != empty for state in seen), "make_history gives nothing to test with"

    # --- inside -----------------------------------------------------------------------------------

    def _history(self, random: Random) -> list[Batch]:
        log = LogBytes()
        log.begin()
        return self.make_history(log, random)

    def _plain(self, history: Sequence[Batch]) -> StateView:
        view = self.make_view()
        _apply(view, history)
        return view

    def _checkpoint(
        self, history: Sequence[Batch], begin: int, random: Random
    ) -> tuple[list[bytes], int]:
        """Shards made while batches from `begin` on were applied, and how many had been applied
        when the last one was there."""
        view = self._plain(history[:begin])
        shards: list[bytes] = []
        at = begin
        slices = view.slices()
        while True:
            more = random.choice((0, 0, 1, 2, 5))
            _apply(view, history[at : at + more])
            at = min(at + more, len(history))
            shard = next(slices, None)
            if shard is None:
                return shards, at
            shards.append(shard)


def _apply(view: StateView, batches: Sequence[Batch]) -> None:
    for batch in batches:
        view.apply(batch)
