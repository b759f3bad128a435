"""One queue in the hands of a consumer: what is handed out of it, and how far it is finished."""

from __future__ import annotations

from cometmq.client.cursor import Cursor, Place
from cometmq.client.listeners import Listener, Topic
from cometmq.client.runs import Run
from cometmq.client.taking import Taker
from cometmq.protocol import Token

PENDING_MAX = 8
"""So many runs may wait for a listener that is busy before the others wait for it too."""


class Lane:
    """A queue, its cursor and its runs in order. Everything needs the driver's lock."""

    def __init__(self, topic: Topic, cursor: Cursor, taker: Taker, span: int) -> None:
        assert cursor.place is not None
        self.topic = topic
        self.cursor = cursor
        self.key = cursor.topic, cursor.queue
        self.runs: list[Run] = []
        self.place = cursor.place
        """Everything before it is finished."""
        self.committed = cursor.place
        """What the broker knows."""
        self.draining = False
        """It is to be released: only what must be finished is handed out."""
        self.halted = False
        """Its claim is in question: nothing is handed out."""
        self.unbound = False
        """Its claim stands, but must be bound to the session that is new."""
        self.lost = False
        """It is somebody else's: nothing is handed out, what is finished goes nowhere."""
        self.wait_for_acks = True
        """Whether a message that an iteration handed out holds up a release."""
        self._taker = taker
        self._span = span

    @property
    def token(self) -> Token | None:
        """The claim; None where none is needed."""
        return self.cursor.token

    @property
    def busy(self) -> bool:
        """Whether a message of it is in somebody's hands."""
        return any(
            run.begun and not run.finished and (self.wait_for_acks or run.acked is None)
            for run in self.runs
        )

    @property
    def in_hand(self) -> bool:
        """Whether somebody is at a message of it now, and not only owes an ack."""
        return any(
            run.begun and not run.finished and (run.acked is None or run.left is not None)
            for run in self.runs
        )

    @property
    def failing(self) -> bool:
        """Whether a message of it waits to be handled again."""
        return any(run.attempts for run in self.runs if not run.finished)

    @property
    def drained(self) -> bool:
        """Whether it can be given away without handling anything twice that need not be."""
        if self.busy:
            return False
        return self.failing or not any(self._owed(run) for run in self.runs if not run.begun)

    @property
    def ready(self) -> bool:
        """Whether there may be a run to take."""
        if self.topic.orderly and self.busy:
            return False
        return not self.cursor.empty or any(not run.begun for run in self.runs)

    def take(self, listener: Listener, now_s: float) -> Run | None:
        """The next run for this listener, if there is one now."""
        if self.halted or self.lost or (self.topic.paused and not self.draining):
            return None
        run = self._pending(listener, now_s)
        if run is None and (most := self._most(listener)) > 0:
            self._read(most)
            run = self._pending(listener, now_s)
        if run is not None:
            run.begun = True
            run.since_s = now_s
        return run

    def put_back(self, run: Run, retry_at_s: float | None = None) -> Run | None:
        """What a run has not finished waits again; after a failure until `retry_at_s`.

        Returns the run that waits, if any.
        """
        rest = None
        if not run.finished and run in self.runs:
            handled = run.done
            rest = run.cut(handled)
            if retry_at_s is not None:
                rest.attempts = 1 + (0 if handled else run.attempts)
                rest.retry_at_s = retry_at_s
            elif not handled:
                rest.attempts, rest.retry_at_s = run.attempts, run.retry_at_s
            run.attempts = 0
            self.runs.insert(self.runs.index(run) + 1, rest)
        self.settle()
        return rest

    def drain(self) -> None:
        """Hand out only what must be finished before a release."""
        self.draining = True
        for run in [run for run in self.runs if run.left is not None]:
            self.take_back(run)

    def take_back(self, run: Run) -> None:
        """What an iteration has not handed out of a run waits again."""
        handed = run.take_back()
        if handed < len(run.messages) and run in self.runs:
            rest = run.cut(handed)
            self.runs.insert(self.runs.index(run) + 1, rest)

    def settle(self) -> Place:
        """Forget what is finished; returns the place before which everything is."""
        kept: list[Run] = []
        for run in self.runs:
            if not run.finished:
                kept.append(run)
            elif not kept:
                self.place = run.behind
            elif kept[-1].finished:
                kept[-1].behind = run.behind
            else:
                kept.append(run)
        self.runs = kept
        if kept:
            return kept[0].place if kept[0].done else self.place
        return self.place

    def restart(self, place: Place) -> None:
        """Go on at another place; what is handed out still finishes, but counts for nothing."""
        self.runs = []
        self.place = place
        self.cursor.move(place.offset, place.epoch)

    def refetch(self) -> None:
        """Forget what was read ahead, which a new filter would have read otherwise."""
        place = self.cursor.place
        assert place is not None
        self.cursor.move(place.offset, place.epoch)

    def is_last(self, run: Run) -> bool:
        """Whether nothing behind it was handed out, so that it may stop at any message."""
        for later in reversed(self.runs):
            if later is run:
                return True
            if later.begun:
                return False
        return True

    def pass_marks(self) -> None:
        """Move over what the broker left out."""
        cursor = self.cursor
        if cursor.place is not None:
            cursor.pass_marks()
            self._passed(cursor.place)

    # --- inside -------------------------------------------------------------------------------

    def _pending(self, listener: Listener, now_s: float) -> Run | None:
        orderly = self.topic.orderly
        for run in self.runs:
            if run.begun:
                if (orderly or run.attempts) and not run.finished:
                    return None
                continue
            if run.retry_at_s > now_s or (self.draining and not self._owed(run)):
                return None
            if run.listener is listener:
                return run
            if orderly or run.attempts:
                return None
        return None

    def _owed(self, run: Run) -> bool:
        """Whether something behind it was handed out: it must be finished before a release."""
        return not self.is_last(run)

    def _most(self, listener: Listener) -> int:
        """How many messages may be read now."""
        cursor = self.cursor
        if self.draining or cursor.empty or cursor.place is None or self.failing:
            return 0
        if self.topic.orderly and self.runs and not all(run.finished for run in self.runs):
            return 0
        if sum(not run.begun for run in self.runs) >= PENDING_MAX:
            return 0
        owed = cursor.place.offset - self.settle().offset
        return min(listener.run_size, self._span - owed)

    def _read(self, most: int) -> None:
        """Make runs of the next messages that a listener wants."""
        cursor = self.cursor
        found = False
        while not found:
            start = cursor.place
            messages = self._taker.take(cursor, most)
            behind = cursor.place
            assert start is not None and behind is not None
            if messages is None:
                self._passed(behind)
                return
            for listener, part in self.topic.route(messages):
                found = True
                if self.runs:
                    start = Place(part[0].offset, part[0].origin.epoch)
                    self.runs[-1].behind = start
                self.runs.append(Run(self, listener, part, start, behind))
            self._passed(behind)

    def _passed(self, place: Place) -> None:
        """Nothing between the last run and here is for us."""
        if self.runs:
            self.runs[-1].behind = place
        else:
            self.place = place
