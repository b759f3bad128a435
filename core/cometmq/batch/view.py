"""Reading a batch in place: `parse` proves its structure, `Batch` names its parts.

The broker does this once per batch, whatever the number of records: the fixed parts in one
unpack, the table by columns. Nothing is copied and nothing is allocated by a length or a count
that was not compared with the bytes that are there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import lt

import msgspec
from crc32c import crc32c

from cometmq import native
from cometmq.batch.layout import (
    ARRAY32,
    ARRAY_HEADER,
    BATCH_BYTES_MAX,
    BROKER_CRC_AT,
    CODEC_MASK,
    CODECS,
    FIXED_BYTES,
    FLAG_CUT,
    FLAGS_KNOWN,
    HAS_DELIVER_AT,
    HAS_KEY_HASHES,
    HAS_PRODUCER,
    HEADER,
    I64,
    KIND_SHIFT,
    LENGTH_AT,
    LENGTH_MIN,
    MAGIC,
    PRODUCER_CRC_AT,
    PRODUCER_SECTION,
    RESERVED,
    SEALED_AT,
    STAMP,
    STAMP_AT,
    U16,
    U32,
    ProducerTuple,
    bad,
)
from cometmq.errors import BatchError

_MAGIC_BYTES = MAGIC.to_bytes(4, "little")
_USUAL_SECTIONS_BYTES = {0: 0, HAS_PRODUCER: PRODUCER_SECTION.size}
"""By the attributes of a batch of messages that has no other section and isn't compressed."""
_ARRAY_HEADER_BYTES = ARRAY_HEADER.size
_UNSTAMPED = bytes(PRODUCER_CRC_AT - STAMP_AT)
_parse = native.parse


class Batch(msgspec.Struct, eq=False, gc=False):
    """A batch in memory, read in place: fields as attributes, the rest when asked for.

    Made by `parse`. It describes the bytes as they were then: parse again after a stamp.
    Positions and lengths are bytes, times are ms (points in time: since 1970).
    """

    view: memoryview
    """The whole batch, `length` bytes."""

    # The broker's part, then the producer's: what `HEADER` unpacks, in its order.
    magic: int
    broker_crc: int
    length: int
    position: int
    epoch: int
    synced_before: int
    base_offset: int
    store_time: int
    incarnation: int
    """Which life of the topic it was stored for."""
    queue: int
    """The queue it was stored for."""
    origin_kind: int
    flags: int
    origin_position: int
    producer_crc: int
    attributes: int
    queue_claim: int
    count: int
    uncompressed_size: int
    first_born: int
    born_span: int
    topic_length: int

    # What is found behind them.
    topic: str = ""
    """The topic that the producer named; empty in a control batch."""
    lengths: tuple[int, ...] = ()
    """Byte length of each record, uncompressed."""
    table_at: int = 0
    """Where in the view the table begins."""
    records_at: int = 0
    """Where in the view the records begin."""
    producer: ProducerTuple | None = None
    """Producer id, producer epoch, sequence of the first record; None when not given."""

    def take_stamp(self, head: bytes | bytearray) -> None:
        """Make the broker's fields what they are in `head`, the first bytes of this same batch
        after its stamp (`STAMPED_BYTES` or more). The bytes in `view` stay what they were."""
        (self.broker_crc,) = U32.unpack_from(head, BROKER_CRC_AT)
        (
            self.position,
            self.epoch,
            self.synced_before,
            self.base_offset,
            self.store_time,
            self.incarnation,
            self.queue,
            self.origin_kind,
            self.flags,
            self.origin_position,
        ) = STAMP.unpack_from(head, STAMP_AT)

    def __repr__(self) -> str:
        return (
            f"<Batch kind {self.kind} of {self.count} at position {self.position},"
            f" {self.length} bytes>"
        )

    @property
    def kind(self) -> int:
        """0 for messages, else a control kind (`Kind`, or a number that the log gave a name)."""
        return self.attributes >> KIND_SHIFT

    @property
    def codec(self) -> int:
        """0 none, 1 zstd, 2 lz4."""
        return self.attributes & CODEC_MASK

    @property
    def is_cut(self) -> bool:
        """True for a subset that a broker cut out of a batch: its offsets may have holes."""
        return bool(self.flags & FLAG_CUT)

    @property
    def deliver_at(self) -> int | None:
        """When the messages are due, in ms since 1970; None when at once."""
        if not self.attributes & HAS_DELIVER_AT:
            return None
        at = self._sections_at
        if self.attributes & HAS_PRODUCER:
            at += PRODUCER_SECTION.size
        return int(I64.unpack_from(self.view, at)[0])

    @property
    def key_hashes(self) -> tuple[int, ...]:
        """CRC-32C of the keys that the batch holds, as far as the producer listed them."""
        if not self.attributes & HAS_KEY_HASHES:
            return ()
        at = self._sections_at
        if self.attributes & HAS_PRODUCER:
            at += PRODUCER_SECTION.size
        if self.attributes & HAS_DELIVER_AT:
            at += I64.size
        (number,) = U16.unpack_from(self.view, at)
        return _column(self.view, at + U16.size, number)

    @property
    def tag_hashes(self) -> tuple[int, ...]:
        """CRC-32C of each record's tag; 0 for none."""
        return _column(self.view, self.table_at + 4 * self.count, self.count)

    @property
    def offset_deltas(self) -> Sequence[int]:
        """Each record's offset minus `base_offset`: without holes, but in a cut."""
        if not self.is_cut:
            return range(self.count)
        return _column(self.view, self.table_at + 8 * self.count, self.count)

    @property
    def next_offset(self) -> int:
        """The offset behind the last record's."""
        if not self.is_cut:
            return self.base_offset + self.count
        return self.base_offset + self.offset_deltas[-1] + 1

    @property
    def records(self) -> memoryview:
        """The records part: one msgpack array (or its compressed bytes)."""
        return self.view[self.records_at :]

    @property
    def head(self) -> memoryview:
        """Topic and optional sections, as they lie."""
        return self.view[FIXED_BYTES : self.table_at]

    @property
    def _sections_at(self) -> int:
        return FIXED_BYTES + self.topic_length


