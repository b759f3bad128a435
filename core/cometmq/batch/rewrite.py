"""What becomes of a batch that is there: a broker stamps it at append, cuts a subset out of it,
amends it; its producer gives it another number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from crc32c import crc32c

from cometmq import native
from cometmq.batch.encode import Frame, RecordTuple, encode_framed, write_column
from cometmq.batch.layout import (
    ARRAY32,
    ARRAY_HEADER,
    BROKER_CRC_AT,
    CODEC_MASK,
    COUNT_AT,
    FIXED_BYTES,
    FLAG_AMENDED,
    FLAG_CUT,
    FLAGS_AT,
    LENGTH_AT,
    MAGIC,
    OPENING,
    PRODUCER_CRC_AT,
    PRODUCER_SECTION,
    QUEUE_CLAIM_AT,
    SEALED_AT,
    SIZE_AT,
    STAMP,
    STAMP_AT,
    TOPIC_LENGTH_AT,
    U16,
    U32,
    ProducerTuple,
    bad,
    check_claims,
    seal,
)
from cometmq.batch.view import Batch


def stamp(
    buffer: bytearray | memoryview,
    *,
    log_id_seed: int,
    position: int,
    epoch: int,
    synced_before: int,
    base_offset: int,
    store_time: int,
    incarnation: int,
    queue: int,
    origin_kind: int = 0,
    origin_position: int = 0,
    flags: int = 0,
) -> None:
    """Write the broker's part of a sealed batch, in place.

    Only the first 76 bytes are read and written, so they may be all that `buffer` holds. For a
    batch that a hook amended, pass its `flags` on. `log_id_seed` comes from `seed`. Raises
    struct.error for a number that its field can't hold.
    """
    STAMP.pack_into(
        buffer,
        STAMP_AT,
        position,
        epoch,
        synced_before,
        base_offset,
        store_time,
        incarnation,
        queue,
        origin_kind,
        flags,
        origin_position,
    )
    covered = memoryview(buffer)[LENGTH_AT:SEALED_AT]
    U32.pack_into(buffer, BROKER_CRC_AT, crc32c(covered, log_id_seed))


def _stamped(
    batch: Batch,
    size: int,
    log_id_seed: int,
    position: int,
    epoch: int,
    synced_before: int,
    base_offset: int,
    store_time: int,
    incarnation: int,
    queue: int,
    origin_kind: int,
    flags: int,
    origin_position: int,
) -> bytearray:
    """A copy of the first `size` bytes (76 or more) of a sealed batch, with the broker's part
    filled as by `stamp`. The batch's own fields are those of its stamp from now on; the bytes in
    its `view` stay what they were.
    """
    head = bytearray(batch.view[:size])
    stamp(
        head,
        log_id_seed=log_id_seed,
        position=position,
        epoch=epoch,
        synced_before=synced_before,
        base_offset=base_offset,
        store_time=store_time,
        incarnation=incarnation,
        queue=queue,
        origin_kind=origin_kind,
        flags=flags,
        origin_position=origin_position,
    )
    batch.take_stamp(head)
    return head


stamped = native.stamped or _stamped


def cut(batch: Batch, keep: Sequence[int], *, log_id_seed: int) -> bytearray:
    """A batch of some records of a stamped one, undecoded, under the same stamp.

    `keep` holds places in the batch (0 to count - 1), strictly growing, at least one. Offsets
    stay what they were; a cut of a cut is allowed. Raises BatchError for a compressed batch,
    which is delivered whole, and ValueError for a `keep` that breaks the rule.
    """
    if batch.codec:
        raise bad("codec", batch.codec, "0: a compressed batch can't be cut")
    count = len(keep)
    if not count or keep[0] < 0 or keep[-1] >= batch.count or list(keep) != sorted(set(keep)):
        raise ValueError(f"keep must grow strictly within 0..{batch.count - 1} and not be empty")
    tag_hashes, deltas = batch.tag_hashes, batch.offset_deltas
    ends = list(accumulate(batch.lengths, initial=ARRAY_HEADER.size))
    records = batch.records
    parts = [records[ends[place] : ends[place + 1]] for place in keep]
    buffer = bytearray(batch.view[: batch.table_at])
    table_at = len(buffer)
    buffer += bytes(12 * count) + ARRAY_HEADER.pack(ARRAY32, count)
    size = ARRAY_HEADER.size + sum(map(len, parts))
    buffer += b"".join(parts)
    for place, column in enumerate((batch.lengths, tag_hashes, deltas)):
        write_column(buffer, table_at + 4 * count * place, [column[index] for index in keep])
    U32.pack_into(buffer, LENGTH_AT, len(buffer))
    U32.pack_into(buffer, COUNT_AT, count)
    U32.pack_into(buffer, SIZE_AT, size)
    buffer[FLAGS_AT] |= FLAG_CUT
    seal(buffer)
    U32.pack_into(buffer, BROKER_CRC_AT, crc32c(buffer[LENGTH_AT:SEALED_AT], log_id_seed))
    return buffer


def amend(
    batch: Batch,
    *,
    topic: str | None = None,
    queue: int | None = None,
    records: Sequence[RecordTuple] | None = None,
) -> bytearray:
    """The batch built again with another topic, queue or records; sealed, flagged, not stamped.

    Sections are kept. The number of records must stay, since the producer finds its receipts by
    place. Raises ValueError for another number, BatchError for a cut, or for a topic, a
    queue or a size that no batch can have.
    """
    if batch.is_cut:
        raise bad("flags", f"{batch.flags:#04x}", "no cut: only a whole batch can be amended")
    name = (batch.topic if topic is None else topic).encode()
    queue = batch.queue_claim if queue is None else queue
    check_claims(name, queue)
    head = name + bytes(batch.head[batch.topic_length :])
    if records is None:
        buffer = _reframed(batch, head, len(name), queue)
    else:
        if len(records) != batch.count:
            raise ValueError(f"{len(records)} records for {batch.count}: the count must stay")
        born = batch.first_born, batch.first_born + batch.born_span
        attributes = batch.attributes & ~CODEC_MASK
        buffer = encode_framed(Frame(attributes, queue, *born, len(name), head), records)
    buffer[FLAGS_AT] |= FLAG_AMENDED
    return buffer


def renumber(buffer: bytearray, producer: ProducerTuple) -> bytearray:
    """A copy of a sealed batch of numbered messages, not stamped yet, under another number.

    The one that is given stays what it was: a transport may still hold it.
    """
    copy = bytearray(buffer)
    PRODUCER_SECTION.pack_into(copy, FIXED_BYTES + copy[TOPIC_LENGTH_AT], *producer)
    seal(copy)
    return copy


def _reframed(batch: Batch, head: bytes, topic_length: int, queue: int) -> bytearray:
    """The same table and records bytes, compressed or not, under another topic and queue."""
    buffer = bytearray(batch.view[:FIXED_BYTES])
    buffer += head
    buffer += batch.view[batch.table_at :]
    buffer[LENGTH_AT:PRODUCER_CRC_AT] = bytes(PRODUCER_CRC_AT - LENGTH_AT)
    OPENING.pack_into(buffer, 0, MAGIC, 0, len(buffer))
    U16.pack_into(buffer, QUEUE_CLAIM_AT, queue)
    buffer[TOPIC_LENGTH_AT] = topic_length
    seal(buffer)
    return buffer
