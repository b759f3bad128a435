"""From the batches of a cursor to messages: what can't be read, and what came damaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from cometmq.client.calls import Call
from cometmq.client.cursor import Cursor, Decoded
from cometmq.client.engine import Engine
from cometmq.client.flows import log
from cometmq.errors import BatchError, Damaged, Refused, Unreadable
from cometmq.message import ReceivedMessage, UnreadableMessage
from cometmq.protocol import Empty, Operation, ReportDamage

FAREWELL_S = 1.0
"""So long the end of a consumer waits for the broker to have heard what was to be told."""

UnreadablePolicy = Literal["skip", "raise"] | Callable[[UnreadableMessage], object]


class Taker:
    """Takes messages from cursors, by one policy for those that can't be read."""

    def __init__(self, engine: Engine, unreadable: UnreadablePolicy, timeout_s: float) -> None:
        if not callable(unreadable) and unreadable not in ("skip", "raise"):
            raise Refused(f"unreadable={unreadable!r}: choose 'skip', 'raise' or a function")
        self._engine = engine
        self._unreadable = unreadable
        self._timeout_s = timeout_s
        self._reports: set[Call[Empty]] = set()

    @property
    def reporting(self) -> bool:
        """Whether the broker has not yet confirmed all the damage that it was told of."""
        return bool(self._reports)

    async def farewell(self, deadline_s: float) -> None:
        """Wait until it has: a close would take the reports back."""
        for report in list(self._reports):
            await self._engine.until(report, deadline_s)

    def take(self, cursor: Cursor, most: int) -> Sequence[ReceivedMessage] | None:
        """Some messages of one queue; None when there are none now."""
        if cursor.empty or cursor.place is None:
            return None
        try:
            messages = cursor.take(most, self._log_id())
        except BatchError as error:
            self._suspect(cursor, error)
            return None
        except Unreadable as error:
            cursor.stop(error)
            return None
        if not messages:
            return None
        if UnreadableMessage in set(map(type, messages)):
            return self._readable(cursor, messages)
        return messages  # type: ignore[return-value]  # no other type is among them

    def _readable(self, cursor: Cursor, messages: Decoded) -> list[ReceivedMessage] | None:
        """By the policy: those that can be read, up to the first that stops the reading."""
        readable: list[ReceivedMessage] = []
        for place, message in enumerate(messages):
            if isinstance(message, ReceivedMessage):
                readable.append(message)
            elif self._unreadable == "raise":
                cursor.put_back(messages, place)
                if not readable:
                    cursor.stop(_unreadable(message))
                    return None
                break
            elif callable(self._unreadable):
                self._engine.deferred.append(partial(self._unreadable, message))
            else:
                log.warning("skipped: %s", _unreadable(message))
        return readable

    def _suspect(self, cursor: Cursor, error: BatchError) -> None:
        """Bytes that are wrong: fetched once more, then it is damage."""
        assert cursor.place is not None
        offset, epoch = cursor.place.offset, cursor.place.epoch
        next_offset = max(cursor.first_behind_damage(), offset + 1)
        cursor.move(offset, epoch)
        if cursor.suspect != offset:
            cursor.suspect = offset
            return
        cursor.error = Damaged(
            f"offsets {offset} to {next_offset - 1} of queue {cursor.queue} of {cursor.topic} "
            f"came damaged twice ({error}); seek({next_offset}, {cursor.queue}) goes past them",
            topic=cursor.topic,
            queue=cursor.queue,
            next_offset=next_offset,
        )
        cursor.error.__cause__ = error
        report = ReportDamage(cursor.topic, cursor.queue, offset, str(error))
        deadline_s = self._engine.now_s() + self._timeout_s
        call = self._engine.call(Operation.REPORT_DAMAGE, report, Empty, deadline_s)
        self._reports.add(call)
        call.add_waiter(partial(self._reported, call))

    def _reported(self, call: Call[Empty]) -> None:
        self._reports.discard(call)
        if call.error is not None:
            log.warning("the damage could not be reported: %s", call.error)

    def _log_id(self) -> bytes:
        server = self._engine.connection.server
        return bytes.fromhex(server.log_id) if server is not None else b""


def _unreadable(message: UnreadableMessage) -> Unreadable:
    return Unreadable(
        f"offset {message.offset} of queue {message.queue} of {message.topic}, in the batch at "
        f"position {message.position}, can't be decoded: {message.reason}",
        topic=message.topic,
        queue=message.queue,
        next_offset=message.offset + 1,
    )
