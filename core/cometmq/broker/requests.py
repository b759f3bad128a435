"""A request on its way through the broker: answered once, or dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from cometmq import protocol
from cometmq.broker.sessions import Session
from cometmq.environment import Buffer
from cometmq.interfaces import Peer
from cometmq.protocol import Failure, Status

Body = list[memoryview]
"""The frames of a message behind its header."""
REQUEST_BYTES = 1 << 10
"""About what a request that waits takes, besides what its client sent."""

_OK = int(Status.OK)


class Request(msgspec.Struct, eq=False):
    """One message of a client that wants an answer. It is answered once, or dropped.

    Until then its bytes count in `session.unanswered_bytes` and `session.total`, to which whoever
    makes it adds them.
    """

    session: Session
    peer: Peer
    id: int
    operation: int
    size_bytes: int
    silent: bool = False
    """True: the sender wants no answer, whatever happens."""

    def answer(self, header: msgspec.Struct, body: Sequence[Buffer] = ()) -> None:
        """Answer OK with this header; the body's batches go out as they lie."""
        session, size_bytes = self.session, self.size_bytes
        session.unanswered_bytes -= size_bytes
        session.total.unanswered_bytes -= size_bytes
        self.size_bytes = 0
        if not self.silent:
            self.peer.send(protocol.pack(self.id, _OK, header, body))

    def fail(self, status: int, detail: str, retry_after_ms: int = 0) -> None:
        """Answer that it did not work."""
        self.drop()
        if not self.silent:
            self.peer.send(protocol.pack(self.id, status, Failure(detail, retry_after_ms)))

    def when_gone(self, waiter: object, forget: Callable[[], None]) -> None:
        """`waiter` keeps this request. Should whoever asked be gone before `waiter` is out of the
        session's `on_end`, `forget` is called and nobody is answered."""

        def left() -> None:
            forget()
            self.drop()

        self.session.on_end[waiter] = left

    def drop(self) -> None:
        """Give no answer, now or later: the sender wants none, or it can't be known."""
        self.session.unanswered_bytes -= self.size_bytes
        self.session.total.unanswered_bytes -= self.size_bytes
        self.size_bytes = 0
