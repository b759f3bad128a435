"""One request, kept until it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from cometmq.client.flows import Waitable
from cometmq.client.outcomes import CHANGING
from cometmq.environment import Buffer
from cometmq.protocol import Operation, pack

S = TypeVar("S", bound=msgspec.Struct)


class Call(Waitable[S]):
    """A request and, once done, its reply's header (the result) and `body`."""

    __slots__ = (
        "body",
        "deadline_s",
        "frames",
        "id",
        "maybe_done",
        "one_way",
        "operation",
        "repeat",
        "reply_type",
        "sent",
        "size_bytes",
    )

    def __init__(
        self,
        request_id: int,
        operation: int,
        header: msgspec.Struct,
        body: Sequence[Buffer],
        reply_type: type[S],
        deadline_s: float,
    ) -> None:
        super().__init__()
        self.id = request_id
        self.operation = operation
        self.frames = pack(request_id, operation, header, body)
        self.size_bytes = sum(map(len, self.frames))
        self.reply_type = reply_type
        self.deadline_s = deadline_s
        self.body: list[memoryview] = []
        self.repeat = True
        """Whether the connection may send it again after it broke."""
        self.one_way = False
        """Done as soon as it is handed to the transport."""
        self.sent = False
        """Handed to the transport of the connection that is up now."""
        self.maybe_done = False
        """Handed to one that broke before the answer came."""

    @property
    def name(self) -> str:
        """What it asks for, for people."""
        known = self.operation in Operation.__members__.values()
        name = Operation(self.operation).name if known else f"operation {self.operation}"
        return name.lower().replace("_", " ")

    @property
    def changing(self) -> bool:
        """Whether it leaves something in the log."""
        return self.operation in CHANGING
