"""A batch whose records are compressed, and its records back. All else of it stays as it lies, so
whoever reads only the header and the table need not know the codec."""

from __future__ import annotations

from typing import Protocol

from cometmq.batch.layout import (
    ARRAY32,
    ARRAY_HEADER,
    CODECS,
    LENGTH_AT,
    SEALED_AT,
    U16,
    U32,
    bad,
    seal,
)
from cometmq.batch.view import Batch, parse
from cometmq.environment import Buffer

WORTH = 0.95
"""What stays longer than this share of the records is not worth the reader's work."""


class Codec(Protocol):
    """Makes bytes shorter and long again. `decompress` is called by any thread, also by several at
    once; `compress` by one at a time."""

    def compress(self, data: Buffer) -> bytes:
        """The same in fewer bytes, as one piece that knows its own end. What it raises ends the
        messages, unsent."""

    def decompress(self, data: Buffer, size_bytes: int) -> bytes:
        """The piece as it was. Never makes more than `size_bytes`, whatever the piece says.

        Raises ValueError, with the reason, for what is no piece, is cut off, has something behind
        it, or would be longer: then nobody can read it. Whatever else it raises, MemoryError say,
        comes to whoever polls, and the piece is tried again at the next poll.
        """


def compress(buffer: bytearray, name: str, codec: Codec) -> bytearray:
    """A sealed batch of messages with its records compressed, sealed again; `buffer` itself where
    that saves less than 5 %.

    `name` is that of the codec in the format (`CODECS`). Raises ValueError for another name.
    """
    if name not in CODECS[1:]:
        raise ValueError(f"codec {name!r}: the format has {', '.join(CODECS[1:])}")
    batch = parse(buffer)
    records = codec.compress(batch.records)
    if len(records) > WORTH * batch.uncompressed_size:
        return buffer
    found = bytearray(batch.view[: batch.records_at])
    found += records
    U32.pack_into(found, LENGTH_AT, len(found))
    U16.pack_into(found, SEALED_AT, batch.attributes | CODECS.index(name))
    seal(found)
    return found


def plain_records(batch: Batch, codec: Codec | None) -> Buffer:
    """The records part of a batch as it was before it was compressed, if it was; then `codec` is
    the one that the batch names.

    At most as many bytes are made as the batch says, and they must be just as many. Raises
    BatchError for bytes that are not what the batch says of them.
    """
    if not batch.codec:
        return batch.records
    assert codec is not None
    name, size = CODECS[batch.codec], batch.uncompressed_size
    try:
        records = codec.decompress(batch.records, size)
    except ValueError as error:
        raise bad("records", f"no {name} ({error})", f"{size} bytes compressed with it") from error
    if len(records) != size:
        raise bad("records", f"{len(records)} bytes once decompressed", f"{size}")
    header = ARRAY_HEADER.unpack_from(records)
    if header != (ARRAY32, batch.count):
        raise bad("header of the records", header, f"{(ARRAY32, batch.count)}")
    return records
