"""Messages to frames and back; nothing here knows what they mean."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from cometmq import native
from cometmq.environment import Buffer
from cometmq.errors import ProtocolError

PREFIX = struct.Struct("<QHI")
_PREFIX_BYTES = PREFIX.size
ONE_FRAME_BYTES = 8192
FRAMES_MAX = 16
EVENT_ID = 0
"""Request id of a message that the broker sends on its own (none yet asks for an answer)."""

_encoder = msgspec.msgpack.Encoder()
_pack = native.pack
_unpack = native.unpack


def pack(
    request_id: int, code: int, header: msgspec.Struct, body: Sequence[Buffer] = ()
) -> list[Buffer]:
    """Frames of one message. `code` is the operation of a request or the status of a reply."""
    encoded = _encoder.encode(header)
    if _pack is not None and (plain := _pack(request_id, code, encoded, body)) is not None:
        return plain
    head = PREFIX.pack(request_id, code, len(encoded)) + encoded
    if not body:
        return [head]
    size = len(head)
    for buffer in body:
        size += len(buffer)
    if size <= ONE_FRAME_BYTES:
        return [b"".join((head, *body))]
    if len(body) < FRAMES_MAX:
        return [head, *body]
    return [head, b"".join(body)]


def unpack(frames: Sequence[Buffer]) -> tuple[int, int, memoryview, list[memoryview]]:
    """(request id, operation or status, header bytes, body pieces). Raises ProtocolError."""
    if _unpack is not None and (plain := _unpack(frames)) is not None:
        return plain
    more = len(frames) - 1
    if more and not 0 < more < FRAMES_MAX:
        raise ProtocolError(f"a message of {more + 1} frames; 1 to {FRAMES_MAX} are allowed")
    head = memoryview(frames[0])
    size = len(head)
    if size < _PREFIX_BYTES:
        raise ProtocolError(f"a first frame of {size} bytes; the prefix has {_PREFIX_BYTES}")
    request_id, code, header_length = PREFIX.unpack_from(head)
    end = _PREFIX_BYTES + header_length
    if end > size:
        raise ProtocolError(f"a header of {header_length} bytes in a frame of {size}")
    body = [head[end:]] if end < size else []
    if more:
        body += map(memoryview, frames[1:])
    return request_id, code, head[_PREFIX_BYTES:end], body


def split(body: Sequence[memoryview], sizes: Sequence[int]) -> list[memoryview]:
    """Cut the body into pieces of the given sizes. Raises ProtocolError unless it fits exactly."""
    if len(body) == 1 and len(sizes) == 1 and 0 < len(body[0]) == sizes[0]:
        return list(body)
    pieces: list[memoryview] = []
    frame = 0
    at = 0
    for size in sizes:
        while frame < len(body) and at == len(body[frame]):
            frame, at = frame + 1, 0
        if frame == len(body) or at + size > len(body[frame]) or size == 0:
            raise ProtocolError(f"piece {len(pieces)} of {size} bytes is not whole in the body")
        pieces.append(body[frame][at : at + size])
        at += size
    rest = sum(len(piece) for piece in body) - sum(sizes)
    if rest:
        raise ProtocolError(f"{rest} bytes of body that the header does not mention")
    return pieces
