"""What both faces of the pull consumer share: poll, seek and commit, as flows."""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.client.arguments import check_number, check_timeout
from cometmq.client.assignment import Assignment, TopicQueue
from cometmq.client.background_commits import BackgroundCommits
from cometmq.client.cursor import Cursor, Place
from cometmq.client.engine import Engine
from cometmq.client.fetcher import Fetcher, FetchOptions
from cometmq.client.flows import Waitable
from cometmq.client.offsets import (
    Start,
    ask_commit,
    commit_failures,
    committed_offsets,
)
from cometmq.client.placing import move_to, refs
from cometmq.client.taking import FAREWELL_S, Taker, UnreadablePolicy
from cometmq.client.validation import check_name
from cometmq.errors import CometError, Expired, Refused, Retryable, Truncated
from cometmq.message import ReceivedMessage
from cometmq.protocol import CommitPart

Taken = dict[Cursor, tuple[Place, int]]
"""Where a poll found what it took of each queue, and how often that had been sought."""


class Reader:
    """See the module. Everything needs the driver's lock."""

    def __init__(
        self,
        engine: Engine,
        options: FetchOptions,
        *,
        start: Start,
        unreadable: UnreadablePolicy,
        timeout_s: float,
    ) -> None:
        if options.group:
            check_name("group", options.group)
        if options.on_expired not in ("earliest", "latest", "stop"):
            raise Refused(
                f"on_expired={options.on_expired!r}: choose 'earliest', 'latest' or 'stop'"
            )
        check_number("timeout", timeout_s, above=0)
        self._passed = (Truncated,) if options.on_expired == "stop" else (Truncated, Expired)
        self.engine = engine
        self._group = options.group
        self._timeout_s = timeout_s
        self._inflated_max = options.read_ahead_bytes
        self._taker = Taker(engine, unreadable, timeout_s)
        self._fetcher = Fetcher(engine, options, self._arrived)
        self.assignment = Assignment(engine, self._fetcher, options.group, start, timeout_s)
        self._background = BackgroundCommits(
            engine, self._store, f"group {options.group}: commit failed"
        )
        self._waiting: set[Waitable[None]] = set()
        """Of polls that found nothing."""
        self._turn = 0

    # --- poll ---------------------------------------------------------------------------------

    async def poll(
        self, max_messages: int, timeout_s: float, taken: Taken | None = None
    ) -> list[ReceivedMessage]:
        """See `PullConsumer.poll`. `taken` is told where it found what it took."""
        # Looked at closely only when it is not what it nearly always is: this is every poll.
        if type(max_messages) is not int or max_messages < 1:
            check_number("max_messages", max_messages, least=1, whole=True, error=Refused)
        if type(timeout_s) is not float or timeout_s != timeout_s:
            check_timeout(timeout_s)
        if taken is None:
            taken = {}
        deadline_s = self.engine.now_s() + timeout_s
        await self.assignment.ready()
        while True:
            self._raise_new(taken)
            messages = self._collect(max_messages, taken)
            self._fetcher.pump()
            if messages:
                return messages
            self._raise_new(taken)
            news: Waitable[None] = Waitable()
            self._waiting.add(news)
            try:
                arrived = await self.engine.until(news, deadline_s)
            finally:
                self._waiting.discard(news)
            if not arrived:
                self._raise_old()
                return []

    def put_back(self, taken: Taken) -> None:
        """Nobody got what a poll took: it comes again with the next one, unless somebody has sought
        another place meanwhile."""
        for cursor, (place, seeks) in taken.items():
            if cursor.seeks == seeks:
                cursor.move(place.offset, place.epoch)

    @property
    def unfinished(self) -> bool:
        """Whether an end now would keep the broker from hearing of damage, or of a commit."""
        return self._taker.reporting or self._background.unfinished

    async def farewell(self) -> None:
        """Wait a moment until it has heard."""
        deadline_s = self.engine.now_s() + FAREWELL_S
        self.send_commits()
        await self._taker.farewell(deadline_s)
        await self._background.farewell(deadline_s)

    def _arrived(self) -> None:
        for news in list(self._waiting):
            news.resolve(None)

    def _collect(self, most: int, taken: Taken) -> list[ReceivedMessage]:
        """Messages of the queues in turn, each queue's in its order; the next call begins behind
        the queue that came last.

        Fewer than there are, when decompressing them would take more memory than reading ahead
        may: what was read ahead is bounded as it came.
        """
        cursors = list(self.assignment.cursors.values())
        collected: list[ReceivedMessage] = []
        inflated_bytes = served = 0
        for step in range(len(cursors)):
            cursor = cursors[(self._turn + step) % len(cursors)]
            while len(collected) < most and not cursor.empty:
                if collected and inflated_bytes >= self._inflated_max:
                    break
                before, place = cursor.inflated_bytes, cursor.place
                known = cursor in taken
                if not known and place is not None:
                    taken[cursor] = place, cursor.seeks
                try:
                    messages = self._taker.take(cursor, most - len(collected))
                except Exception:
                    # Nothing was taken of this queue, so it comes again with a later poll.
                    if collected:
                        break
                    raise
                inflated_bytes += cursor.inflated_bytes - before
                if messages is None:
                    if not known:
                        taken.pop(cursor, None)
                    break
                collected += messages
                served = step
        if collected:
            self._turn = (self._turn + served + 1) % len(cursors)
        return collected

    def _raise_new(self, taken: Taken) -> None:
        """Raise what no poll has raised yet, once everything before it was handed out."""
        error, self._fetcher.error = self._fetcher.error, None
        if error is not None:
            raise error
        for cursor in self.assignment.cursors.values():
            if cursor.error is not None and not cursor.raised and cursor.empty:
                cursor.raised = True
                error = cursor.error
                if isinstance(error, self._passed):
                    # Nothing is left at the old place: go on from where the broker says.
                    assert cursor.place is not None, "it was fetched from a place"
                    taken[cursor] = cursor.place, cursor.seeks
                    cursor.move(error.next_offset, cursor.fetch.epoch)
                    self._fetcher.pump()
                raise error.with_traceback(None)

    def _raise_old(self) -> None:
        """A queue that stands still must not look like one that is empty."""
        for cursor in self.assignment.cursors.values():
            if cursor.error is not None and cursor.raised:
                raise cursor.error.with_traceback(None)

    # --- seek and position --------------------------------------------------------------------

    async def seek(self, offset: int, queue: int | None, topic: str | None) -> None:
        """Go on at an offset that a person chose."""
        check_number("offset", offset, least=0, whole=True, error=Refused)
        self.send_commits()
        await self.assignment.ready()
        cursor = self.assignment.one(queue, topic)
        await self.assignment.renew([cursor], self._deadline_s())
        cursor.move(offset, 0)
        cursor.seeks += 1
        cursor.dirty = True
        self._fetcher.hurry()

    async def seek_to(self, start: Start, queue: int | None, topic: str | None) -> None:
        """Go on at the earliest, the latest, a time, in one queue or in all."""
        self.send_commits()
        await self.assignment.ready()
        cursors = self.assignment.some(queue, topic)
        deadline_s = self._deadline_s()
        await self.assignment.renew(cursors, deadline_s)
        await move_to(self.engine, cursors, start, deadline_s)
        for cursor in cursors:
            cursor.seeks += 1
            cursor.dirty = True
        self._fetcher.hurry()

    async def position(self, queue: int | None, topic: str | None) -> int:
        """The offset of the next message of a queue that a poll will return."""
        await self.assignment.ready()
        cursor = self.assignment.one(queue, topic)
        if cursor.place is None:
            where = f"queue {cursor.queue} of {cursor.topic}"
            raise Retryable(f"{where} is new, and it is being asked where it begins: ask again")
        return cursor.place.offset

    # --- commit -------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Store the places of all queues that moved since the last commit.

        Raises Refused, Retryable, OutcomeUnknown; then the next commit covers them again.
        """
        asked = dict.fromkeys([*self._background.take(), *self._ask()])
        await self._store(list(asked))

    def commit_soon(self) -> None:
        """The same in the background; a failure is logged, the next commit covers it. Raises
        Refused."""
        self._background.ask(self._ask())

    def send_commits(self) -> None:
        """What was to be committed in the background goes now, before what follows."""
        self._background.hurry()

    def _ask(self) -> list[Cursor]:
        """The queues that moved since the last commit; their places are to be committed now. Raises
        Refused."""
        self._check_group()
        dirty = [cursor for cursor in self.assignment.cursors.values() if cursor.dirty]
        for cursor in dirty:
            assert cursor.place is not None  # only what was handed out or sought is worth a commit
            cursor.asked = cursor.place
            cursor.dirty = False
        return dirty

    async def _store(self, cursors: Sequence[Cursor]) -> None:
        """Commit what these were asked for. What fails is dirty again; raises its first error."""
        if not cursors:
            return
        failed: dict[int, CometError] = {}
        try:
            parts, reply = await ask_commit(
                self.engine,
                self._group,
                lambda: [_commit_part(cursor) for cursor in cursors],
                self._deadline_s(),
            )
            failed = commit_failures(reply, parts)
        except CometError as error:
            failed = dict.fromkeys(range(len(cursors)), error)
        except BaseException:  # cancelled, or interrupted
            for cursor in cursors:
                cursor.dirty = True
            raise
        for place in failed:
            cursors[place].dirty = True
        if failed:
            raise next(iter(failed.values()))

    async def committed(self) -> dict[TopicQueue, int | None]:
        """What the group has committed of each queue; None where nothing."""
        self._check_group()
        self.send_commits()
        await self.assignment.ready()
        cursors = list(self.assignment.cursors.values())
        deadline_s = self._deadline_s()
        found = await committed_offsets(self.engine, self._group, refs(cursors), deadline_s)
        return {
            (cursor.topic, cursor.queue): None if part is None else part.offset
            for cursor, part in zip(cursors, found, strict=True)
        }

    def _check_group(self) -> None:
        if not self._group:
            raise Refused("this consumer has no group to commit for; make it with group=...")

    def _deadline_s(self) -> float:
        return self.engine.now_s() + self._timeout_s


def _commit_part(cursor: Cursor) -> CommitPart:
    place = cursor.asked
    return CommitPart(cursor.topic, cursor.queue, place.offset, place.epoch, cursor.incarnation)
