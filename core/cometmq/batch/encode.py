"""Building sealed batches from records, in as few calls as there are kinds of bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec
from crc32c import crc32c

from cometmq import native
from cometmq.batch.layout import (
    ARRAY32,
    ARRAY_HEADER,
    BATCH_BYTES_MAX,
    FIXED_BYTES,
    HAS_DELIVER_AT,
    HAS_KEY_HASHES,
    HAS_PRODUCER,
    I64,
    KIND_SHIFT,
    MAGIC,
    OPENING,
    PRODUCER_SECTION,
    SEALED,
    SEALED_AT,
    Kind,
    ProducerTuple,
    bad,
    check_claims,
    seal,
    text_hash,
)

RecordTuple = tuple[int, bytes, str, Sequence[str], Mapping[str, str]]
"""Born time in ms, body, tag, keys, properties: what `cometmq.message.Record` names."""


class _Nothing(msgspec.Struct, frozen=True, gc=False):
    """Encoded as an empty map."""


NO_PROPERTIES = cast(Mapping[str, str], _Nothing())
"""Those of a record that has none. A tuple with a dict in it, even an empty one, is gone through by
every garbage collection as long as it lives; one with this is not."""

LONE_BYTES_MAX = 16 << 10
"""A body up to here, alone in its batch, is copied twice and saves as much work as is left."""
FEW_BODIES = 64
"""So many are copied by the encoder sooner than what stands between them is prepared."""
BODIES_A_BIRTH = 16
"""So it is if no more than so many have one born time."""
_U32_MAX = (1 << 32) - 1
_BEFORE_SEALED = struct.Struct("<III60xI")
"""Opening, the broker's empty fields, the producer's CRC."""
_PLAIN = Kind.MESSAGES << KIND_SHIFT
_TABLE_OF_ONE = struct.Struct("<II")
_ARRAY_OF_ONE = ARRAY_HEADER.pack(ARRAY32, 1)
_RECORD_BEGIN = b"\x95"
"""msgpack's array of five."""
_BARE_END = b"\xa0\x90\x80"
"""No tag, no keys, no properties."""
_BODY_HEADERS = (struct.Struct(">BB"), struct.Struct(">BH"), struct.Struct(">BI"))
_encoder = msgspec.msgpack.Encoder()
_sealed = native.sealed


class Frame(NamedTuple):
    """What stands around the records: the producer's claims and optional sections."""

    attributes: int
    queue: int
    first_born: int
    last_born: int
    topic_length: int
    head: bytes
    """Topic and optional sections, as they lie."""


class Table(NamedTuple):
    """The columns of the table; a batch that is no cut has no column of offset deltas."""

    lengths: Sequence[int]
    tag_hashes: Sequence[int] = ()
    """Empty when no record has a tag."""


def encode_messages(
    topic: str,
    queue: int,
    records: Sequence[RecordTuple],
    *,
    producer: ProducerTuple | None = None,
    deliver_at: int | None = None,
    key_hashes: Sequence[int] | None = None,
) -> bytearray:
    """A sealed batch of messages for one queue; the broker's part is empty.

    `deliver_at` is in ms since 1970. Raises BatchError for a topic, a queue, a count or a size
    that no batch can have, struct.error for another number that its field can't hold, and what
    msgspec raises for values that it can't encode.
    """
    if not records:
        raise bad("count", 0, "at least 1")
    if len(records) == 1 and len(records[0][1]) <= LONE_BYTES_MAX:
        if deliver_at is None and key_hashes is None:
            return _encode_lone(topic, queue, records[0], producer)
    name = _name_of(topic, queue)
    attributes, sections = _sections(producer, deliver_at, key_hashes)
    born = records[0][0], records[-1][0]
    frame = Frame(attributes, queue, *born, len(name), name + sections)
    return encode_framed(frame, records)


def encode_bodies(
    topic: str,
    queue: int,
    births: Sequence[tuple[int, int]],
    bodies: Sequence[bytes],
    *,
    producer: ProducerTuple | None = None,
) -> bytearray:
    """What `encode_messages` makes of records that have a born time, a body and nothing else,
    without a record being made of each.

    `births` are places, the first of them 0, and the born time of the bodies from there on. Raises
    as `encode_messages` does.
    """
    if not bodies:
        raise bad("count", 0, "at least 1")
    name = _name_of(topic, queue)
    if _sealed is not None:
        plain = _sealed(name, queue, births, bodies, producer, "")
        if plain is not None:
            return plain
    attributes, sections = _sections(producer, None, None)
    frame = Frame(attributes, queue, births[0][1], births[-1][1], len(name), name + sections)
    ends = [place for place, _ in births[1:]] + [len(bodies)]
    if len(bodies) <= max(FEW_BODIES, BODIES_A_BIRTH * len(births)):
        records = _bare_records(births, ends, bodies)
        return _encode_at_once(frame, records, _bare_table(bodies)) or _encode_each(frame, records)
    sizes = list(map(len, bodies))
    heads: list[bytes] = []
    lengths: list[int] = []
    for (place, born_time), end in zip(births, ends, strict=True):
        heads_of = _Heads(born_time)
        heads += map(heads_of.__getitem__, sizes[place:end])
        lengths += map(heads_of.lengths.__getitem__, sizes[place:end])
    table = Table(lengths)
    records_at, _ = _measure(frame, table)
    pieces = [b""] * (2 * len(sizes))
    pieces[::2] = heads
    pieces[1::2] = bodies
    # The first head is the only one with no record before it.
    pieces[0] = bytes(records_at + ARRAY_HEADER.size) + heads[0][len(_BARE_END) :]
    pieces.append(_BARE_END)
    return _close(bytearray().join(pieces), frame, table, records_at)


