"""Turning a batch into messages: all in one call, or one by one when some can't be read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from cometmq.batch.compression import Codec, plain_records
from cometmq.batch.encode import RecordTuple
from cometmq.batch.layout import ARRAY_HEADER, CODECS, Kind, bad
from cometmq.batch.view import Batch
from cometmq.environment import Buffer
from cometmq.errors import BatchError
from cometmq.message import Origin, ReceivedMessage, Record, UnreadableMessage

_all_messages = msgspec.msgpack.Decoder(list[ReceivedMessage])
_one_record = msgspec.msgpack.Decoder(Record)
_all_tuples = msgspec.msgpack.Decoder(list[tuple[int, bytes, str, tuple[str, ...], dict[str, str]]])

# RecursionError: a value nested deeper than the interpreter's stack, where a later version of
# the format may have put a new element.
_UNDECODABLE = (msgspec.DecodeError, RecursionError)


def decode_messages(
    batch: Batch, origin: Origin, *, first_offset: int = 0, codec: Codec | None = None
) -> Sequence[ReceivedMessage | UnreadableMessage]:
    """The messages of a batch from `first_offset` on, each with its offset and `origin`.

    A compressed batch needs its `codec`. A record that can't be decoded is an UnreadableMessage in
    its place, and so is every one of a batch that can't be decompressed. The CRCs are the caller's
    to verify. Raises BatchError for a control batch, and for a compressed one without a codec.
    """
    _check_readable(batch, codec)
    try:
        records = plain_records(batch, codec)
    except BatchError as error:
        return _unreadable(batch, origin, first_offset, str(error))
    deltas = batch.offset_deltas
    begin = bisect_left(deltas, first_offset - batch.base_offset)
    try:
        messages = _all_messages.decode(records)
    except _UNDECODABLE:
        return _decode_each(batch, records, origin, begin)
    if begin:
        del messages[:begin]
    offsets: Sequence[int] = range(batch.base_offset + begin, batch.next_offset)
    if batch.is_cut:
        offsets = [batch.base_offset + delta for delta in deltas[begin:]]
    for message, offset in zip(messages, offsets, strict=True):
        message.offset = offset
        message.origin = origin
    return messages


def decode_records(batch: Batch, *, codec: Codec | None = None) -> Sequence[RecordTuple]:
    """The records as `encode_messages` and `amend` take them; a compressed batch needs its `codec`.

    Raises BatchError when one can't be decoded, for a control batch, and for a compressed batch
    that can't be decompressed.
    """
    _check_readable(batch, codec)
    try:
        return _all_tuples.decode(plain_records(batch, codec))
    except _UNDECODABLE as error:
        raise bad("records", f"undecodable ({error})", "arrays of five fields") from error


def _check_readable(batch: Batch, codec: Codec | None) -> None:
    if batch.kind != Kind.MESSAGES:
        raise bad("kind", batch.kind, "0, messages")
    if batch.codec and codec is None:
        raise bad("codec", CODECS[batch.codec], "none, where records are read without a codec")


def _unreadable(
    batch: Batch, origin: Origin, first_offset: int, reason: str
) -> list[UnreadableMessage]:
    offsets = (batch.base_offset + delta for delta in batch.offset_deltas)
    return [UnreadableMessage(at, origin, reason) for at in offsets if at >= first_offset]


def _decode_each(
    batch: Batch, records: Buffer, origin: Origin, begin: int
) -> list[ReceivedMessage | UnreadableMessage]:
    """Decode by the table's lengths, and without the elements that the format doesn't know."""
    messages: list[ReceivedMessage | UnreadableMessage] = []
    ends = list(accumulate(batch.lengths, initial=ARRAY_HEADER.size))
    deltas = batch.offset_deltas
    for place in range(begin, batch.count):
        offset = batch.base_offset + deltas[place]
        try:
            record = _one_record.decode(records[ends[place] : ends[place + 1]])
        except _UNDECODABLE as error:
            messages.append(UnreadableMessage(offset, origin, str(error)))
        else:
            messages.append(
                ReceivedMessage(
                    record.born_time,
                    record.body,
                    record.tag,
                    record.keys,
                    record.properties,
                    offset,
                    origin,
                )
            )
    return messages
