"""Who is connected: hello, heartbeats, and the end of a session.

Not every transport can tell that a peer has left, so a session ends when nothing was heard for
its timeout. The time that this broker's own loop stood still is not counted against anybody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from cometmq.broker.names import shown
from cometmq.broker.refusals import Rejected, wrong_answer
from cometmq.environment import Clock
from cometmq.interfaces import Limits, Peer, Refuse
from cometmq.protocol import PROTOCOL_MAX, PROTOCOL_MIN, RECONNECT_MS, Hello, Status

CLIENT_ID_MAX = 255

logger = logging.getLogger(__name__)

Authenticate = Callable[[str, dict[str, str], str], str | Refuse | None]


class Total:
    """What the requests of all sessions take together, also of those that have ended."""

    __slots__ = ("unanswered_bytes",)

    def __init__(self) -> None:
        self.unanswered_bytes = 0


class Session:
    """One client's connection, from its hello to its end. What hooks see as `SessionInfo`."""

    __slots__ = (
        "client_epoch",
        "client_id",
        "garbage",
        "id",
        "on_end",
        "open",
        "peer",
        "peer_name",
        "principal",
        "returns_s",
        "seen_s",
        "total",
        "unanswered_bytes",
    )

    def __init__(
        self, number: int, hello: Hello, peer: Peer, principal: str | None, total: Total
    ) -> None:
        self.id = number
        self.client_id = hello.client_id
        self.client_epoch = hello.client_epoch
        self.principal = principal
        self.peer = peer
        self.peer_name = peer.name
        self.seen_s = 0.0
        """When it was last heard, on the clock that stands still while the loop does."""
        self.unanswered_bytes = 0
        self.total = total
        self.garbage = 0
        """How many things it sent that are no messages."""
        self.open = True
        self.returns_s: Callable[[float], float] = lambda timeout_s: 0.0
        """At its end: until when what it holds waits for its client, of which a holder believes
        that it may be silent for `timeout_s`; on the clock of `Sessions.now_s`, 0: not at all."""
        self.on_end: dict[Any, Callable[[], None]] = {}
        """What has to be done when it ends, by whom it is for."""


