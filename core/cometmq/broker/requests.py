"""A request on its way through the broker: answered once, or dropped."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cometmq import protocol
from cometmq.broker.sessions import Session
from cometmq.environment import Buffer
from cometmq.interfaces import Peer
from cometmq.protocol import Failure, Status


class Request:
    """One message of a client that wants an answer. It is answered once, or dropped."""

    __slots__ = ("id", "operation", "peer", "session", "silent", "size_bytes")

    def __init__(
        self, session: Session, peer: Peer, request_id: int, operation: int, size_bytes: int
    ) -> None:
        self.session = session
        self.peer = peer
        self.id = request_id
        self.operation = operation
        self.size_bytes = size_bytes
        self.silent = False
        """True: the sender wants no answer, whatever happens."""
        session.unanswered_bytes += size_bytes

    def answer(self, header: msgspec.Struct, body: Sequence[Buffer] = ()) -> None:
        """Answer OK with this header; the body's batches go out as they lie."""
        self._release()
        if not self.silent:
            self.peer.send(protocol.pack(self.id, Status.OK, header, body))

    def fail(self, status: int, detail: str, retry_after_ms: int = 0) -> None:
        """Answer that it did not work."""
        self._release()
        if not self.silent:
            self.peer.send(protocol.pack(self.id, status, Failure(detail, retry_after_ms)))

    def drop(self) -> None:
        """Give no answer, now or later: the sender wants none, or it can't be known."""
        self._release()

    def _release(self) -> None:
        self.session.unanswered_bytes -= self.size_bytes
        self.size_bytes = 0
