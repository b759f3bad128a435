"""The numbers in `_native.c` are those of the modules in Python whose work it does."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import pytest

from cometmq import native
from cometmq.batch import Batch, layout
from cometmq.protocol import frames
from cometmq_transports.zmtp import wire

SOURCE = Path(native.__file__).with_name("_native.c")
FIELDS = Batch.__struct_fields__
FIRST_BORN_AT = layout.SEALED_AT + struct.calcsize("<HHII")
WANTED = {
    "BROKER_CRC_AT": layout.BROKER_CRC_AT,
    "LENGTH_AT": layout.LENGTH_AT,
    "STAMP_AT": layout.STAMP_AT,
    "PRODUCER_CRC_AT": layout.PRODUCER_CRC_AT,
    "SEALED_AT": layout.SEALED_AT,
    "ATTRIBUTES_AT": layout.SEALED_AT,
    "QUEUE_CLAIM_AT": layout.QUEUE_CLAIM_AT,
    "COUNT_AT": layout.COUNT_AT,
    "SIZE_AT": layout.SIZE_AT,
    "FIRST_BORN_AT": FIRST_BORN_AT,
    "BORN_SPAN_AT": FIRST_BORN_AT + layout.I64.size,
    "TOPIC_LENGTH_AT": layout.TOPIC_LENGTH_AT,
    "TOPIC_AT": layout.FIXED_BYTES,
    "BATCH_FIELDS": len(FIELDS),
    "STAMP_FIELDS": len(layout.STAMP.unpack(bytes(layout.STAMP.size))),
    "STORE_TIME_FIELD": FIELDS.index("store_time") - FIELDS.index("position"),
    "FLAGS_AT": layout.FLAGS_AT,
    "PRODUCER_BYTES": layout.PRODUCER_SECTION.size,
    "ARRAY_BYTES": layout.ARRAY_HEADER.size,
    "ARRAY32": layout.ARRAY32,
    "LENGTH_MIN": layout.LENGTH_MIN,
    "BATCH_BYTES_MAX": layout.BATCH_BYTES_MAX,
    "HAS_PRODUCER": layout.HAS_PRODUCER,
    "CODE_AT": struct.calcsize("<Q"),
    "HEADER_LENGTH_AT": struct.calcsize("<QH"),
    "PREFIX_BYTES": frames.PREFIX.size,
    "ONE_FRAME_BYTES": frames.ONE_FRAME_BYTES,
    "FRAMES_MAX": frames.FRAMES_MAX,
    "MORE": wire.MORE,
    "LONG": wire.LONG,
    "LONG_HEADER_BYTES": wire.LONG_HEADER.size,
}


def constants() -> dict[str, int]:
    """Those of its enum, by name."""
    (enum,) = re.findall(r"^enum \{$(.*?)^\};$", SOURCE.read_text(), re.M | re.S)
    found = re.findall(r"^ +(\w+) = (\w+)(?: << (\d+))?,", enum, re.M)
    return {name: int(number, 0) << int(shift or 0) for name, number, shift in found}


def test_what_was_built_is_of_these_sources() -> None:
    """Else it is left alone, and `pip install -e .` builds it anew."""
    built = pytest.importorskip("cometmq.native._native")
    assert built.SOURCE_CRC == zlib.crc32(SOURCE.read_bytes())


def test_each_number_is_that_of_python() -> None:
    assert constants() == WANTED