def parse(
    buffer: bytes | bytearray | memoryview, offset: int = 0, *, limit: int = BATCH_BYTES_MAX
) -> Batch:
    """Read the batch that begins at byte `offset` of `buffer`; what follows it is left alone.

    `limit` bounds its length and its uncompressed size, in bytes. The CRCs are not looked at:
    `verify_producer`, `verify_broker`. Raises BatchError naming the first field that breaks a
    rule.
    """
    view = memoryview(buffer)
    if offset:
        view = view[offset:]
    if _parse is not None and (plain := _parse(view, limit, Batch)) is not None:
        return plain
    there = view.nbytes
    if there < LENGTH_MIN:
        raise bad("length", f"cut off after {there} bytes", f"at least {LENGTH_MIN}")
    batch = Batch(view, *HEADER.unpack_from(view))
    if batch.magic != MAGIC:
        raise _bad_magic(view)
    length = batch.length
    if not LENGTH_MIN <= length <= limit:
        raise bad("length", length, f"{LENGTH_MIN} to {limit}")
    if length != there:
        if length > there:
            raise bad("length", length, f"at most the {there} bytes that are there")
        batch.view = view[:length]
    if not _is_plain(batch, limit):
        _place_table(batch)
        _check_records(batch, limit)
    return batch


def believe(view: memoryview) -> Batch:
    """The stamped batch that is exactly `view`, and whose two CRCs were found right: its table was
    proven before it was stamped, so only the places are looked for, which is a third of the work.

    Raises BatchError if there is something that this release doesn't know all the same.
    """
    batch = Batch(view, *HEADER.unpack_from(view))
    _place_table(batch)
    batch.lengths = _column(view, batch.table_at, batch.count)
    return batch


def verify_producer(batch: Batch) -> None:
    """Raises BatchError unless the producer's CRC fits all that follows it."""
    found = crc32c(batch.view[SEALED_AT:])
    if found != batch.producer_crc:
        raise bad("producer's CRC", f"{batch.producer_crc:08x}", f"{found:08x} as computed")


def verify_broker(batch: Batch, log_id_seed: int) -> None:
    """Raises BatchError unless the broker's CRC fits its fields and this log (see `seed`)."""
    found = crc32c(batch.view[LENGTH_AT:SEALED_AT], log_id_seed)
    if found != batch.broker_crc:
        raise bad(
            "broker's CRC", f"{batch.broker_crc:08x}", f"{found:08x} as computed for this log"
        )


def verify_unstamped(batch: Batch) -> None:
    """Raises BatchError unless the broker's part is empty, as a producer has to send it."""
    view = batch.view
    if batch.broker_crc or view[STAMP_AT:PRODUCER_CRC_AT] != _UNSTAMPED:
        raise bad("broker's part", "filled", "zeros until a broker stamps it")


def _bad_magic(view: memoryview) -> BatchError:
    if view[:3] == _MAGIC_BYTES[:3]:
        return bad("version", view[3], f"{_MAGIC_BYTES[3]}, the only one that this release reads")
    return bad("magic", bytes(view[:4]), f"{_MAGIC_BYTES!r}")