class Stranger:
    """A peer that speaks without a session: since when, and as in a session."""

    __slots__ = ("garbage", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.garbage = 0


class Sessions:
    """All sessions, by peer and by client id; of one client id the newest epoch wins."""

    def __init__(
        self,
        clock: Clock,
        limits: Limits,
        timeout_ms: int,
        authenticate: tuple[Authenticate, ...] = (),
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._timeout_s = timeout_ms / 1000
        self._authenticate = authenticate
        self._by_peer: dict[Peer, Session] = {}
        self.of: Callable[[Peer], Session | None] = self._by_peer.get
        """The session of this peer, if it said hello."""
        self._by_client: dict[str, Session] = {}
        self._strangers: dict[Peer, Stranger] = {}
        self.total = Total()
        self._given = 0
        self._stalled_s = 0.0
        self.observe: Callable[[], None] = lambda: None
        """Called before anybody is judged by time, to give the stall back that just ended: what
        peers did meanwhile is heard before any timer."""

    def __len__(self) -> int:
        return len(self._by_peer)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_peer.values())

    def now_s(self) -> float:
        """Monotonic time without the stalls of our own loop."""
        return self._clock.monotonic_s() - self._stalled_s

    def stalled(self, seconds: float) -> None:
        """The loop stood still: give every session that time back."""
        self._stalled_s += seconds

    def stranger(self, peer: Peer) -> Stranger:
        """A peer speaks that has no session: it has one session timeout to say a good hello."""
        stranger = self._strangers.get(peer)
        if stranger is None:
            stranger = self._strangers[peer] = Stranger(self.now_s())
        return stranger

    def lost(self, peer: Peer) -> None:
        """The connection of this peer is gone."""
        self._strangers.pop(peer, None)
        session = self._by_peer.get(peer)
        if session is not None:
            self.observe()
            until_s = self.now_s() + RECONNECT_MS / 1000
            # Not of the session itself: in a cycle with it what its peer holds would be kept.
            seen_s = session.seen_s
            session.returns_s = lambda timeout_s: min(until_s, seen_s + timeout_s)
            self.end(session, "its connection was lost")

    def hello(self, peer: Peer, hello: Hello) -> Session:
        """Open a session, or find the one that this peer has. Raises Rejected."""
        if hello.protocol_max < PROTOCOL_MIN or hello.protocol_min > PROTOCOL_MAX:
            raise Rejected(
                Status.VERSION_MISMATCH,
                f"this broker speaks protocol {PROTOCOL_MIN} to {PROTOCOL_MAX}, the client "
                f"{hello.protocol_min} to {hello.protocol_max}: upgrade the older one of the two",
            )
        if not (1 <= len(hello.client_id) <= CLIENT_ID_MAX and hello.client_id.isprintable()):
            raise Rejected(
                Status.BAD_NAME,
                f"{shown(hello.client_id)} is no client id: use 1 to {CLIENT_ID_MAX} printable "
                "characters",
            )
        principal = self._principal(peer, hello)
        own = self._by_peer.get(peer)
        if own is not None:
            if own.client_id == hello.client_id:
                self._goes_on(own)
            self.end_politely(own, "said hello again")
        self._replace_older(hello, principal)
        if len(self._by_peer) >= self._limits.connections:
            raise Rejected(
                Status.LIMIT_REACHED,
                f"{len(self._by_peer)} clients are connected, the most that this broker allows: "
                "close some, or raise limits.connections",
            )
        self._given += 1
        session = Session(self._given, hello, peer, principal, self.total)
        session.seen_s = self.now_s()
        before = self._strangers.pop(peer, None)
        session.garbage = 0 if before is None else before.garbage
        self._by_peer[peer] = session
        self._by_client[session.client_id] = session
        return session

    def end(self, session: Session, reason: str) -> None:
        """Forget a session and undo what it holds."""
        if not session.open:
            return
        session.open = False
        logger.debug("session %d of %s ended: %s", session.id, session.client_id, reason)
        self._by_peer.pop(session.peer, None)
        if self._by_client.get(session.client_id) is session:
            del self._by_client[session.client_id]
        for undo in list(session.on_end.values()):
            undo()
        session.on_end.clear()

    def end_politely(self, session: Session, reason: str) -> None:
        """The same, but its peer stays, and is who it was."""
        self.end(session, reason)
        self.stranger(session.peer).garbage = session.garbage

    def sweep(self) -> int:
        """End sessions that were silent for too long and drop their peers; how many. Drop the
        strangers too that took too long: they take up connections."""
        self.observe()
        oldest_s = self.now_s() - self._timeout_s
        silent = [session for session in self._by_peer.values() if session.seen_s < oldest_s]
        for session in silent:
            session.returns_s = partial(_after_silence, session.seen_s)
            self.end(session, "silent for longer than the session timeout")
            session.peer.close()
        for peer in [peer for peer, one in self._strangers.items() if one.since_s < oldest_s]:
            del self._strangers[peer]
            peer.close()
        return len(silent)

    def _principal(self, peer: Peer, hello: Hello) -> str | None:
        if not self._authenticate:
            return None
        for ask in self._authenticate:
            answer = ask(hello.client_id, hello.credentials, peer.name)
            if isinstance(answer, Refuse):
                if not isinstance(answer.reason, str):
                    raise wrong_answer(ask, answer, "Refuse with a reason")
                raise Rejected(Status.NOT_AUTHENTICATED, answer.reason)
            if answer is not None:
                if not isinstance(answer, str):
                    raise wrong_answer(ask, answer, "a principal (str), Refuse or None")
                return answer
        raise Rejected(
            Status.NOT_AUTHENTICATED,
            f"no plugin knows the credentials of client {hello.client_id!r}: "
            "give valid ones in the hello",
        )

    def _replace_older(self, hello: Hello, principal: str | None) -> None:
        """A client's new connection ends its old one, which may be long dead."""
        old = self._by_client.get(hello.client_id)
        if old is None:
            return
        if old.principal != principal:
            raise Rejected(
                Status.NOT_AUTHORIZED,
                f"client id {hello.client_id!r} is in use by somebody else: choose another one",
            )
        if hello.client_epoch < old.client_epoch:
            raise Rejected(
                Status.FENCED,
                f"client {hello.client_id!r} has a newer connection (epoch {old.client_epoch}, "
                f"this one has {hello.client_epoch}): close this one",
            )
        self._goes_on(old)
        self.end(old, "replaced by a newer connection of the same client")
        old.peer.close()

    def _goes_on(self, session: Session) -> None:
        """Its client has a newer one: it gets a whole timeout to take over what it holds."""
        now_s = self.now_s()
        session.returns_s = lambda timeout_s: now_s + timeout_s


def _after_silence(seen_s: float, timeout_s: float) -> float:
    """A holder may be more patient than the session was."""
    return seen_s + timeout_s
