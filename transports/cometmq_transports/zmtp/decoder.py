"""From the bytes of one connection to its messages.

Whoever has the socket asks `buffers` where the next bytes belong and tells `came` how many came, or
lets `receive` and `received` do all of it while nothing is held.
Small frames come through a buffer that all connections share and are copied out of it. The rest
of a large one goes straight into a buffer of exactly its size, which is then handed up, and what
follows it into the shared one by the same call.

Every bound is held as soon as a frame's header is there: nothing is kept of what exceeds one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from cometmq import native
from cometmq.environment import Buffer
from cometmq.interfaces import Limits
from cometmq.native import Received
from cometmq_transports.zmtp.wire import (
    BROKER,
    COMMAND,
    COMMAND_BYTES_MAX,
    FLAGS_MAX,
    GREETING_BYTES,
    LONG,
    LONG_HEADER,
    MORE,
    Side,
    answer,
    greeting_fault,
    ready_fault,
)

DIRECT_FROM_BYTES = 8 << 10
"""Frames from here on get a buffer of their own, unless they came whole at once."""
FIRST_BYTES = 8 << 10
"""So much of a large frame has to be there before it gets its buffer, or half of it: a header and
a few bytes are no reason to set a megabyte aside, and to wait until it is zeroed."""
SCRATCH_BYTES = 32 << 10
"""A good size for the shared buffer; at least twice DIRECT_FROM_BYTES."""

Message = Sequence[Buffer]
_NOTHING = memoryview(b"")
_receive = native.receive
_UNTOUCHED = 0xFF
"""No frame begins like that."""


class Decoder:
    """What one connection said so far and was not yet handed up."""

    __slots__ = (
        "_at",
        "_body",
        "_body_flags",
        "_body_view",
        "_bytes_max",
        "_carried",
        "_filled",
        "_frame_bytes",
        "_frames",
        "_frames_max",
        "_greeted",
        "_rest",
        "_scratch",
        "_side",
        "_size",
        "fault",
        "holds",
        "pending",
        "ready",
        "replies",
        "seen",
    )

    def __init__(self, scratch: memoryview, limits: Limits, side: Side = BROKER) -> None:
        """`scratch` is the shared buffer: whatever lies there is taken up by `came` at once.
        `side` is ours."""
        self._scratch = scratch
        self._side = side
        self._frame_bytes = limits.frame_bytes
        self._frames_max = limits.frames
        self._bytes_max = max(limits.credit_bytes, limits.frame_bytes)
        self._rest = b""
        self._at = 0
        self._carried = 0
        self._body: bytearray | None = None
        self._body_view = _NOTHING
        self._body_flags = 0
        self._filled = 0
        self._frames: list[Buffer] = []
        self._size = 0
        self._greeted = False
        self.ready = False
        """The handshake is over."""
        self.pending = False
        """There may be more messages in what came already: ask `more` before `buffers`."""
        self.holds = False
        """Something came that is not handed up yet."""
        self.fault = ""
        """The reason why this connection has to end; what came before it is still good."""
        self.replies: list[bytes] = []
        """What the protocol itself has to say back, until somebody takes it away."""
        self.seen = 0
        """Frames and commands so far, as a measure of the work that this connection makes."""

    def buffers(self, most_bytes: int = sys.maxsize) -> list[memoryview]:
        """Where the next bytes belong, one buffer after the other; of a large frame no more than
        `most_bytes` at once."""
        if self._body is not None:
            missing = self._body_view[self._filled :]
            return (
                [missing, self._scratch] if len(missing) <= most_bytes else [missing[:most_bytes]]
            )
        if not self._rest:
            self._carried = 0
            return [self._scratch]
        self._carried = carried = len(self._rest) - self._at
        self._scratch[:carried] = self._rest[self._at :]
        return [self._scratch[carried:]]

    @property
    def receives(self) -> bool:
        """Whether `receive` can do the work: nothing is held, and the module in C is there."""
        return _receive is not None and self.ready and not (self.holds or self.fault)

    def receive(self, descriptor: int, most: int) -> Received | None:
        """What is there now of this socket, of at most `most` frames, for `received`; None if
        nothing is. Only while it `receives`."""
        assert _receive is not None
        return _receive(
            descriptor, self._scratch, self._frame_bytes, self._frames_max, self._bytes_max, most
        )

    def receiver(self, descriptor: int, most: int) -> Callable[[], Received | None]:
        """The same, to be called again and again until something is there. `overwritten` tells
        whether something came if what it returned is lost."""
        assert _receive is not None
        self._scratch[0] = _UNTOUCHED
        bounds = self._frame_bytes, self._frames_max, self._bytes_max
        return partial(_receive, descriptor, self._scratch, *bounds, most)

    @property
    def overwritten(self) -> bool:
        """Whether anything came since the last `receiver` was made; only until it is `received`."""
        return self._scratch[0] != _UNTOUCHED

    def received(self, received: Received, most: int) -> list[Message]:
        """The messages that are whole now; nothing was held before."""
        messages, seen, at, size = received
        self.seen += seen
        if at < size:
            self._go_on(at, size, most - seen, messages)
        return messages

    def came(self, size: int, most: int) -> list[Message]:
        """`size` bytes came into `buffers`: the messages that are whole now, from at most `most`
        frames."""
        if most > 0 and (only := self._only(size)) is not None:
            return [[only]]
        messages: list[Message] = []
        if self._body is not None:
            filled = min(len(self._body) - self._filled, size)
            self._filled += filled
            size -= filled
            if self._filled < len(self._body):
                return messages
            self._frame(self._body_flags, self._body, messages)
            self._body = None
            self._body_view = _NOTHING
            self._carried = 0
            most -= 1
        self._go_on(0, self._carried + size, most, messages)
        return messages

    def more(self, most: int) -> list[Message]:
        """Go on with what came already, after `pending`."""
        messages: list[Message] = []
        self._at = self._parse(memoryview(self._rest), self._at, most, messages)
        if self._at == len(self._rest):
            self._rest = b""
            self._at = 0
        self.holds = bool(self._rest or self._frames) or self._body is not None
        return messages

    @property
    def held_bytes(self) -> int:
        """What was not handed up yet takes, a buffer that is not full included."""
        body = 0 if self._body is None else len(self._body)
        return self._size + len(self._rest) + body

    def forget(self) -> None:
        """Keep nothing of what was not handed up: nobody comes for it any more."""
        self.pending = self.holds = False
        self._rest = b""
        self._frames = []
        self._size = 0
        self._body = None
        self._body_view = _NOTHING

    def _only(self, size: int) -> Buffer | None:
        """The message, when all that is there is just one, whole, of one frame: so it is when one
        waits for the other. What else it may be, or why it may not come, `_parse` knows."""
        if self.holds or not self.ready or self.fault:
            return None
        scratch = self._scratch
        flags = scratch[0]
        if not flags:
            start, length = 2, scratch[1]
        elif flags == LONG:
            start, length = LONG_HEADER.size, LONG_HEADER.unpack_from(scratch)[1]
        else:
            return None
        if start + length != size or length > self._frame_bytes:
            return None
        self.seen += 1
        return bytes(scratch[start:size])

    def _go_on(self, at: int, end: int, most: int, messages: list[Message]) -> None:
        """Take up to `most` frames out of the shared buffer and keep the rest."""
        at = self._parse(self._scratch[:end], at, most, messages)
        self._rest = b"" if self.fault else bytes(self._scratch[at:end])
        self._at = 0
        self.holds = bool(self._rest or self._frames) or self._body is not None

    def _parse(self, data: memoryview, at: int, most: int, messages: list[Message]) -> int:
        """Take up to `most` frames out of `data` from `at` on; returns where it stopped."""
        end = len(data)
        if not self._greeted:
            at = self._greet(data, at)
        last = self.seen + most
        self.pending = False
        while self._greeted and not self.fault:
            if end - at < 2:
                return at
            flags = data[at]
            if flags & LONG:
                if end - at < LONG_HEADER.size:
                    return at
                size = LONG_HEADER.unpack_from(data, at)[1]
                start = at + LONG_HEADER.size
            else:
                size = data[at + 1]
                start = at + 2
            self.fault = self._fault(flags, size)
            if self.fault:
                return end
            stop = start + size
            if stop > end:
                return self._begin(data, at, start, flags, size)
            if self.seen == last:
                self.pending = True
                return at
            self._frame(flags, bytes(data[start:stop]), messages)
            at = stop
        return at

    def _greet(self, data: memoryview, at: int) -> int:
        said = bytes(data[at : at + GREETING_BYTES])
        self.fault = greeting_fault(said)
        if self.fault or len(said) < GREETING_BYTES:
            return at
        self._greeted = True
        self.replies.append(self._side.ready)
        return at + GREETING_BYTES

    def _fault(self, flags: int, size: int) -> str:
        """Why a frame of this header may not come, or nothing."""
        if flags & COMMAND:
            if flags & MORE or flags > FLAGS_MAX or size > COMMAND_BYTES_MAX:
                return "bad_command"
            return ""
        if not self.ready:
            return "bad_handshake"
        if flags > FLAGS_MAX:
            return "bad_frame"
        if size > self._frame_bytes:
            return "frame_too_large"
        if len(self._frames) >= self._frames_max:
            return "too_many_frames"
        return "message_too_large" if self._size + size > self._bytes_max else ""

    def _begin(self, data: memoryview, at: int, start: int, flags: int, size: int) -> int:
        """The frame at `at` is not whole: give it a buffer of its own if it is large."""
        there = len(data) - start
        if size < DIRECT_FROM_BYTES or there < min(size // 2, FIRST_BYTES):
            return at
        self._body = native.unfilled(size)
        self._body_view = memoryview(self._body)
        self._body_view[:there] = data[start:]
        self._body_flags = flags
        self._filled = there
        return len(data)

    def _frame(self, flags: int, content: Buffer, messages: list[Message]) -> None:
        self.seen += 1
        if flags & COMMAND:
            self._command(bytes(content))
        elif flags & MORE:
            self._frames.append(content)
            self._size += len(content)
        elif self._frames:
            self._frames.append(content)
            messages.append(self._frames)
            self._frames = []
            self._size = 0
        else:
            messages.append([content])

    def _command(self, content: bytes) -> None:
        if not self.ready:
            self.fault = ready_fault(content, self._side.others)
            self.ready = not self.fault
            return
        reply = answer(content)
        if reply is None:
            self.fault = "bad_command"
        elif reply:
            self.replies.append(reply)
