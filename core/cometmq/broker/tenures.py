"""Which claims are alive. The log says who holds a queue, this says whether they still live.

A claim lives as long as the session it came in is heard, and ends when that ends or falls silent.
Claims without a session, those that a start found in the log and those of a client that connects
anew, wait for their member for as long as it may be silent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count

from cometmq.broker.claims import KIND, ClaimChange, ClaimKey, Claims, Holder
from cometmq.broker.park import Park
from cometmq.broker.sessions import Session, Sessions
from cometmq.errors import LogError
from cometmq.heap import Heap
from cometmq.log import Appended, Log
from cometmq.log.records import RECORDS_MAX

RETRY_S = 5.0
"""When to tell a log again that claims have ended, if it took nothing."""

logger = logging.getLogger(__name__)


class Tenure:
    """The living side of a claim."""

    __slots__ = ("holder", "over", "session", "until_s")

    def __init__(self, holder: Holder, session: Session | None, until_s: float) -> None:
        self.holder = holder
        self.session = session
        self.until_s = until_s
        """Without a session: how long it waits for one."""
        self.over = False
        """True: it has ended, though the log could not be told yet."""


class Tenures:
    """Decides when claims end, and the only place that appends claims."""

    def __init__(
        self,
        log: Log,
        claims: Claims,
        sessions: Sessions,
        park: Park,
        before_append: Callable[[], None],
    ) -> None:
        """`before_append` appends the commits that were accepted so far, so that what voids a claim
        is behind them."""
        self._log = log
        self.claims = claims
        self._sessions = sessions
        self._park = park
        self._before_append = before_append
        self._tenures: dict[ClaimKey, Tenure] = {}
        self._stopped = False
        self._not_before_s = 0.0
        self._by_session: dict[Session, set[ClaimKey]] = {}
        self._least_s: dict[Session, float] = {}
        """No claim of a session may be silent for less: as long as it is heard, none is looked at.
        There may be a hundred thousand, and a look comes five times a second."""
        self._waiting: Heap[tuple[float, int, ClaimKey, Tenure]] = Heap()
        """A heap of those without a session, by when they end; some have gone since."""
        self._count = count()
        self._ending: dict[ClaimKey, None] = {}
        """Claims that have ended, as far as is known, and of which the log is to be told."""
        self._resets = -1
        """How often the claims had been forgotten and read again when all were looked at last."""
        self.on_change: Callable[[set[str]], None] = lambda groups: None
        """Told which groups' claims have changed."""

    def adopt(self) -> None:
        """Take over what the log says, at a start and after a cut: claims that are news came back
        with it."""
        self._resets = self.claims.resets
        for key, holder in self.claims.items():
            self._tenure(key, holder)
        for key in [key for key in self._tenures if self.claims.get(key) is None]:
            self._drop(key)

    def stop(self) -> None:
        """The broker is about to stop: claims stay in the log, for their members to come back."""
        self._stopped = True

    def living(self, key: ClaimKey) -> Holder | None:
        """The claim on a queue, if its member may still come back to it."""
        holder = self.claims.get(key)
        if holder is None or self._tenure(key, holder).over:
            return None
        return holder

    def held(self, group: str, member: str = "") -> list[ClaimKey]:
        """The living claims of a group, or of one member of it."""
        return [key for key in self.claims.held(group, member) if self.living(key) is not None]

    def retry_after_ms(self, key: ClaimKey, otherwise_ms: int) -> int:
        """When a claim of somebody else may be over: known for one that waits for its member."""
        tenure = self._tenures.get(key)
        if tenure is None or tenure.session is not None:
            return otherwise_ms
        return max(int((tenure.until_s - self._sessions.now_s()) * 1000), 1)

    def append(self, changes: Sequence[ClaimChange], session: Session | None = None) -> Appended:
        """Append one batch of changes; what they claim lives with `session`. Raises LogError."""
        self._before_append()
        appended = self._log.append_control(KIND, changes)
        for change in changes:
            if change.member is None:
                continue
            key = change.group, change.incarnation, change.queue
            self._drop(key)
            holder = self.claims.get(key)
            if holder is not None and session is not None:
                self._bind(key, Tenure(holder, session, 0.0), session)
            # Whoever fetches with the token before this one has to hear of it.
            self._park.fire((change.incarnation, change.queue))
        self.on_change({change.group for change in changes})
        return appended

    def void(self, keys: Iterable[ClaimKey]) -> None:
        """End claims now. A log that takes nothing more doesn't keep them alive: the next claim
        on the queue voids them as well."""
        if self._stopped:
            return
        ending = [key for key in keys if self.claims.get(key) is not None]
        for key in ending:
            self._tenure(key, self.claims.get(key)).over = True
        for at in range(0, len(ending), RECORDS_MAX):
            changes = [ClaimChange(*key, member="") for key in ending[at : at + RECORDS_MAX]]
            try:
                self.append(changes)
            except LogError as error:
                logger.warning("claims ended, but the log was not told: %s", error)
                self._ending.update(dict.fromkeys(ending[at:]))
                self._not_before_s = self._sessions.now_s() + RETRY_S
                self.on_change({group for group, _, _ in ending})
                return
        if ending:
            self._log.write()

    def tick(self) -> None:
        """End the claims whose members were silent for too long."""
        now_s = self._sessions.now_s()
        # There are more than claims if topics or groups were deleted.
        if self._resets != self.claims.resets or len(self._tenures) != len(self.claims):
            self.adopt()
        for session, keys in self._by_session.items():
            if keys and now_s - session.seen_s > self._least_s[session]:
                self._look_at(session, keys, now_s)
        waiting = self._waiting
        while waiting and waiting[0][0] <= now_s:
            _, _, key, tenure = heappop(waiting)
            if self._tenures.get(key) is tenure:
                self._ending[key] = None
        if self._ending and now_s >= self._not_before_s:
            ending, self._ending = self._ending, {}
            self.void([key for key in ending if self._has_ended(key, now_s)])

    def _look_at(self, session: Session, keys: set[ClaimKey], now_s: float) -> None:
        """Note which claims of a session that is silent have ended."""
        least_s = float("inf")
        for key in keys:
            tenure = self._tenures[key]
            if self._lapsed(tenure, now_s):
                self._ending[key] = None
            else:
                least_s = min(least_s, tenure.holder.timeout_ms / 1000)
        self._least_s[session] = least_s

    def _has_ended(self, key: ClaimKey, now_s: float) -> bool:
        """Whether a claim that was found silent still is: while the log takes nothing, its session
        may be heard again."""
        tenure = self._tenures.get(key)
        if tenure is None:
            return False
        if tenure.over or self._lapsed(tenure, now_s):
            return True
        if tenure.session is not None:
            self._expect(tenure.session, tenure)
        return False

    def _lapsed(self, tenure: Tenure, now_s: float) -> bool:
        if tenure.session is None:
            return now_s >= tenure.until_s
        return now_s - tenure.session.seen_s > tenure.holder.timeout_ms / 1000

    def _tenure(self, key: ClaimKey, holder: Holder | None) -> Tenure:
        """What is known of a claim in the log; one that is news waits for its member."""
        tenure = self._tenures.get(key)
        if tenure is None or tenure.holder != holder:
            assert holder is not None, "only claims that are in the log are asked for"
            self._drop(key)
            until_s = self._sessions.now_s() + holder.timeout_ms / 1000
            tenure = self._wait(key, holder, until_s)
        return tenure

    def _wait(self, key: ClaimKey, holder: Holder, until_s: float) -> Tenure:
        """Let a claim wait for its member."""
        tenure = self._tenures[key] = Tenure(holder, None, until_s)
        waiting = self._waiting
        heappush(waiting, (until_s, next(self._count), key, tenure))
        if len(waiting) > waiting.most:
            waiting.weed(lambda each: self._tenures.get(each[2]) is each[3])
        return tenure

    def _expect(self, session: Session, tenure: Tenure) -> None:
        """A session has to be heard as often as this claim of it wants."""
        least_s = self._least_s.get(session, float("inf"))
        self._least_s[session] = min(least_s, tenure.holder.timeout_ms / 1000)

    def _bind(self, key: ClaimKey, tenure: Tenure, session: Session) -> None:
        self._tenures[key] = tenure
        keys = self._by_session.get(session)
        if keys is None:
            keys = self._by_session[session] = set()
            session.on_end[self] = lambda: self._ended(session)
        keys.add(key)
        self._expect(session, tenure)

    def _drop(self, key: ClaimKey) -> None:
        self._ending.pop(key, None)
        tenure = self._tenures.pop(key, None)
        if tenure is not None and tenure.session is not None:
            keys = self._by_session.get(tenure.session, set())
            keys.discard(key)

    def _ended(self, session: Session) -> None:
        keys = self._by_session.pop(session, set())
        self._least_s.pop(session, None)
        now_s = self._sessions.now_s()
        over: list[ClaimKey] = []
        for key in keys:
            holder = self._tenures[key].holder
            until_s = session.returns_s(holder.timeout_ms / 1000)
            self._wait(key, holder, until_s)
            if until_s <= now_s:
                over.append(key)
        self.void(over)
