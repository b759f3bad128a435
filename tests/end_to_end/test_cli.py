"""The exact forms of `mq`, its exit codes, and its one-sentence errors."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from cometmq.testing.process import BrokerProcess, run_mq

OFFSETS = ("min", "max", "next")


def test_topic_commands(broker: BrokerProcess) -> None:
    def mq(*arguments: str) -> bytes:
        return run_mq("topic", *arguments, address=broker.address).ok()

    mq("create", "orders", "--queues", "3")
    assert b"orders" in mq("list")
    assert len(json.loads(mq("describe", "orders", "--json"))["queues"]) == 3
    mq("alter", "orders", "--queues", "5")
    assert json.loads(mq("describe", "orders", "--json"))["info"]["queues"] == 5
    text = mq("describe", "orders").decode()
    assert all(f"{offset}: " in text and f"{offset} offset" in text for offset in OFFSETS)
    mq("delete", "orders", "--yes")
    assert json.loads(mq("list", "--json")) == []


def test_produce_from_stdin_and_json(broker: BrokerProcess) -> None:
    address = broker.address
    run_mq("topic", "create", "mixed", "--queues", "1", address=address).ok()
    run_mq("produce", "mixed", address=address, text=b"one\n\ntwo \xff\r\nno newline").ok()
    lines = [
        {"body": "three", "tag": "t", "key": "k", "properties": {"city": "Ulm"}},
        {"body_base64": "AAE="},
    ]
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    run_mq("produce", "mixed", "--format", "json", address=address, text=text).ok()
    out = run_mq("consume", "mixed", address=address).ok()
    assert out == b"one\n\ntwo \xff\r\nno newline\nthree\n\x00\x01\n"
    out = run_mq("consume", "mixed", "--from", "4", "--count", "1", "--json", address=address).ok()
    message = json.loads(out)
    assert (message["offset"], message["tag"], message["keys"]) == (4, "t", ["k"])
    assert message["properties"] == {"city": "Ulm"}


def test_json_output_of_one_topic_is_input_of_another(broker: BrokerProcess) -> None:
    address = broker.address
    for topic in ("first", "second"):
        run_mq("topic", "create", topic, "--queues", "1", address=address).ok()
    run_mq("produce", "first", "--tag", "x", "--key", "k", address=address, text=b"a\nb\n").ok()
    out = run_mq("consume", "first", "--json", address=address).ok()
    run_mq("produce", "second", "--format", "json", address=address, text=out).ok()
    again = run_mq("consume", "second", "--json", address=address).ok()
    pick = [[m["body"], m["tag"], m["keys"]] for m in map(json.loads, again.splitlines())]
    assert pick == [["a", "x", ["k"]], ["b", "x", ["k"]]]


def test_consume_from_time(broker: BrokerProcess) -> None:
    address = broker.address
    run_mq("topic", "create", "timed", "--queues", "1", address=address).ok()
    run_mq("produce", "timed", address=address, text=b"now\n").ok()
    past = (datetime.now() - timedelta(hours=1)).isoformat()
    future = (datetime.now() + timedelta(hours=1)).isoformat()
    assert run_mq("consume", "timed", "--from", past, address=address).ok() == b"now\n"
    assert run_mq("consume", "timed", "--from", future, address=address).ok() == b""
    assert run_mq("consume", "timed", "--from", "latest", address=address).ok() == b""


def test_consume_from_beyond_the_end_says_so(broker: BrokerProcess) -> None:
    address = broker.address
    run_mq("topic", "create", "short", "--queues", "2", address=address).ok()
    run_mq("produce", "short", address=address, text=b"one\n").ok()
    beyond = run_mq("consume", "short", "--from", "999999", address=address)
    assert (beyond.ok(), beyond.err) == (
        b"",
        "mq: --from 999999 is beyond the end of short (offset 1 comes next): nothing is printed\n",
    )
    assert run_mq("consume", "short", "--from", "1", address=address).err == ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["consume", "nothing"], 1, "nothing"),
        (["consume", "x", "--from", "yesterday"], 2, "earliest"),
        (["topic", "create", "bad/name"], 1, "bad/name"),
        (["topic", "delete", "nothing", "--yes"], 1, "nothing"),
        (["produce", "t", "--property", "novalue"], 2, "NAME=VALUE"),
        (["nonsense"], 2, "nonsense"),
        (["produce", "t", "--level", "quorum"], 1, "quorum"),
    ],
)
def test_errors(broker: BrokerProcess, arguments: list[str], code: int, words: str) -> None:
    done = run_mq(*arguments, address=broker.address, text=b"line\n")
    assert done.code == code, done.err
    assert words in done.err
    assert "Traceback" not in done.err


def test_no_broker_there() -> None:
    done = run_mq("info", "--timeout", "1", address="tcp://127.0.0.1:9")
    assert done.code == 3
    assert "mq run" in done.err
    assert "Traceback" not in done.err


def test_second_broker_on_the_same_folder(broker: BrokerProcess, tmp_path: Path) -> None:
    done = run_mq("run", "--data", str(broker.data), "--listen", "tcp://127.0.0.1:0")
    assert done.code == 1
    assert str(broker.data) in done.err


def test_clean_stop_leaves_an_intact_log(broker: BrokerProcess) -> None:
    run_mq("produce", "t", address=broker.address, text=b"a\nb\n").ok()
    assert broker.stop() == 0
    run_mq("log", "inspect", str(broker.data)).ok()


def test_listening_beyond_loopback_is_refused(tmp_path: Path) -> None:
    done = run_mq("run", "--data", str(tmp_path), "--listen", "tcp://0.0.0.0:0")
    assert done.code == 1
    assert "insecure" in done.err


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_lines_come_out_as_they_went_in(compression: str, broker: BrokerProcess) -> None:
    address, topic = broker.address, f"packed-{compression}"
    run_mq("topic", "create", topic, "--queues", "1", address=address).ok()
    text = b"".join(b'{"order": %d, "state": "paid"}\n' % number for number in range(2_000))
    options = ("--compression", compression, "--compression-level", "5")
    run_mq("produce", topic, *options, address=address, text=text).ok()
    assert run_mq("consume", topic, address=address).ok() == text
    used = json.loads(run_mq("topic", "describe", topic, "--json", address=address).ok())
    assert 0 < used["size_bytes"] < len(text) / 2


@pytest.mark.parametrize("member", [(), ("--group", "g")])
def test_consume_without_the_package_says_which_and_ends(
    member: tuple[str, ...], broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, topic = broker.address, f"no-package-{len(member)}"
    run_mq("topic", "create", topic, "--queues", "1", address=address).ok()
    run_mq("produce", topic, address=address, text=b"plain\n").ok()
    line = b"z" * 1000 + b"\n"
    run_mq("produce", topic, "--compression", "lz4", address=address, text=line).ok()
    (tmp_path / "lz4.py").write_text("raise ImportError('it is not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run_mq("consume", topic, *member, address=address)
    assert (done.code, done.out) == (1, b"plain\n")
    assert ("offsets 1 to 1 of queue 0 of" if member else "before offset 2 (") in done.err
    assert "(it is not here): pip install '.[lz4]' in a checkout of cometmq" in done.err
    monkeypatch.delenv("PYTHONPATH")
    expected = line if member else b"plain\n" + line
    assert run_mq("consume", topic, *member, address=address).ok() == expected