def encode_control(kind: int, records: Sequence[Any]) -> bytearray:
    """A sealed control batch of `kind` (1 to 255), of no queue and no topic.

    A record is any value that msgspec encodes, or bytes: one msgpack element already encoded.
    Raises BatchError for a kind, a count or a size that no batch can have.
    """
    if not 1 <= kind <= 255:
        raise bad("kind", kind, "1 to 255 for a control batch")
    if not records:
        raise bad("count", 0, "at least 1")
    parts = [r if isinstance(r, bytes) else _encoder.encode(r) for r in records]
    frame = Frame(kind << KIND_SHIFT, 0, 0, 0, 0, b"")
    return assemble(frame, Table([len(part) for part in parts]), b"".join(parts))


def encode_framed(frame: Frame, records: Sequence[RecordTuple]) -> bytearray:
    """A sealed batch of these records within this frame."""
    table = _plain_table(records)
    buffer = None if table is None else _encode_at_once(frame, records, table)
    return buffer or _encode_each(frame, records)


def assemble(frame: Frame, table: Table, records: bytes | memoryview) -> bytearray:
    """A sealed batch from a table and the records' own bytes (without the array's header)."""
    records_at, length = _measure(frame, table)
    buffer = bytearray(length)
    buffer[records_at + ARRAY_HEADER.size :] = records
    return _close(buffer, frame, table, records_at)


def _encode_lone(
    topic: str, queue: int, record: RecordTuple, producer: ProducerTuple | None
) -> bytearray:
    """What all the rest here makes of one small record, put together from behind."""
    name = _name_of(topic, queue)
    if _sealed is not None and not record[3] and record[4] is NO_PROPERTIES:
        plain = _sealed(name, queue, ((0, record[0]),), (record[1],), producer, record[2])
        if plain is not None:
            return plain
    content = _encoder.encode(record)
    size = len(content)
    sealed = b"".join(
        (
            SEALED.pack(
                _PLAIN if producer is None else _PLAIN | HAS_PRODUCER,
                queue,
                1,
                ARRAY_HEADER.size + size,
                record[0],
                0,
                len(name),
            ),
            name,
            b"" if producer is None else PRODUCER_SECTION.pack(*producer),
            _TABLE_OF_ONE.pack(size, text_hash(record[2]) if record[2] else 0),
            _ARRAY_OF_ONE,
            content,
        )
    )
    length = SEALED_AT + len(sealed)
    if length > BATCH_BYTES_MAX:
        raise bad("length", length, f"at most {BATCH_BYTES_MAX} bytes; make smaller batches")
    buffer = bytearray(_BEFORE_SEALED.pack(MAGIC, 0, length, crc32c(sealed)))
    buffer += sealed
    return buffer


@lru_cache(maxsize=1024)
def _name_of(topic: str, queue: int) -> bytes:
    """The topic's name as it lies. Raises BatchError for claims that no batch can have."""
    name = topic.encode()
    check_claims(name, queue)
    return name


def _sections(
    producer: ProducerTuple | None, deliver_at: int | None, key_hashes: Sequence[int] | None
) -> tuple[int, bytes]:
    """Attribute bits and bytes of the optional sections, in the order of their bits."""
    attributes = Kind.MESSAGES << KIND_SHIFT
    parts = []
    if producer is not None:
        attributes |= HAS_PRODUCER
        parts.append(PRODUCER_SECTION.pack(*producer))
    if deliver_at is not None:
        attributes |= HAS_DELIVER_AT
        parts.append(I64.pack(deliver_at))
    if key_hashes is not None:
        attributes |= HAS_KEY_HASHES
        if len(key_hashes) > 0xFFFF:
            raise bad("number of key hashes", len(key_hashes), "at most 65535")
        parts.append(struct.pack(f"<H{len(key_hashes)}I", len(key_hashes), *key_hashes))
    return attributes, b"".join(parts)


