"""The record batch: what travels from a producer through the log to the consumers as it is.

`encode_messages` and `encode_control` build one, `parse` reads one in place and proves its
structure, `verify_producer` and `verify_broker` prove its bytes, `stamp` is the broker's at
append, `cut`, `amend` and `renumber` make another one of it, `decode_messages` is the consumer's.
docs/format.md has every byte. Whatever is wrong with the bytes is a `BatchError`.
"""

from cometmq.batch.decode import decode_messages, decode_records
from cometmq.batch.encode import (
    NO_PROPERTIES,
    RecordTuple,
    encode_bodies,
    encode_control,
    encode_messages,
)
from cometmq.batch.layout import (
    BATCH_BYTES_MAX,
    FLAG_AMENDED,
    FLAG_CUT,
    LENGTH_MIN,
    MAGIC,
    ORIGIN_DIVERTED,
    ORIGIN_PRODUCER,
    ORIGIN_REAPPENDED,
    STAMPED_BYTES,
    VERSION,
    Kind,
    ProducerTuple,
    seed,
    text_hash,
)
from cometmq.batch.rewrite import amend, cut, renumber, stamp, stamped
from cometmq.batch.view import (
    Batch,
    believe,
    parse,
    verify_broker,
    verify_producer,
    verify_unstamped,
)
from cometmq.errors import BatchError

__all__ = [
    "BATCH_BYTES_MAX",
    "FLAG_AMENDED",
    "FLAG_CUT",
    "LENGTH_MIN",
    "MAGIC",
    "NO_PROPERTIES",
    "ORIGIN_DIVERTED",
    "ORIGIN_PRODUCER",
    "ORIGIN_REAPPENDED",
    "STAMPED_BYTES",
    "VERSION",
    "Batch",
    "BatchError",
    "Kind",
    "ProducerTuple",
    "RecordTuple",
    "amend",
    "believe",
    "cut",
    "decode_messages",
    "decode_records",
    "encode_bodies",
    "encode_control",
    "encode_messages",
    "parse",
    "renumber",
    "seed",
    "stamp",
    "stamped",
    "text_hash",
    "verify_broker",
    "verify_producer",
    "verify_unstamped",
]
