"""What must hold for every batch: nothing is lost on the way round, no flipped bit goes unseen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.batch import (
    NO_PROPERTIES,
    BatchError,
    ProducerTuple,
    RecordTuple,
    amend,
    cut,
    decode_messages,
    decode_records,
    encode,
    encode_bodies,
    encode_messages,
    parse,
    seed,
    stamp,
    text_hash,
    verify_broker,
    verify_producer,
    verify_unstamped,
)
from cometmq.message import Origin, UnreadableMessage

SEED = seed(b"property")
ORIGIN = Origin("orders", 1, 5, 64, 2, 3, b"property")
TIME = 1_796_000_000_000

steady = settings(derandomize=True, database=None, deadline=None, max_examples=150)

times = st.integers(-(1 << 63), (1 << 63) - 1)
texts = st.text(max_size=300)
plain_records: st.SearchStrategy[RecordTuple] = st.tuples(
    times, st.binary(max_size=300), texts, st.just(()), st.just({})
)
full_records = st.tuples(
    times,
    st.binary(max_size=300),
    texts,
    st.lists(texts, max_size=3).map(tuple),
    st.dictionaries(texts, texts, max_size=3),
)
record_lists = st.lists(plain_records, min_size=1, max_size=40) | st.lists(
    full_records | plain_records, min_size=1, max_size=20
)
u64 = st.integers(0, (1 << 64) - 1)
sections = st.fixed_dictionaries(
    {
        "producer": st.none() | st.tuples(u64, u64, u64),
        "deliver_at": st.none() | times,
        "key_hashes": st.none() | st.lists(st.integers(0, (1 << 32) - 1), max_size=5),
    }
)


def stamped(buffer: bytearray, base_offset: int = 0) -> bytearray:
    stamp(
        buffer,
        log_id_seed=SEED,
        position=64,
        epoch=2,
        synced_before=8,
        base_offset=base_offset,
        store_time=5,
        incarnation=3,
        queue=1,
    )
    return buffer


@steady
@given(record_lists, sections, st.integers(0, (1 << 64) - 1))
def test_what_goes_in_comes_out(
    records: list[RecordTuple], extra: dict[str, object], base_offset: int
) -> None:
    buffer = encode_messages("orders", 1, records, **extra)  # type: ignore[arg-type]
    batch = parse(stamped(buffer, base_offset))
    verify_producer(batch)
    verify_broker(batch, SEED)
    assert batch.producer == extra["producer"]
    assert batch.deliver_at == extra["deliver_at"]
    assert list(batch.key_hashes) == (extra["key_hashes"] or [])
    assert batch.tag_hashes == tuple(text_hash(record[2]) for record in records)
    assert batch.next_offset == base_offset + len(records)
    assert decode_records(batch) == records
    for offset, (record, message) in enumerate(
        zip(records, decode_messages(batch, ORIGIN), strict=True), base_offset
    ):
        assert not isinstance(message, UnreadableMessage)
        fields = message.born_time, message.body, message.tag, message.keys, message.properties
        assert (*fields, message.offset) == (*record, offset)


@steady
@given(record_lists)
def test_the_table_is_the_same_whichever_way_the_lengths_were_found(
    records: list[RecordTuple],
) -> None:
    whole = parse(encode_messages("orders", 1, records))
    # A record with properties in front makes the encoder go one by one.
    each = parse(encode_messages("orders", 1, [(TIME, b"", "", (), {"a": "b"}), *records]))
    assert whole.lengths == each.lengths[1:]
    assert whole.records[5:] == each.records[5 + each.lengths[0] :]


SIZES = st.sampled_from([0, 1, 255, 256, 65535, 65536])
BODIES = (st.binary(max_size=300) | SIZES.map(bytes)).map(bytes)


@steady
@given(
    st.lists(st.tuples(times, st.lists(BODIES, min_size=1, max_size=20)), min_size=1, max_size=5),
    st.none() | st.tuples(u64, u64, u64),
)
def test_bodies_alone_make_the_bytes_that_records_with_nothing_else_make(
    runs: list[tuple[int, list[bytes]]], producer: ProducerTuple | None
) -> None:
    """Few of them go one way, many another one."""
    births: list[tuple[int, int]] = []
    records: list[RecordTuple] = []
    for born, bodies in runs:
        births.append((len(records), born))
        records += [(born, body, "", (), NO_PROPERTIES) for body in bodies]
    every = [record[1] for record in records]
    expected = encode_messages("orders", 1, records, producer=producer)
    assert encode_bodies("orders", 1, births, every, producer=producer) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "FEW_BODIES", 0)
        patch.setattr(encode, "BODIES_A_BIRTH", 0)
        assert encode_bodies("orders", 1, births, every, producer=producer) == expected


@steady
@given(plain_records | full_records, st.none() | st.tuples(u64, u64, u64))
def test_a_record_alone_makes_the_bytes_that_the_way_for_many_makes(
    record: RecordTuple, producer: ProducerTuple | None
) -> None:
    alone = encode_messages("orders", 1, [record], producer=producer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "LONE_BYTES_MAX", -1)
        assert encode_messages("orders", 1, [record], producer=producer) == alone


@steady
@given(record_lists, st.data())
def test_a_cut_and_a_cut_of_it_keep_offsets_and_records(
    records: list[RecordTuple], data: st.DataObject
) -> None:
    batch = parse(stamped(encode_messages("orders", 1, records), 1000))
    kept = list(range(len(records)))
    for _ in range(2):
        places = data.draw(st.sets(st.integers(0, len(kept) - 1), min_size=1).map(sorted))
        batch = parse(cut(batch, places, log_id_seed=SEED))
        kept = [kept[place] for place in places]
        verify_producer(batch)
        verify_broker(batch, SEED)
        messages = decode_messages(batch, ORIGIN)
        assert [message.offset for message in messages] == [1000 + place for place in kept]
        assert decode_records(batch) == [records[place] for place in kept]
        assert batch.tag_hashes == tuple(text_hash(records[place][2]) for place in kept)
        assert (batch.position, batch.next_offset) == (64, 1000 + kept[-1] + 1)


@steady
@given(record_lists, sections)
def test_an_amended_batch_keeps_all_that_was_not_changed(
    records: list[RecordTuple], extra: dict[str, object]
) -> None:
    buffer = encode_messages("orders", 1, records, **extra)  # type: ignore[arg-type]
    batch = parse(buffer)
    moved = parse(amend(batch, topic="elsewhere", queue=9))
    changed = parse(amend(batch, records=[(r[0], b"new", *r[2:]) for r in records]))
    for other in (moved, changed):
        verify_producer(other)
        assert (other.producer, other.deliver_at) == (batch.producer, batch.deliver_at)
        assert (other.first_born, other.born_span) == (batch.first_born, batch.born_span)
        assert other.key_hashes == batch.key_hashes
    assert (moved.topic, moved.queue_claim, changed.topic) == ("elsewhere", 9, "orders")
    assert decode_records(moved) == records
    assert [record[1] for record in decode_records(changed)] == [b"new"] * len(records)


def _flips(buffer: bytearray, check: Callable[[bytearray], None]) -> list[int]:
    """The bits whose flip `check` does not see."""
    unseen = []
    for bit in range(8 * len(buffer)):
        buffer[bit >> 3] ^= 1 << (bit & 7)
        try:
            check(buffer)
        except BatchError:
            pass
        else:
            unseen.append(bit)
        buffer[bit >> 3] ^= 1 << (bit & 7)
    return unseen


def _check_stored(buffer: bytearray) -> None:
    batch = parse(buffer)
    verify_producer(batch)
    verify_broker(batch, SEED)


def _check_sent(buffer: bytearray) -> None:
    batch = parse(buffer)
    verify_unstamped(batch)
    verify_producer(batch)


RECORDS: list[RecordTuple] = [
    (TIME, b"body", "tag", ("key",), {"a": "b"}),
    (TIME + 1, b"other", "", (), {}),
]


@pytest.mark.parametrize("trailing", [b"", bytes(64)], ids=["alone", "with space behind"])
def test_no_bit_of_a_stored_batch_flips_unseen(trailing: bytes) -> None:
    whole = stamped(encode_messages("orders", 1, RECORDS, producer=(1, 2, 3), key_hashes=[5]))
    subset = cut(parse(whole), [1], log_id_seed=SEED)
    for buffer in (whole, subset):
        size = len(buffer)
        assert [bit for bit in _flips(buffer + trailing, _check_stored) if bit < 8 * size] == []


def test_no_bit_of_a_sent_batch_flips_unseen() -> None:
    assert _flips(encode_messages("orders", 1, RECORDS, deliver_at=TIME), _check_sent) == []