def _encode_at_once(frame: Frame, records: Sequence[RecordTuple], table: Table) -> bytearray | None:
    """All records in one call, their lengths known by arithmetic; None when they are others.

    One call costs a third of a call per record. The arithmetic holds for records without keys
    and properties whose born time needs 8 bytes, which is any time since February 1970; a
    shorter one (a test's clock) shows in the total.
    """
    records_at, length = _measure(frame, table)
    buffer = bytearray(length)
    count = len(records)
    # The encoder writes the shortest header of an array: let it end where the fixed one will.
    width = 1 if count < 16 else 3 if count < 65536 else 5
    _encoder.encode_into(records, buffer, records_at + ARRAY_HEADER.size - width)
    if len(buffer) != length:
        return None
    return _close(buffer, frame, table, records_at)


class _Heads(dict[int, bytes]):
    """What stands between two bodies, by the size of the second: the end of one record and the
    begin of the next."""

    def __init__(self, born_time: int) -> None:
        super().__init__()
        self.lengths: dict[int, int] = {}
        """Of whole records, by the size of their bodies, for those that were looked up."""
        self._begin = _BARE_END + _RECORD_BEGIN + _encoder.encode(born_time)

    def __missing__(self, size: int) -> bytes:
        kind = 0 if size < 256 else 1 if size < 65536 else 2
        head = self[size] = self._begin + _BODY_HEADERS[kind].pack(0xC4 + kind, size)
        self.lengths[size] = len(head) + size
        return head


def _bare_records(
    births: Sequence[tuple[int, int]], ends: Sequence[int], bodies: Sequence[bytes]
) -> list[RecordTuple]:
    """Records that have nothing but a born time and a body."""
    born_times: list[int] = []
    for (place, born_time), end in zip(births, ends, strict=True):
        born_times += [born_time] * (end - place)
    pairs = zip(born_times, bodies, strict=True)
    return [(born_time, body, "", (), NO_PROPERTIES) for born_time, body in pairs]


def _bare_table(bodies: Sequence[bytes]) -> Table:
    """Lengths of such records, without encoding."""
    # As below, and a tag of no bytes.
    return Table([n + (15 if n < 256 else 16 if n < 65536 else 18) for n in map(len, bodies)])


def _plain_table(records: Sequence[RecordTuple]) -> Table | None:
    """Lengths and tag hashes without encoding; None when a record has keys or properties."""
    # Array header 1, born time 9, no keys 1, no properties 1, and the header of the body.
    lengths: list[int] = []
    add = lengths.append
    tags = _TagBytes()
    for _, body, tag, keys, properties in records:
        if keys or (properties is not NO_PROPERTIES and properties):
            return None
        size = len(body)
        add(size + tags[tag] + (14 if size < 256 else 15 if size < 65536 else 17))
    if len(tags) == 1 and "" in tags:
        return Table(lengths)
    return Table(lengths, _tag_hashes(records))


class _TagBytes(dict[str, int]):
    """Encoded size by tag, of the few tags that a batch has."""

    def __missing__(self, tag: str) -> int:
        size = len(_encoder.encode(tag))
        self[tag] = size
        return size


def _tag_hashes(records: Sequence[RecordTuple]) -> list[int]:
    hashes = {tag: text_hash(tag) for tag in {record[2] for record in records}}
    return [hashes[record[2]] for record in records]


def _encode_each(frame: Frame, records: Sequence[RecordTuple]) -> bytearray:
    parts = list(map(_encoder.encode, records))
    table = Table(list(map(len, parts)), _tag_hashes(records))
    return assemble(frame, table, b"".join(parts))


def _measure(frame: Frame, table: Table) -> tuple[int, int]:
    """Where the records begin, and how long the whole batch is."""
    records_at = FIXED_BYTES + len(frame.head) + 8 * len(table.lengths)
    length = records_at + ARRAY_HEADER.size + sum(table.lengths)
    if length > BATCH_BYTES_MAX:
        raise bad("length", length, f"at most {BATCH_BYTES_MAX} bytes; make smaller batches")
    return records_at, length


def _close(buffer: bytearray, frame: Frame, table: Table, records_at: int) -> bytearray:
    """Write all that stands before the records, and seal."""
    count = len(table.lengths)
    table_at = records_at - 8 * count
    span = min(max(frame.last_born - frame.first_born, 0), _U32_MAX)
    OPENING.pack_into(buffer, 0, MAGIC, 0, len(buffer))
    SEALED.pack_into(
        buffer,
        SEALED_AT,
        frame.attributes,
        frame.queue,
        count,
        len(buffer) - records_at,
        frame.first_born,
        span,
        frame.topic_length,
    )
    buffer[FIXED_BYTES:table_at] = frame.head
    write_column(buffer, table_at, table.lengths)
    if table.tag_hashes:
        write_column(buffer, table_at + 4 * count, table.tag_hashes)
    ARRAY_HEADER.pack_into(buffer, records_at, ARRAY32, count)
    seal(buffer)
    return buffer


def write_column(buffer: bytearray, at: int, values: Sequence[int]) -> None:
    """Write a column of u32 into a batch."""
    struct.pack_into(f"<{len(values)}I", buffer, at, *values)
