"""The bytes of the format, pinned by a file that was made once, and the promises about sizes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from crc32c import crc32c

from cometmq.batch import (
    FLAG_AMENDED,
    Batch,
    BatchError,
    Kind,
    RecordTuple,
    amend,
    cut,
    decode_messages,
    encode_control,
    encode_messages,
    parse,
    seed,
    stamp,
    text_hash,
    verify_broker,
    verify_producer,
    verify_unstamped,
)
from cometmq.message import Message, Origin, ReceivedMessage

GOLDEN = Path(__file__).parent / "golden" / "segment-v1.bin"
READER = Path(__file__).parents[2] / "docs" / "read_log.py"
LOG_ID = b"\x00golden\xff"
SEED = seed(LOG_ID)
BASE = 1 << 33
TIME = 1_796_000_000_000


def _stamped(batch: bytearray, at: int, base_offset: int = 0, flags: int = 0) -> bytearray:
    stamp(
        batch,
        log_id_seed=SEED,
        position=BASE + at,
        epoch=7,
        synced_before=BASE,
        base_offset=base_offset,
        store_time=TIME + 5,
        incarnation=3,
        queue=2,
        origin_kind=1,
        origin_position=42,
        flags=flags,
    )
    return batch


def golden_segment() -> bytes:
    """A segment that holds one of each: controls, plain, tagged, all sections, amended, cut."""
    segment = bytearray()

    def add(batch: bytearray, base_offset: int = 0, flags: int = 0) -> None:
        segment.extend(_stamped(batch, len(segment), base_offset, flags))

    add(encode_control(Kind.SEGMENT_START, [(LOG_ID, 7, "node-1", 4, BASE, TIME)]))
    add(encode_messages("orders", 2, [(TIME, b"plain", "", (), {})]))
    add(encode_messages("orders", 2, [(TIME + i, b"x" * i, "a" * i, (), {}) for i in range(20)]), 1)
    full = encode_messages(
        "bestellungen-ä",
        65535,
        [
            (TIME, b"\x00\xff" * 200, "bezahlt", ["42", "ß"], {"city": "Ulm"}),
            (TIME + 1_000, b"", "", [], {"empty": ""}),
            (TIME + 2_000, b"last", "offen", ["42"], {}),
        ],
        producer=(9, 8, 7),
        deliver_at=TIME + 60_000,
        key_hashes=[text_hash("42"), text_hash("ß")],
    )
    add(full, 21)
    amended = amend(parse(full), topic="orders", queue=2)
    add(amended, 24, FLAG_AMENDED)
    segment += cut(parse(_stamped(full, len(segment), 27)), [0, 2], log_id_seed=SEED)
    add(encode_control(Kind.OFFSET_COMMIT, [("billing", 3, 2, 24), b"\x93\x01\x02\x03"]))
    return bytes(segment)


def _batches(segment: bytes) -> list[Batch]:
    found = []
    at = 0
    while at < len(segment):
        found.append(parse(segment, at))
        at += found[-1].length
    return found


def _reader() -> ModuleType:
    spec = importlib.util.spec_from_file_location("read_log", READER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_encoder_still_makes_the_golden_bytes() -> None:
    assert golden_segment() == GOLDEN.read_bytes()


def test_the_golden_bytes_are_read_as_what_they_were_made_of() -> None:
    start, plain, tagged, full, amended, subset, commit = _batches(GOLDEN.read_bytes())
    for batch in (start, plain, tagged, full, amended, subset, commit):
        verify_producer(batch)
        verify_broker(batch, SEED)
        assert (batch.epoch, batch.synced_before, batch.store_time) == (7, BASE, TIME + 5)
        assert (batch.incarnation, batch.queue) == (3, 2)
        assert (batch.origin_kind, batch.origin_position) == (1, 42)
    assert [start.kind, plain.kind, commit.kind] == [1, 0, 9]
    assert (start.topic, start.first_born, commit.count) == ("", 0, 2)
    assert bytes(commit.records).endswith(b"\x93\x01\x02\x03")
    assert (plain.position, plain.base_offset, plain.next_offset) == (BASE + start.length, 0, 1)
    assert tagged.tag_hashes[:3] == (0, crc32c(b"a"), crc32c(b"aa"))
    assert (tagged.first_born, tagged.born_span, tagged.key_hashes) == (TIME, 19, ())
    assert (full.topic, full.queue_claim) == ("bestellungen-ä", 65535)
    assert (full.producer, full.deliver_at) == ((9, 8, 7), TIME + 60_000)
    assert full.key_hashes == (crc32c(b"42"), crc32c("ß".encode()))
    assert (amended.topic, amended.queue_claim, amended.flags) == ("orders", 2, FLAG_AMENDED)
    assert (amended.producer, amended.deliver_at) == (full.producer, full.deliver_at)
    assert (list(subset.offset_deltas), subset.next_offset, subset.is_cut) == ([0, 2], 30, True)


def test_the_golden_messages_are_decoded() -> None:
    batches = [batch for batch in _batches(GOLDEN.read_bytes()) if batch.kind == Kind.MESSAGES]
    origin = Origin("orders", 2, TIME + 5, batches[0].position, 7, 3, LOG_ID)
    plain, tagged, full, amended, subset = (decode_messages(b, origin) for b in batches)
    assert plain == [ReceivedMessage(TIME, b"plain", "", (), {}, 0, origin)]
    assert [message.offset for message in tagged] == list(range(1, 21))
    assert full == [
        ReceivedMessage(
            TIME, b"\x00\xff" * 200, "bezahlt", ("42", "ß"), {"city": "Ulm"}, 21, origin
        ),
        ReceivedMessage(TIME + 1_000, b"", "", (), {"empty": ""}, 22, origin),
        ReceivedMessage(TIME + 2_000, b"last", "offen", ("42",), {}, 23, origin),
    ]
    assert [message.offset for message in amended] == [24, 25, 26]
    assert [message.offset for message in subset] == [27, 29]
    first = plain[0]
    assert (first.topic, first.queue, first.message_id) == ("orders", 2, f"{LOG_ID.hex()}-3-2-0")
    assert isinstance(first, ReceivedMessage) and first.store_time == TIME + 5


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 900_000])
def test_a_batch_of_one_costs_at_most_136_bytes(size: int) -> None:
    plain = encode_messages("orders", 2, [(TIME, bytes(size), "", (), {})])
    texts = "a-tag", "a-key", "name", "value"
    record = (TIME, bytes(size), texts[0], [texts[1]], {texts[2]: texts[3]})
    dressed = encode_messages("orders", 2, [record])
    assert len(plain) - size - len("orders") <= 136
    assert len(dressed) - size - len("orders") - sum(map(len, texts)) <= 136


def test_sections_cost_24_bytes_at_most_each() -> None:
    records: list[RecordTuple] = [(TIME, b"body", "", (), {})]
    bare = len(encode_messages("t", 0, records))
    assert len(encode_messages("t", 0, records, producer=(1, 2, 3))) == bare + 24
    assert len(encode_messages("t", 0, records, deliver_at=TIME)) == bare + 8
    assert len(encode_messages("t", 0, records, key_hashes=[1, 2])) == bare + 10


def test_a_log_id_makes_batches_of_another_log_foreign() -> None:
    batch = parse(_stamped(encode_messages("t", 0, [(TIME, b"body", "", (), {})]), 0))
    verify_broker(batch, SEED)
    with pytest.raises(BatchError, match=r"broker's CRC .* for this log"):
        verify_broker(batch, seed(b"another!"))


def test_a_batch_as_sent_has_an_empty_stamp() -> None:
    buffer = encode_messages("t", 0, [(TIME, b"body", "", (), {})])
    verify_unstamped(parse(buffer))
    with pytest.raises(BatchError, match="broker's part is filled"):
        verify_unstamped(parse(_stamped(buffer, 0)))


def test_the_stamp_needs_no_more_than_the_head() -> None:
    whole = encode_messages("t", 0, [(TIME, b"body", "", (), {})])
    head = bytearray(whole[:76])
    rest = whole[76:]
    _stamped(head, 0)
    assert head + rest == _stamped(whole, 0)


def test_a_message_to_send_has_plain_defaults() -> None:
    message = Message("orders", b"body")
    assert (message.tag, list(message.keys), dict(message.properties)) == ("", [], {})
    assert message.sharding_key is None


def test_the_reader_script_reads_the_golden_segment_and_prepared_space(tmp_path: Path) -> None:
    path = tmp_path / "00000000008589934592.seg"
    path.write_bytes(GOLDEN.read_bytes() + bytes(5000))
    command = [sys.executable, str(READER), str(path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    kinds = ["segment-start", *["messages"] * 5, "offset-commit"]
    assert [line.split()[1] for line in lines[:7]] == kinds
    assert lines[6 - 1].startswith(f"{_batches(GOLDEN.read_bytes())[5].position} messages count=2")
    assert "bestellungen-ä/2 offset=27 codec=none" in lines[5]
    assert lines[7:] == ["5000 bytes of prepared space"]


def test_the_reader_script_reads_the_same_messages(capsys: pytest.CaptureFixture[str]) -> None:
    assert _reader().read(str(GOLDEN), messages=True) is None
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["offset"] for line in lines] == [*range(27), 27, 29]
    assert lines[0]["body"] == "plain"
    assert lines[21] | {"body_base64": ""} == {
        "topic": "bestellungen-ä",
        "queue": 2,
        "offset": 21,
        "born_time": TIME,
        "tag": "bezahlt",
        "keys": ["42", "ß"],
        "properties": {"city": "Ulm"},
        "store_time": TIME + 5,
        "body_base64": "",
    }


@pytest.mark.parametrize("at", [0, 3, 5, 9, 14, 75, 80, 110, 300, 900])
def test_the_reader_script_reports_a_flipped_byte(
    at: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment = bytearray(GOLDEN.read_bytes())
    segment[at] ^= 0x10
    path = tmp_path / "segment"
    path.write_bytes(segment)
    problem = _reader().read(str(path), messages=False)
    capsys.readouterr()
    assert problem is not None and str(path) in problem


def test_the_reader_script_fails_for_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(GOLDEN.read_bytes()[:-1])
    command = [sys.executable, str(READER), "--messages", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "CRC or the length is wrong" in done.stderr