def _is_plain(batch: Batch, limit: int) -> bool:
    """Whether it is one of messages as nearly all are, with no bit that is seldom set, and all of
    it right: that is proven in one go. If not, why is for the others here to find out."""
    count, topic_length, size = batch.count, batch.topic_length, batch.uncompressed_size
    sections_bytes = _USUAL_SECTIONS_BYTES.get(batch.attributes)
    if sections_bytes is None or batch.flags or not count or not topic_length:
        return False
    topic_end = FIXED_BYTES + topic_length
    table_at = topic_end + sections_bytes
    records_at = table_at + 8 * count
    if not _ARRAY_HEADER_BYTES <= size == batch.length - records_at or size > limit:
        return False
    view = batch.view
    if count == 1:
        lengths: tuple[int, ...] = U32.unpack_from(view, table_at)
    else:
        lengths = struct.unpack_from(f"<{count}I", view, table_at)
    if sum(lengths) + _ARRAY_HEADER_BYTES != size:
        return False
    if ARRAY_HEADER.unpack_from(view, records_at) != (ARRAY32, count):
        return False
    try:
        batch.topic = str(view[FIXED_BYTES:topic_end], "utf-8")
    except UnicodeDecodeError:
        return False
    if sections_bytes:
        batch.producer = PRODUCER_SECTION.unpack_from(view, topic_end)
    batch.lengths = lengths
    batch.table_at = table_at
    batch.records_at = records_at
    return True


def _check_attributes(batch: Batch) -> None:
    """All bits are known: a bit that is not would change where things lie."""
    attributes = batch.attributes
    if attributes & RESERVED:
        raise bad("attributes", f"{attributes:#06x}", "reserved bit 7 to be 0")
    if attributes & CODEC_MASK >= len(CODECS):
        raise bad("codec", attributes & CODEC_MASK, f"0 to {len(CODECS) - 1}")
    if batch.flags & ~FLAGS_KNOWN:
        raise bad("flags", f"{batch.flags:#04x}", f"only bits of {FLAGS_KNOWN:#04x}")
    if not batch.count:
        raise bad("count", 0, "at least 1")


def _place_table(batch: Batch) -> None:
    """Find where sections, table and records begin, each within the length, if all bits and flags
    are known."""
    view, attributes, count = batch.view, batch.attributes, batch.count
    topic_end = FIXED_BYTES + batch.topic_length
    sections_bytes = 0
    if attributes or batch.flags or not count:
        _check_attributes(batch)
        sections_bytes = _sections_bytes(batch)
    if topic_end == FIXED_BYTES and attributes < 1 << KIND_SHIFT:
        raise bad("topic", "empty", "the name of the topic that the messages are for")
    batch.table_at = at = topic_end + sections_bytes
    at += (12 if batch.flags & FLAG_CUT else 8) * count
    batch.records_at = at
    if at >= batch.length:
        raise bad("table", f"{count} records, up to byte {at}", f"less than {batch.length}")
    if attributes & HAS_PRODUCER:
        batch.producer = PRODUCER_SECTION.unpack_from(view, topic_end)
    try:
        batch.topic = str(view[FIXED_BYTES:topic_end], "utf-8")
    except UnicodeDecodeError as error:
        raise bad("topic", bytes(view[FIXED_BYTES:topic_end])[:16], "UTF-8") from error


def _sections_bytes(batch: Batch) -> int:
    """How long the optional sections are."""
    attributes = batch.attributes
    size = PRODUCER_SECTION.size if attributes & HAS_PRODUCER else 0
    if attributes & HAS_DELIVER_AT:
        size += I64.size
    if attributes & HAS_KEY_HASHES:
        at = FIXED_BYTES + batch.topic_length + size
        if at + U16.size > batch.length:
            raise bad("key hashes", f"at byte {at}", f"inside of {batch.length} bytes")
        size += U16.size + 4 * int(U16.unpack_from(batch.view, at)[0])
    return size


def _check_records(batch: Batch, limit: int) -> None:
    """Table and records tell the same sizes and the same count."""
    view, count, size = batch.view, batch.count, batch.uncompressed_size
    batch.lengths = lengths = _column(view, batch.table_at, count)
    if size > limit:
        raise bad("uncompressed size", size, f"at most {limit}")
    total = sum(lengths) + _ARRAY_HEADER_BYTES
    if total != size:
        raise bad("uncompressed size", size, f"{total} as in the table")
    if not batch.attributes & CODEC_MASK:
        records_at = batch.records_at
        rest = batch.length - records_at
        if rest != size:
            raise bad("records", f"{rest} bytes", f"{size}, the uncompressed size")
        header = ARRAY_HEADER.unpack_from(view, records_at)
        if header != (ARRAY32, count):
            raise bad("header of the records", header, f"{(ARRAY32, count)}")
    if batch.flags & FLAG_CUT:
        deltas = batch.offset_deltas
        if not all(map(lt, deltas, deltas[1:])):
            raise bad("offset deltas", "not growing", "each larger than the one before it")


def _column(view: memoryview, at: int, count: int) -> tuple[int, ...]:
    """A column of u32, whose place was compared with the length before."""
    return struct.unpack_from(f"<{count}I", view, at)
