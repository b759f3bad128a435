"""Any bytes give a batch or a BatchError, nothing else, in memory bounded by their length."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.batch import (
    LENGTH_MIN,
    MAGIC,
    Batch,
    BatchError,
    Kind,
    RecordTuple,
    amend,
    cut,
    decode_messages,
    decode_records,
    encode_control,
    encode_messages,
    parse,
    seed,
    stamp,
    verify_broker,
    verify_producer,
    verify_unstamped,
)
from cometmq.batch.compression import compress
from cometmq.client.codecs import codec_for, make_codec
from cometmq.message import Origin

SEED = seed(b"fuzzfuzz")
TIME = 1_796_000_000_000
ORIGIN = Origin("orders", 1, 5, 0, 2, 3, b"fuzzfuzz")

steady = settings(derandomize=True, database=None, deadline=None, max_examples=400)


def _quietly(action: Callable[[], object]) -> None:
    try:
        action()
    except BatchError as error:
        assert str(error)


def _use(batch: Batch) -> None:
    """All that a broker, a log and a consumer may do to a batch that was parsed."""
    assert 1 <= batch.count == len(batch.lengths) == len(batch.tag_hashes)
    assert len(batch.offset_deltas) == batch.count
    assert batch.next_offset >= batch.base_offset + batch.count
    assert len(batch.view) == batch.length
    assert str(batch.count) in repr(batch)
    assert (batch.producer is not None) == bool(batch.attributes & 0x10)
    assert (batch.deliver_at is not None) == bool(batch.attributes & 0x20)
    assert len(batch.key_hashes) * 4 <= batch.length
    _quietly(lambda: verify_producer(batch))
    _quietly(lambda: verify_unstamped(batch))
    _quietly(lambda: verify_broker(batch, SEED))
    _quietly(lambda: decode_records(batch))
    _quietly(lambda: parse(amend(batch, topic="elsewhere")))
    try:
        messages = decode_messages(batch, ORIGIN, codec=codec_for(batch.codec))
    except BatchError:
        return
    deltas = batch.offset_deltas
    assert [m.offset - batch.base_offset for m in messages] == list(deltas)
    assert all(message.origin is ORIGIN for message in messages)
    if batch.codec:
        return
    subset = parse(cut(batch, range(0, batch.count, 2), log_id_seed=SEED))
    verify_producer(subset)
    verify_broker(subset, SEED)
    assert list(subset.offset_deltas) == list(deltas[::2])


def _feed(data: bytes | bytearray) -> bool:
    """True when it was taken for a batch."""
    try:
        batch = parse(data)
    except BatchError as error:
        assert str(error)
        return False
    _use(batch)
    return True


def _reseal(buffer: bytearray) -> None:
    """Make both CRCs right again, over whatever lies there."""
    length = min(struct.unpack_from("<I", buffer, 8)[0], len(buffer))
    struct.pack_into("<I", buffer, 72, crc32c(bytes(buffer[76:length])))
    struct.pack_into("<I", buffer, 4, crc32c(bytes(buffer[8:76]), SEED))


def _originals() -> list[bytearray]:
    records: list[RecordTuple] = [
        (TIME + i, b"body" * i, "tag" * (i % 3), (), {}) for i in range(5)
    ]
    dressed: list[RecordTuple] = [(TIME, b"body", "tag", ("key", "kez"), {"a": "b"})] * 3
    whole = encode_messages(
        "orders", 1, dressed, producer=(1, 2, 3), deliver_at=TIME, key_hashes=[1, 2]
    )
    stamp(
        whole,
        log_id_seed=SEED,
        position=0,
        epoch=2,
        synced_before=0,
        base_offset=100,
        store_time=5,
        incarnation=3,
        queue=1,
    )
    long = encode_messages("orders", 1, [(TIME, b"body" * 100, "tag", (), {})] * 5)
    return [
        encode_messages("orders", 1, records),
        whole,
        cut(parse(whole), [0, 2], log_id_seed=SEED),
        *[compress(long, name, make_codec(name)) for name in ("zstd", "lz4")],
        encode_control(Kind.MARK, [(1, 2), b"\xc0"]),
    ]


# Where counts, lengths, bits and flags lie, and the struct code of each.
LIARS = [(8, "I"), (36, "Q"), (63, "B"), (76, "H"), (80, "I"), (84, "I"), (100, "B")]
NUMBERS = [0, 1, 2, 5, 6, 7, 100, 127, 255, 256, 65_535, 1 << 24, (1 << 31) - 1, (1 << 32) - 1]


def _mutate(buffer: bytearray, chance: random.Random) -> None:
    """Lie in a field, in the table or in the records, or a few of them at once."""
    for _ in range(chance.randint(1, 3)):
        way = chance.randrange(5)
        if way == 0:
            at, code = chance.choice(LIARS)
            number = chance.choice(NUMBERS) & ((1 << 8 * struct.calcsize(code)) - 1)
            struct.pack_into("<" + code, buffer, at, number)
        elif way == 1:
            at, code = chance.choice(LIARS)
            (number,) = struct.unpack_from("<" + code, buffer, at)
            number = (number + chance.choice([-4, -1, 1, 4, 8])) % (1 << 8 * struct.calcsize(code))
            struct.pack_into("<" + code, buffer, at, number)
        elif way == 2:
            at = chance.randrange(101, len(buffer) - 4)
            struct.pack_into("<I", buffer, at, chance.choice(NUMBERS))
        elif way == 3:
            buffer[chance.randrange(76, len(buffer))] = chance.choice(
                [0x80, 0x91, 0xC1, 0xC6, 0xDB, 0xDD, 0xDF, chance.randrange(256)]
            )
        else:
            buffer[-1:] = bytes(chance.randrange(3))
            struct.pack_into("<I", buffer, 8, len(buffer))


def test_batches_that_lie_under_right_crcs_are_read_or_refused() -> None:
    chance = random.Random(20261129)
    originals = _originals()
    taken = 0
    rounds = 6000
    for _ in range(rounds):
        buffer = bytearray(chance.choice(originals))
        _mutate(buffer, chance)
        _reseal(buffer)
        taken += _feed(buffer)
    # Both ends are met often, else the mutations are too mild or too wild to prove anything.
    assert rounds / 20 < taken < rounds * 19 / 20


@steady
@given(st.binary(max_size=400))
def test_any_bytes_are_no_batch(data: bytes) -> None:
    _feed(data)


@steady
@given(st.binary(min_size=LENGTH_MIN - 12, max_size=400))
def test_any_bytes_behind_a_right_magic_and_length(data: bytes) -> None:
    buffer = bytearray(struct.pack("<III", MAGIC, 0, len(data) + 12) + data)
    _reseal(buffer)
    _feed(buffer)


@steady
@given(st.binary(min_size=1, max_size=300), st.integers(1, 20))
def test_any_bytes_as_records_under_a_right_header(data: bytes, count: int) -> None:
    buffer = encode_messages("orders", 1, [(TIME, b"", "", (), {})] * count)
    table_at = 101 + len("orders")
    records_at = table_at + 8 * count
    buffer[records_at + 5 :] = data
    struct.pack_into("<I", buffer, 8, len(buffer))
    struct.pack_into("<I", buffer, 84, len(buffer) - records_at)
    share, rest = divmod(len(data), count)
    lengths = [share + rest, *[share] * (count - 1)]
    struct.pack_into(f"<{count}I", buffer, table_at, *lengths)
    _reseal(buffer)
    assert _feed(buffer)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 12, 76, 101, LENGTH_MIN - 1, LENGTH_MIN])
def test_every_cut_off_batch_is_refused(size: int) -> None:
    for original in _originals():
        if size < len(original):
            assert not _feed(original[:size])


def _peak_bytes(data: bytes | bytearray) -> int:
    tracemalloc.start()
    try:
        _feed(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("at", [8, 80, 84], ids=["length", "count", "uncompressed size"])
def test_a_lying_number_allocates_nothing(at: int) -> None:
    for original in _originals():
        buffer = bytearray(original)
        struct.pack_into("<I", buffer, at, 0xFFFF_FFFF)
        _reseal(buffer)
        assert _peak_bytes(buffer) < 64 << 10


@pytest.mark.parametrize("header", [b"\xc6", b"\xdb", b"\xdd", b"\xdf"])
@pytest.mark.parametrize(
    "before", [b"", b"\x95\x01\xc4\x01a\xa0", b"\x97\x01\xc4\x01a\xa0\x90\x80"]
)
def test_a_lying_length_within_a_record_allocates_nothing(header: bytes, before: bytes) -> None:
    element = before + header + b"\xff\xff\xff\xff"
    buffer = encode_control(Kind.MARK, [element])
    buffer[77] = 0
    buffer[100:101] = b"\x01t"
    struct.pack_into("<I", buffer, 8, len(buffer))
    _reseal(buffer)
    assert parse(buffer).kind == Kind.MESSAGES
    assert _peak_bytes(buffer) < 64 << 10


def test_the_densest_batch_costs_a_bounded_multiple_of_its_length() -> None:
    buffer = encode_messages("orders", 1, [(0, b"", "", (), {})] * 20_000)
    assert _peak_bytes(buffer) < 60 * len(buffer)
