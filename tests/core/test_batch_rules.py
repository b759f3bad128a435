"""Each rule of the format, broken alone: the error names the field. What callers may not ask."""

from __future__ import annotations

import struct

import pytest

from cometmq.batch import (
    FLAG_CUT,
    NO_PROPERTIES,
    BatchError,
    RecordTuple,
    amend,
    cut,
    decode_records,
    encode_control,
    encode_messages,
    parse,
    text_hash,
)
from cometmq.batch.layout import seal

TIME = 1_796_000_000_000
RECORDS: list[RecordTuple] = [(TIME + i, b"body", "", (), {}) for i in range(3)]


def _with(at: int, code: str, number: int) -> bytearray:
    buffer = encode_messages("orders", 1, RECORDS)
    struct.pack_into("<" + code, buffer, at, number)
    seal(buffer)
    return buffer


@pytest.mark.parametrize(
    ("at", "code", "number", "message"),
    [
        (0, "I", 0, "magic is"),
        (3, "B", 2, "version is 2, expected 1, the only one"),
        (8, "I", 50, "length is 50, expected 115 to"),
        (8, "I", 1 << 30, "length is 1073741824, expected 115 to"),
        (8, "I", 5000, "expected at most the .* bytes that are there"),
        (63, "B", 4, "flags is 0x04"),
        (76, "H", 0x80, "reserved bit 7"),
        (76, "H", 3, "codec is 3, expected 0 to 2"),
        (76, "H", 0x40, "table is 3 records"),
        (80, "I", 0, "count is 0"),
        (80, "I", 4, "records is 54 bytes, expected 62"),
        (80, "I", 1 << 31, "table is 2147483648 records"),
        (84, "I", 1, "uncompressed size is 1, expected"),
        (84, "I", 1 << 25, "uncompressed size is 33554432, expected at most"),
        (100, "B", 0, "topic is empty"),
        (101, "B", 0xFF, "topic is .*, expected UTF-8"),
    ],
)
def test_a_broken_rule_is_named(at: int, code: str, number: int, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        parse(_with(at, code, number))


def test_a_lying_array_header_is_named() -> None:
    buffer = encode_messages("orders", 1, RECORDS)
    buffer[parse(buffer).records_at + 4] = 2
    seal(buffer)
    with pytest.raises(BatchError, match="header of the records"):
        parse(buffer)


def test_key_hashes_that_leave_the_batch_are_named() -> None:
    buffer = encode_control(1, [b"\x00"])
    struct.pack_into("<H", buffer, 76, 0x140)
    buffer[100] = 14
    with pytest.raises(BatchError, match="key hashes is at byte 115"):
        parse(buffer)


def test_deltas_of_a_cut_grow() -> None:
    whole = encode_messages("orders", 1, RECORDS)
    subset = cut(parse(whole), [0, 1], log_id_seed=0)
    batch = parse(subset)
    struct.pack_into("<II", subset, batch.table_at + 16, 1, 1)
    with pytest.raises(BatchError, match="offset deltas"):
        parse(subset)


def test_the_callers_limit_bounds_length_and_uncompressed_size() -> None:
    buffer = encode_messages("orders", 1, RECORDS)
    assert parse(buffer, limit=len(buffer)).length == len(buffer)
    with pytest.raises(BatchError, match="length"):
        parse(buffer, limit=len(buffer) - 1)
    buffer[76] = 1
    struct.pack_into("<III", buffer, parse(buffer).table_at, 900, 900, 900)
    struct.pack_into("<I", buffer, 84, 2705)
    assert parse(buffer, limit=2705).uncompressed_size == 2705
    with pytest.raises(BatchError, match="uncompressed size is 2705, expected at most 2704"):
        parse(buffer, limit=2704)


def test_batches_lie_back_to_back() -> None:
    first, second = encode_messages("a", 1, RECORDS), encode_messages("bc", 2, RECORDS[:1])
    both = memoryview(bytes(first + second))
    assert (parse(both).topic, parse(both, len(first)).topic) == ("a", "bc")
    assert parse(both, len(first)).length == len(second)


@pytest.mark.parametrize("keep", [[], [3], [-1], [1, 0], [1, 1], [0, 2, 1]])
def test_a_cut_keeps_growing_places_of_the_batch(keep: list[int]) -> None:
    batch = parse(encode_messages("orders", 1, RECORDS))
    with pytest.raises(ValueError, match="keep must grow"):
        cut(batch, keep, log_id_seed=0)


def test_a_cut_is_flagged_and_not_amended() -> None:
    subset = parse(cut(parse(encode_messages("orders", 1, RECORDS)), [1], log_id_seed=0))
    assert subset.flags == FLAG_CUT
    with pytest.raises(BatchError, match="only a whole batch can be amended"):
        amend(subset, topic="elsewhere")


def test_a_compressed_batch_is_not_cut_but_can_be_sent_elsewhere() -> None:
    buffer = encode_messages("orders", 1, RECORDS)
    buffer[76] = 2
    seal(buffer)
    batch = parse(buffer)
    with pytest.raises(BatchError, match="a compressed batch can't be cut"):
        cut(batch, [0], log_id_seed=0)
    moved = parse(amend(batch, topic="elsewhere"))
    assert (moved.codec, moved.topic, moved.records) == (2, "elsewhere", batch.records)


def test_new_records_of_a_compressed_batch_are_not_compressed() -> None:
    buffer = encode_messages("orders", 1, RECORDS)
    buffer[76] = 1
    seal(buffer)
    amended = parse(amend(parse(buffer), records=RECORDS))
    assert amended.codec == 0
    assert decode_records(amended) == RECORDS


def test_amending_keeps_the_number_of_records() -> None:
    batch = parse(encode_messages("orders", 1, RECORDS))
    with pytest.raises(ValueError, match="2 records for 3"):
        amend(batch, records=RECORDS[:2])


@pytest.mark.parametrize(
    ("topic", "queue", "records", "message"),
    [
        ("", 1, RECORDS, "topic is 0 bytes"),
        ("ä" * 128, 1, RECORDS, "topic is 256 bytes"),
        ("orders", -1, RECORDS, "queue is -1"),
        ("orders", 65_536, RECORDS, "queue is 65536"),
        ("orders", 1, [], "count is 0"),
        ("orders", 1, [(TIME, bytes(16 << 20), "", (), {})], "make smaller batches"),
    ],
)
def test_what_no_batch_can_hold_is_not_encoded(
    topic: str, queue: int, records: list[RecordTuple], message: str
) -> None:
    with pytest.raises(BatchError, match=message):
        encode_messages(topic, queue, records)


@pytest.mark.parametrize("kind", [-1, 0, 256])
def test_control_kinds_are_1_to_255(kind: int) -> None:
    with pytest.raises(BatchError, match="kind"):
        encode_control(kind, [1])


def test_a_control_batch_is_not_empty_and_key_hashes_are_counted_by_16_bits() -> None:
    with pytest.raises(BatchError, match="count is 0"):
        encode_control(5, [])
    with pytest.raises(BatchError, match="number of key hashes"):
        encode_messages("orders", 1, RECORDS, key_hashes=[0] * 65_536)


def test_hashes_are_those_that_other_languages_compute() -> None:
    # The check value of CRC-32C in the catalogues, and the rule for no tag.
    assert (text_hash("123456789"), text_hash("")) == (0xE3069283, 0)


@pytest.mark.parametrize("keys", [(), ("a",)])
def test_no_properties_are_stored_as_none_in_particular(keys: tuple[str, ...]) -> None:
    found = [
        encode_messages("orders", 1, [(TIME, b"body", "", keys, properties)])
        for properties in (NO_PROPERTIES, {})
    ]
    assert found[0] == found[1]
