"""Compressed batches: the same messages come back, and no claim about them is believed."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.batch import (
    BATCH_BYTES_MAX,
    Batch,
    BatchError,
    RecordTuple,
    amend,
    cut,
    decode_messages,
    decode_records,
    encode_messages,
    parse,
    renumber,
    seed,
    stamp,
    text_hash,
    verify_broker,
    verify_producer,
    verify_unstamped,
)
from cometmq.batch.compression import Codec, compress
from cometmq.batch.layout import CODECS, COUNT_AT, LENGTH_AT, SEALED_AT, SIZE_AT, seal
from cometmq.client.codecs import codec_for, make_codec
from cometmq.message import Origin, ReceivedMessage, UnreadableMessage

NAMES = ("zstd", "lz4")
TIME = 1_796_000_000_000
ORIGIN = Origin("orders", 1, 5, 4096, 2, 3, b"8 bytes.")
RECORDS: list[RecordTuple] = [
    (TIME + number, b'{"order": %d, "state": "paid"}' % number, "paid", ("k",), {"city": "Ulm"})
    for number in range(50)
]

steady = settings(derandomize=True, database=None, deadline=None, max_examples=60)
texts = st.text(max_size=100)
bodies = st.binary(max_size=300) | st.binary(max_size=8).map(lambda part: part * 200)
record_lists: st.SearchStrategy[list[RecordTuple]] = st.lists(
    st.tuples(
        st.integers(-(1 << 63), (1 << 63) - 1),
        bodies,
        texts,
        st.lists(texts, max_size=3).map(tuple),
        st.dictionaries(texts, texts, max_size=3),
    ),
    min_size=1,
    max_size=30,
)

each_codec = pytest.mark.parametrize("name", NAMES)


class Forger:
    """A codec that puts what it is told to in place of the records."""

    def __init__(self, records: bytes) -> None:
        self._records = records

    def compress(self, data: Any) -> bytes:
        return self._records

    def decompress(self, data: Any, size_bytes: int) -> bytes:
        raise AssertionError("nobody decompresses with it")


def forged(name: str, records: bytes, claimed: list[RecordTuple] = RECORDS) -> bytearray:
    """A batch in perfect order that claims `claimed`, compressed, and holds these bytes."""
    return compress(encode_messages("orders", 1, claimed), name, Forger(records))


def compressed(name: str, records: list[RecordTuple] = RECORDS, **fields: Any) -> bytearray:
    return compress(encode_messages("orders", 1, records, **fields), name, make_codec(name))


def codec_of(batch: Batch) -> Codec:
    codec = codec_for(batch.codec)
    assert codec is not None
    return codec


def read(buffer: bytearray, first_offset: int = 0) -> list[Any]:
    batch = parse(buffer)
    verify_producer(batch)
    codec = codec_for(batch.codec)
    return list(decode_messages(batch, ORIGIN, first_offset=first_offset, codec=codec))


def why_unreadable(buffer: bytearray, count: int = len(RECORDS)) -> str:
    """The one reason why no message of a batch can be read."""
    messages = read(buffer)
    assert [type(message) for message in messages] == [UnreadableMessage] * count
    assert [message.offset for message in messages] == list(range(count))
    assert (messages[0].topic, messages[0].queue, messages[0].position) == ("orders", 1, 4096)
    (reason,) = {message.reason for message in messages}
    return str(reason)


# --- there and back ---------------------------------------------------------------------------


@pytest.mark.parametrize("level", [None, "lowest", "highest"])
@each_codec
@steady
@given(records=record_lists)
def test_any_messages_come_back(name: str, level: str | None, records: list[RecordTuple]) -> None:
    levels = {"zstd": {"lowest": -5, "highest": 19}, "lz4": {"lowest": 0, "highest": 12}}[name]
    codec = make_codec(name, levels[level] if level else None)
    plain = encode_messages("orders", 1, records)
    buffer = compress(plain, name, codec)
    batch = parse(buffer)
    assert batch.codec in (0, CODECS.index(name))
    assert (buffer is plain) == (batch.codec == 0)
    verify_producer(batch)
    verify_unstamped(batch)
    assert read(buffer) == read(plain)
    assert decode_records(batch, codec=codec) == decode_records(parse(plain))


@each_codec
def test_bodies_of_64_kib_come_back(name: str) -> None:
    records: list[RecordTuple] = [
        (TIME, bytes([number]) * (64 << 10), "", (), {}) for number in range(12)
    ]
    buffer = compressed(name, records)
    assert len(buffer) < (64 << 10)
    assert [message.body for message in read(buffer)] == [record[1] for record in records]


@each_codec
def test_a_message_without_a_body_stays_as_it_is(name: str) -> None:
    plain = encode_messages("orders", 1, [(TIME, b"", "", (), {})])
    assert compress(plain, name, make_codec(name)) is plain


def test_what_saves_less_than_a_twentieth_is_not_kept() -> None:
    plain = encode_messages("orders", 1, RECORDS)
    size = parse(plain).uncompressed_size
    assert compress(plain, "zstd", Forger(bytes(size * 95 // 100 + 1))) is plain
    assert compress(plain, "zstd", Forger(bytes(size * 95 // 100))) is not plain


@each_codec
def test_all_but_the_records_stays_readable(name: str) -> None:
    sections: dict[str, Any] = {
        "producer": (7, 8, 9),
        "deliver_at": TIME,
        "key_hashes": [text_hash("k")],
    }
    batch = parse(compressed(name, **sections))
    plain = parse(encode_messages("orders", 1, RECORDS, **sections))
    assert batch.codec == CODECS.index(name) and batch.length < plain.length / 2
    for field in (
        "topic",
        "queue_claim",
        "count",
        "kind",
        "uncompressed_size",
        "first_born",
        "born_span",
        "lengths",
        "tag_hashes",
        "producer",
        "deliver_at",
        "key_hashes",
    ):
        assert getattr(batch, field) == getattr(plain, field), field


@each_codec
def test_a_consumer_may_begin_within_a_batch(name: str) -> None:
    buffer = compressed(name)
    assert [message.offset for message in read(buffer, 48)] == [48, 49]
    assert read(buffer, 50) == []


@each_codec
def test_a_stored_batch_is_the_same_batch(name: str) -> None:
    buffer, log = compressed(name), seed(b"8 bytes.")
    stamp(
        buffer,
        log_id_seed=log,
        position=4096,
        epoch=2,
        synced_before=0,
        base_offset=100,
        store_time=5,
        incarnation=3,
        queue=1,
    )
    batch = parse(buffer)
    verify_broker(batch, log)
    assert [message.offset for message in read(buffer)] == list(range(100, 150))
    with pytest.raises(BatchError, match="a compressed batch can't be cut"):
        cut(batch, [0], log_id_seed=log)


@each_codec
def test_a_new_number_leaves_the_messages_alone(name: str) -> None:
    buffer = compressed(name, producer=(1, 0, 4))
    again = renumber(buffer, (1, 1, 0))
    assert parse(again).producer == (1, 1, 0)
    assert read(again) == read(buffer)


@each_codec
def test_a_hook_can_send_it_elsewhere_or_write_its_records_anew(name: str) -> None:
    batch = parse(compressed(name))
    moved = parse(amend(batch, topic="elsewhere", queue=0))
    assert (moved.topic, moved.queue_claim, moved.codec) == ("elsewhere", 0, batch.codec)
    assert decode_records(moved, codec=codec_of(moved)) == RECORDS
    changed = [(born, body.upper(), *rest) for born, body, *rest in RECORDS]
    rewritten = parse(amend(batch, records=changed))  # type: ignore[arg-type]
    assert rewritten.codec == 0
    assert [record[1] for record in decode_records(rewritten)] == [it[1] for it in changed]


@pytest.mark.parametrize(
    ("name", "records"),
    [
        ("zstd", "28b52ffd603900ad000070dd00000001950ac5012c41a090800100282af002"),
        ("lz4", "bfdd00000001950ac5012c410100ff17504141a09080"),
    ],
)
def test_bytes_of_old_can_be_read(name: str, records: str) -> None:
    old: RecordTuple = (10, b"A" * 300, "", (), {})
    assert decode_records(
        parse(forged(name, bytes.fromhex(records), [old])), codec=make_codec(name)
    ) == [old]


# --- what lies --------------------------------------------------------------------------------


@each_codec
def test_a_reader_without_a_codec_gets_no_guess(name: str) -> None:
    batch = parse(compressed(name))
    for decode in (lambda: decode_messages(batch, ORIGIN), lambda: decode_records(batch)):
        with pytest.raises(BatchError, match=f"codec is {name}, expected none"):
            decode()


@pytest.mark.parametrize("number", range(3, 16))
def test_an_unknown_codec_is_no_batch(number: int) -> None:
    buffer = encode_messages("orders", 1, RECORDS)
    buffer[SEALED_AT] |= number
    seal(buffer)
    with pytest.raises(BatchError, match=f"codec is {number}, expected 0 to 2"):
        parse(buffer)


@pytest.mark.parametrize("name", ["brotli", "none", ""])
def test_a_codec_that_the_format_does_not_have_compresses_nothing(name: str) -> None:
    with pytest.raises(ValueError, match=f"codec '{name}': the format has zstd, lz4"):
        compress(encode_messages("orders", 1, RECORDS), name, Forger(b"x"))


@each_codec
def test_a_bomb_makes_no_more_bytes_than_it_claims(name: str) -> None:
    size = 64 << 20
    bomb = make_codec(name).compress(bytes(size))
    buffer = forged(name, bomb[: 1 << 20], [(TIME, bytes(1 << 21), "", (), {})])
    claimed = parse(buffer).uncompressed_size
    tracemalloc.start()
    try:
        reason = why_unreadable(buffer, 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(claimed) in reason
    assert peak < 2 * claimed + (1 << 20)


@each_codec
def test_a_claim_above_the_limit_is_refused_before_anything_is_decompressed(name: str) -> None:
    buffer = compressed(name)
    claimed = parse(buffer).uncompressed_size
    with pytest.raises(BatchError, match=f"uncompressed size is {claimed}, expected at most"):
        parse(buffer, limit=claimed - 1)
    struct.pack_into("<I", buffer, SIZE_AT, BATCH_BYTES_MAX + 1)
    seal(buffer)
    with pytest.raises(BatchError, match="uncompressed size is 16777217"):
        parse(buffer)


@each_codec
@pytest.mark.parametrize("more", [-1, 1])
def test_the_claimed_size_is_the_real_one(name: str, more: int) -> None:
    """The table and the size may agree with each other, and lie."""
    records = bytes(parse(encode_messages("orders", 1, RECORDS)).records)
    longer = records + b"\xc0" if more > 0 else records[:-1]
    reason = why_unreadable(forged(name, make_codec(name).compress(longer)))
    assert str(len(records)) in reason


@each_codec
def test_more_records_than_the_table_has_are_not_read(name: str) -> None:
    records = bytes(parse(encode_messages("orders", 1, RECORDS)).records)
    wrong = records[:4] + bytes([records[4] + 1]) + records[5:]
    assert "header of the records" in why_unreadable(forged(name, make_codec(name).compress(wrong)))


@each_codec
def test_a_record_that_can_not_be_decoded_stands_in_its_place(name: str) -> None:
    plain = parse(encode_messages("orders", 1, RECORDS))
    records = bytearray(plain.records)
    records[5 + plain.lengths[0]] = 0xC1
    buffer = forged(name, make_codec(name).compress(bytes(records)))
    kinds = [type(message) for message in read(buffer)]
    assert kinds == [ReceivedMessage, UnreadableMessage, *[ReceivedMessage] * 48]


@each_codec
def test_a_piece_that_was_cut_off_is_unreadable_and_nothing_else(name: str) -> None:
    whole = bytes(parse(compressed(name)).records)
    for length in range(1, len(whole)):
        why_unreadable(forged(name, whole[:length]))


@each_codec
@steady
@given(data=st.data())
def test_wrong_bytes_under_a_good_crc_cost_no_offset(name: str, data: st.DataObject) -> None:
    whole = bytearray(parse(compressed(name)).records)
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    # What decompresses to as many bytes may well be other messages: the CRC is what proves them.
    messages = read(forged(name, bytes(whole)))
    assert [message.offset for message in messages] == list(range(len(RECORDS)))


@each_codec
@steady
@given(junk=st.binary(min_size=1, max_size=400))
def test_any_bytes_at_all_are_read_or_unreadable(name: str, junk: bytes) -> None:
    messages = read(forged(name, junk))
    assert [message.offset for message in messages] == list(range(len(RECORDS)))


@each_codec
def test_something_behind_the_piece_is_refused(name: str) -> None:
    whole = bytes(parse(compressed(name)).records)
    for more in (b"\0", whole):
        why_unreadable(forged(name, whole + more))


@pytest.mark.parametrize(("name", "other"), [NAMES, NAMES[::-1]])
def test_one_codec_does_not_read_the_other(name: str, other: str) -> None:
    assert f"no {other}" in why_unreadable(forged(other, bytes(parse(compressed(name)).records)))


def test_the_table_still_has_to_fit_the_claim() -> None:
    buffer = compressed("zstd")
    (size,) = struct.unpack_from("<I", buffer, SIZE_AT)
    struct.pack_into("<I", buffer, SIZE_AT, size + 1)
    seal(buffer)
    with pytest.raises(BatchError, match="as in the table"):
        parse(buffer)
    for at in (COUNT_AT, LENGTH_AT):
        wrong = compressed("zstd")
        struct.pack_into("<I", wrong, at, 1 << 20)
        seal(wrong)
        with pytest.raises(BatchError):
            parse(wrong)
