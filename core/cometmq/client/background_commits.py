"""Commits that nobody waits for: those of a moment are one request, which goes with others.

Who polls a thousand times a second commits as often, and each commit would cost the broker a record
in its log and this client one more answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cometmq.client.cursor import Cursor
from cometmq.client.engine import Engine, Timer
from cometmq.client.flows import Flow, Task, log

EVERY_S = 0.005
"""At most so often one is sent."""
LATEST_S = 0.01
"""So long after the one before it is sent at the latest, if nobody commits again."""


class BackgroundCommits:
    """See the module. `store` commits the places that cursors were asked for. Everything needs the
    driver's lock."""

    def __init__(
        self, engine: Engine, store: Callable[[Sequence[Cursor]], Flow[None]], what: str
    ) -> None:
        """`what` begins the warning when one fails, the first of several in a row."""
        self._engine = engine
        self._store = store
        self._what = what
        self._asked: dict[Cursor, None] = {}
        self._sent_s = float("-inf")
        self._timer: Timer | None = None
        self._tasks: set[Task[None]] = set()
        self._told = False
        """The last one failed, or what is left at the end was told of."""

    @property
    def unfinished(self) -> bool:
        """Whether one is not sent, or not answered."""
        return bool(self._asked or self._tasks)

    def ask(self, cursors: Iterable[Cursor]) -> None:
        """Commit what these were asked for, soon."""
        self._asked.update(dict.fromkeys(cursors))
        if not self._asked:
            return
        if self._engine.now_s() - self._sent_s >= EVERY_S:
            self.hurry()
        elif self._timer is None:
            self._timer = self._engine.at(self._sent_s + LATEST_S, self.hurry)

    def take(self) -> list[Cursor]:
        """Those that wait to be sent: they are their taker's now."""
        asked, self._asked = list(self._asked), {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return asked

    def hurry(self) -> None:
        """Send what waits now."""
        asked = self.take()
        if not asked:
            return
        self._sent_s = self._engine.now_s()
        task = self._engine.spawn(self._store(asked))
        self._tasks.add(task)
        task.add_waiter(lambda: self._ended(task))

    async def farewell(self, deadline_s: float) -> None:
        """Send what waits, and wait for the answers."""
        self.hurry()
        for task in list(self._tasks):
            await self._engine.until(task, deadline_s)
        if self._tasks:
            self._told = True
            why = self._engine.connection.reason or "no answer in time"
            log.warning(
                "%s before the end (%s): what was read since the last commit that arrived may come "
                "again",
                self._what,
                why,
            )

    def _ended(self, task: Task[None]) -> None:
        self._tasks.discard(task)
        if task.error is None:
            self._told = False
        elif not self._told:
            self._told = True
            log.warning("%s: %s", self._what, task.error)
