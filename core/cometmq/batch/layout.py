"""The byte layout of a record batch: constants, structs, the two seals. docs/format.md explains it.

    0 ........ 72 ............ 101 .............................................. length
    broker's   producer's      topic, optional sections, table, records

The broker's part is zero (but magic and length) until the broker stamps it at append. The
producer's CRC covers everything behind itself; the broker's CRC covers the broker's fields and
the producer's CRC, seeded with the log's id, so that a batch of another log is no batch of ours.
"""

from __future__ import annotations

import enum
import struct

from crc32c import crc32c

from cometmq.errors import BatchError

VERSION = 1
MAGIC = int.from_bytes(b"CMB" + bytes([VERSION]), "little")

HEADER = struct.Struct("<IIIQQQQqQHBBQ IHHIIqIB")
"""Both fixed parts at once."""
OPENING = struct.Struct("<III")
"""Magic, broker's CRC, length."""
STAMP = struct.Struct("<QQQQqQHBBQ")
"""The broker's fields behind the length."""
SEALED = struct.Struct("<HHIIqIB")
"""The producer's fields behind its CRC."""
U16 = struct.Struct("<H")
U32 = struct.Struct("<I")
I64 = struct.Struct("<q")
PRODUCER_SECTION = struct.Struct("<QQQ")
ProducerTuple = tuple[int, int, int]
"""Producer id, producer epoch, sequence of the first record."""
ARRAY_HEADER = struct.Struct(">BI")
"""msgpack's array of 32-bit length, used at every count so that its width is fixed."""

BROKER_CRC_AT = 4
LENGTH_AT = 8
STAMP_AT = OPENING.size
PRODUCER_CRC_AT = 72
SEALED_AT = PRODUCER_CRC_AT + U32.size
FLAGS_AT = 63
QUEUE_CLAIM_AT = 78
COUNT_AT = 80
SIZE_AT = 84
TOPIC_LENGTH_AT = 100
FIXED_BYTES = HEADER.size
STAMPED_BYTES = SEALED_AT
"""How many bytes of a batch a stamp reads or writes."""

ARRAY32 = 0xDD
LENGTH_MIN = FIXED_BYTES + 2 * U32.size + ARRAY_HEADER.size + 1
"""A control batch of one record of one byte."""
BATCH_BYTES_MAX = 16 << 20
"""No batch is longer, compressed or not, whatever the broker's own (lower) limit."""

CODEC_MASK = 0x0F
CODECS = ("none", "zstd", "lz4")
"""What the numbers in the format mean. The bytes of each are in docs/format.md."""
HAS_PRODUCER = 1 << 4
HAS_DELIVER_AT = 1 << 5
HAS_KEY_HASHES = 1 << 6
RESERVED = 1 << 7
KIND_SHIFT = 8

FLAG_CUT = 1
FLAG_AMENDED = 2
FLAGS_KNOWN = FLAG_CUT | FLAG_AMENDED

ORIGIN_PRODUCER = 0
ORIGIN_DIVERTED = 1
ORIGIN_REAPPENDED = 2


class Kind(enum.IntEnum):
    """What a batch holds: messages, or one of the control kinds that the core itself writes.

    Higher numbers are given to names in the log, by `KIND_NAME` batches.
    """

    MESSAGES = 0
    SEGMENT_START = 1
    EPOCH_START = 2
    CHECKPOINT_SLICE = 3
    CHECKPOINT_END = 4
    MARK = 5
    TRIM = 6
    KIND_NAME = 7
    TOPIC_CHANGE = 8
    OFFSET_COMMIT = 9
    MIN_OFFSET = 10
    CLAIM = 11
    GROUP_CHANGE = 12
    CLOCK_AHEAD = 13


def bad(field: str, value: object, expected: str) -> BatchError:
    """The one error for bytes that are no batch: which field, its value, and the rule it breaks."""
    return BatchError(f"bad record batch: {field} is {value}, expected {expected}")


def check_claims(name: bytes, queue: int) -> None:
    """Raises BatchError for a topic name (UTF-8) or queue that no batch of messages can carry."""
    if not 1 <= len(name) <= 255:
        raise bad("topic", f"{len(name)} bytes long", "1 to 255 bytes of UTF-8")
    if not 0 <= queue <= 0xFFFF:
        raise bad("queue", queue, "0 to 65535")


def seed(log_id: bytes) -> int:
    """Where the broker's CRC of every batch of this log starts from."""
    return crc32c(log_id)


def text_hash(text: str) -> int:
    """CRC-32C of the UTF-8: the hash of tags (0 for none), of keys, and of sharding keys."""
    return crc32c(text.encode())


def seal(buffer: bytearray) -> None:
    """Write the producer's CRC of a whole batch."""
    with memoryview(buffer) as view:
        U32.pack_into(view, PRODUCER_CRC_AT, crc32c(view[SEALED_AT:]))
