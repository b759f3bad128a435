"""Reading messages: what can't be decoded stands in its place, and nothing can pretend."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

from cometmq.batch import (
    BatchError,
    Kind,
    RecordTuple,
    decode_messages,
    decode_records,
    encode_control,
    encode_messages,
    parse,
)
from cometmq.batch.encode import Frame, Table, assemble
from cometmq.batch.layout import seal
from cometmq.message import NOWHERE, Origin, ReceivedMessage, UnreadableMessage

TIME = 1_796_000_000_000
ORIGIN = Origin("orders", 1, 5, 4096, 2, 3, b"8 bytes.")
GOOD: tuple[int, bytes, str, tuple[str, ...], dict[str, str]] = (TIME, b"good", "", (), {})


def _batch_of(*elements: Any) -> bytearray:
    """A sealed batch of any msgpack elements: bytes are taken as they are, the rest is encoded."""
    parts = [e if isinstance(e, bytes) else msgspec.msgpack.encode(e) for e in elements]
    frame = Frame(0, 1, TIME, TIME, 6, b"orders")
    return assemble(frame, Table([len(part) for part in parts]), b"".join(parts))


def _read(buffer: bytearray, first_offset: int = 0) -> list[Any]:
    return list(decode_messages(parse(buffer), ORIGIN, first_offset=first_offset))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"\xc1", "invalid opcode"),
        ((TIME, "text", "", (), {}), "Expected `bytes`"),
        ((TIME, b"body"), "at least length 5"),
        ({"born_time": TIME}, "Expected `array`"),
        (b"\x95\x01\xc4\x01a\xa1\xff\x90\x80", "UTF-8"),
        (b"\x95\x01\xc4\x01a\xa0\xdd\xff\xff\xff\xff", "truncated"),
        (b"\x96\x01\xc4\x01a\xa0\x90\x80" + b"\x91" * 100_000 + b"\x01", "recursion"),
    ],
    ids=["opcode", "type", "short", "map", "utf-8", "lying length", "nested"],
)
def test_an_undecodable_record_is_unreadable_in_its_place(record: Any, reason: str) -> None:
    first, second, third = _read(_batch_of(GOOD, record, GOOD))
    assert (first.body, first.offset, third.body, third.offset) == (b"good", 0, b"good", 2)
    assert first.origin is ORIGIN and third.origin is ORIGIN
    assert isinstance(second, UnreadableMessage)
    assert (second.offset, second.position, second.topic, second.queue) == (1, 4096, "orders", 1)
    assert reason.lower() in second.reason.lower()
    assert second.message_id == f"{b'8 bytes.'.hex()}-3-1-1"


def test_a_table_that_lies_about_the_single_lengths_harms_only_its_own_batch() -> None:
    buffer = _batch_of(GOOD, b"\xc1", GOOD)
    batch = parse(buffer)
    struct.pack_into("<II", buffer, batch.table_at, batch.lengths[0] - 1, 2)
    seal(buffer)
    messages = _read(buffer)
    assert [message.offset for message in messages] == [0, 1, 2]
    assert [isinstance(message, UnreadableMessage) for message in messages] == [True, True, False]


@pytest.mark.parametrize(
    "extra", [(77,), (77, ["orders", 9, 9, 9, 9, 9, b"forged"]), ("new field",), ({"a": 1}, 2, 3)]
)
def test_elements_behind_the_fifth_are_passed_over(extra: tuple[Any, ...]) -> None:
    buffer = _batch_of((*GOOD, *extra), GOOD)
    expected = [ReceivedMessage(*GOOD, offset, ORIGIN) for offset in (0, 1)]
    assert _read(buffer) == expected


@pytest.mark.parametrize("bad_one", [False, True])
def test_what_precedes_the_first_offset_is_dropped(bad_one: bool) -> None:
    buffer = _batch_of(GOOD, GOOD, b"\xc1" if bad_one else GOOD, GOOD)
    for first_offset in range(6):
        offsets = [message.offset for message in _read(buffer, first_offset)]
        assert offsets == list(range(first_offset, 4))


@pytest.mark.parametrize(("codec", "name"), [(1, "zstd"), (2, "lz4")])
def test_a_compressed_batch_is_whole_but_not_decoded_without_its_codec(
    codec: int, name: str
) -> None:
    buffer = encode_messages("orders", 1, [GOOD])
    buffer[76] |= codec
    seal(buffer)
    batch = parse(buffer)
    assert (batch.codec, batch.count) == (codec, 1)
    with pytest.raises(BatchError, match=name):
        decode_messages(batch, ORIGIN)
    with pytest.raises(BatchError, match=name):
        decode_records(batch)


def test_a_control_batch_holds_no_messages() -> None:
    batch = parse(encode_control(Kind.MARK, [0]))
    with pytest.raises(BatchError, match="kind is 5, expected 0"):
        decode_messages(batch, ORIGIN)


def test_records_for_a_hook_are_all_readable_or_an_error() -> None:
    with pytest.raises(BatchError, match="undecodable"):
        decode_records(parse(_batch_of(GOOD, b"\xc1")))


@pytest.mark.parametrize("born", [0, -1, (1 << 32) - 1, 1 << 32])
@pytest.mark.parametrize("count", [1, 15, 16, 70_000])
def test_times_and_counts_of_every_width(born: int, count: int) -> None:
    records: list[RecordTuple] = [(born, b"", "", (), {})] * count
    messages = _read(encode_messages("orders", 1, records))
    assert len(messages) == count
    assert {message.born_time for message in messages} == {born}


def test_a_received_message_knows_no_origin_until_it_was_read() -> None:
    message = ReceivedMessage(*GOOD)
    assert (message.offset, message.origin, message.topic) == (-1, NOWHERE, "")
