"""The main job: real files line by line through a broker and back, also with a kill in between."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest
import vega_datasets

from cometmq import Message, Producer
from cometmq.errors import CometError
from cometmq.testing.process import MQ, BrokerProcess, run_mq

FILES = sorted(
    path
    for path in (Path(vega_datasets.__file__).parent / "_data").iterdir()
    if path.suffix in (".csv", ".json")
)


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")


def test_real_files_there_and_back(broker: BrokerProcess) -> None:
    """Goal: every byte of every file comes back, with tag and keys, read by another process."""
    assert FILES
    with Producer(broker.address) as producer:
        for path in FILES:
            topic = path.name
            run_mq("topic", "create", topic, "--queues", "1", address=broker.address).ok()
            messages = [
                Message(topic, line, tag=path.suffix[1:], keys=[f"{path.stem}-{number}"])
                for number, line in enumerate(lines_of(path))
            ]
            results = producer.send_many(messages)
            offsets = [getattr(result, "offset", result) for result in results]
            assert offsets == list(range(len(messages)))
    for path in FILES:
        out = run_mq("consume", path.name, "--json", address=broker.address).ok()
        received = [json.loads(line) for line in out.splitlines()]
        assert b"\n".join(message["body"].encode() for message in received) == path.read_bytes()
        assert {message["tag"] for message in received} == {path.suffix[1:]}
        assert [m["keys"] for m in received] == [[f"{path.stem}-{n}"] for n in range(len(received))]


@pytest.mark.parametrize("plugins", ["", "flush-async"])
def test_kill_in_the_middle(tmp_path: Path, plugins: str) -> None:
    """Goal: a SIGKILL while sending takes no acked line, and order per queue holds on first
    copies. Method: a thread kills and restarts the broker while files are sent; lines are
    unique (file and number), so a repeat can be told from a new one."""
    broker = BrokerProcess(tmp_path, *(["--plugins", plugins] if plugins else []))
    broker.start()
    acked: dict[str, tuple[int, int]] = {}
    unknown: set[str] = set()
    half_way = threading.Event()

    def kill_and_restart() -> None:
        half_way.wait(60)
        broker.kill()
        broker.start()

    killer = threading.Thread(target=kill_and_restart)
    killer.start()
    try:
        with Producer(broker.address, send_timeout=60) as producer:
            lines = [
                f"{path.name}:{number}:".encode() + line
                for path in FILES
                for number, line in enumerate(lines_of(path))
            ]
            receipts = []
            for count, line in enumerate(lines):
                if count == len(lines) // 2:
                    half_way.set()
                receipts.append((line, producer.send_soon(Message("lines", line))))
            for line, receipt in receipts:
                name = line.split(b":", 2)[0].decode() + line.split(b":", 2)[1].decode()
                try:
                    result = receipt.result(timeout=60)
                except CometError:
                    unknown.add(name)
                else:
                    acked[name] = (result.queue, result.offset)
        killer.join()
        out = run_mq("consume", "lines", "--json", address=broker.address).ok()
    finally:
        half_way.set()
        killer.join()
        broker.kill()
    check_history(out, lines, acked, unknown)


def check_history(
    out: bytes, sent: list[bytes], acked: dict[str, tuple[int, int]], unknown: set[str]
) -> None:
    """Nothing acked is lost or elsewhere, nothing foreign is there, first copies keep order."""
    order = {line: number for number, line in enumerate(sent)}
    first_copies: dict[int, list[int]] = defaultdict(list)
    places: dict[str, set[tuple[int, int]]] = defaultdict(set)
    seen: set[bytes] = set()
    for text in out.splitlines():
        message = json.loads(text)
        body = message["body"].encode()
        assert body in order, "a line that nobody sent"
        file, number, _ = message["body"].split(":", 2)
        places[file + number].add((message["queue"], message["offset"]))
        if body not in seen:
            seen.add(body)
            first_copies[message["queue"]].append(order[body])
    lost = [name for name, place in acked.items() if place not in places[name]]
    assert not lost, f"{len(lost)} acked lines are missing: {lost[:5]}"
    for queue, numbers in first_copies.items():
        assert numbers == sorted(numbers), f"queue {queue} is out of order"
    assert len(acked) + len(unknown) == len(sent)


def test_consumer_process_follows(broker: BrokerProcess) -> None:
    """Goal: `--follow --count` sees what is sent after it started, then ends."""
    run_mq("topic", "create", "live", "--queues", "1", address=broker.address).ok()
    follower = subprocess.Popen(
        [*MQ, "consume", "live", "--follow", "--count", "3", "--connect", broker.address],
        stdout=subprocess.PIPE,
    )
    with Producer(broker.address) as producer:
        for body in (b"a", b"b", b"c"):
            producer.send(Message("live", body))
    out, _ = follower.communicate(timeout=60)
    assert (out, follower.returncode) == (b"a\nb\nc\n", 0)


def test_python_is_this_one() -> None:
    """The processes above must run the code under test, not another installation."""
    out = subprocess.run(
        [sys.executable, "-c", "import cometmq; print(cometmq.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    import cometmq

    assert out.strip() == cometmq.__file__
