"""Reading a log as a consumer does that checks every byte and forgets nothing it was told."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cometmq.batch import BatchError, decode_messages, parse, verify_producer
from cometmq.batch.layout import STAMP, STAMP_AT
from cometmq.log import Log
from cometmq.message import NOWHERE, ReceivedMessage
from cometmq.protocol import Status


class Seen:
    """What the queues of a log give a consumer that checks what it gets."""

    def __init__(self) -> None:
        self.bodies: dict[tuple[int, int], bytes] = {}
        """By (queue, offset)."""
        self.damaged: set[tuple[int, int]] = set()
        self.details: list[str] = []
        self.ends: list[int] = []


async def consume(log: Log, queues: Sequence[int] = (0, 1)) -> Seen:
    """Read these queues of incarnation 1 to their end, past whatever is told to be damaged."""
    seen = Seen()
    for queue in queues:
        offset = await log.when_loaded(partial(log.min_offset, 1, queue))
        seen.ends.append(log.next_offset(1, queue))
        for _ in range(100):
            result = await log.reader.read(1, queue, offset, 1 << 20, log.readable)
            if result.status == Status.DAMAGED:
                skip(seen, queue, offset, result.next_offset, result.detail)
                offset = result.next_offset
            elif not result.batches:
                break
            for number, piece in enumerate(result.batches):
                behind = result.batches[number + 1 :]
                offset = take(seen, queue, offset, piece, behind, result.next_offset)
    return seen


def take(
    seen: Seen,
    queue: int,
    offset: int,
    piece: memoryview,
    behind: Sequence[memoryview],
    end: int,
) -> int:
    """As a consumer does: prove the bytes, or tell them as damaged. Returns the next offset."""
    try:
        batch = parse(piece)
        verify_producer(batch)
    except BatchError as error:
        # The header is proven, so the next batch's base offset is where it goes on.
        following = STAMP.unpack_from(behind[0], STAMP_AT)[3] if behind else end
        skip(seen, queue, offset, following, f"position told by the header: {error}")
        return int(following)
    for message in decode_messages(batch, NOWHERE, first_offset=offset):
        assert isinstance(message, ReceivedMessage) and message.offset == offset
        seen.bodies[queue, offset] = message.body
        offset += 1
    return offset


def skip(seen: Seen, queue: int, offset: int, end: int, detail: str) -> None:
    seen.damaged |= {(queue, gone) for gone in range(offset, end)}
    seen.details.append(detail)
