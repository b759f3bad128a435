"""`mq doctor` and `mq log verify`: what they see, and what a repair leaves."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cometmq import Message, Producer
from cometmq.batch import RecordTuple, encode_messages, parse, seed
from cometmq.cli import cli
from cometmq.log import Log, LogSettings, RecoveryReport
from cometmq.log.inspection import START_BYTES
from cometmq.log.segment_index import OpenSegment
from cometmq.real_environment import RealEnvironment
from cometmq.testing import EmbeddedBroker
from cometmq.testing.process import MQ
from cometmq_plugins.group_commit import GroupCommit
from cometmq_plugins.segments import SegmentStorage

QUEUES = range(3)


async def opened(data: Path) -> tuple[Log, RecoveryReport, RealEnvironment]:
    environment = RealEnvironment()
    storage = SegmentStorage(
        environment,
        environment.files,
        str(data),
        persistent=True,
        step_bytes=1 << 14,
        reserve_bytes=1 << 14,
    )
    settings = LogSettings(mark_idle_ms=60_000)
    log = Log(storage, GroupCommit("disk", 500), environment, settings=settings)
    return log, await log.open(), environment


async def closed(log: Log, environment: RealEnvironment) -> None:
    await log.close()
    environment.threads.close()


def make_log(data: Path, starts: int = 2) -> None:
    """Two segments a start, three queues, clean stops."""

    async def run() -> None:
        for _ in range(starts):
            log, _, environment = await opened(data)
            for round in range(2):
                for queue in QUEUES:
                    record: RecordTuple = (1_700_000_000_000, b"body" * 20, "", (), {})
                    batch = parse(encode_messages("orders", queue, [record] * 3))
                    log.append(batch, incarnation=1, queue=queue)
                log.write()
                if round == 0:
                    log.roll()
            await closed(log, environment)

    asyncio.run(run())


def start(data: Path) -> tuple[RecoveryReport, list[int]]:
    """What a start says, and the next offset of every queue."""

    async def run() -> tuple[RecoveryReport, list[int]]:
        log, report, environment = await opened(data)
        offsets = [log.next_offset(1, queue) for queue in QUEUES]
        await closed(log, environment)
        return report, offsets

    return asyncio.run(run())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("made") / "data"
    make_log(data)
    return data


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "data"
    shutil.copytree(made, copy)
    return copy


def mq(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, [*arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def doctor(data: Path, *options: str) -> dict[str, Any]:
    result = mq("doctor", str(data), "--json", *options)
    found: dict[str, Any] = json.loads(result.stdout)
    assert (result.exit_code == 0) == found["healthy"]
    return found


def serious(found: dict[str, Any]) -> list[str]:
    return [c["text"] for c in found["complaints"] if c["severity"] == "error"]


def segments(data: Path, suffix: str = ".seg") -> list[Path]:
    return sorted((data / "log").glob(f"*{suffix}"))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def files_of(data: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(data.rglob("*")) if p.is_file()}


def messages_in(data: Path, segment: Path) -> list[dict[str, Any]]:
    lines = mq("log", "inspect", str(data), "--batches", "--json").stdout.splitlines()
    batches = [json.loads(line) for line in lines[:-1]]
    base, end = int(segment.stem), int(segment.stem) + segment.stat().st_size
    return [b for b in batches if b["kind"] == "messages" and base <= b["position"] < end]


# --- verify -----------------------------------------------------------------------------------


def test_an_intact_log_is_verified(data: Path) -> None:
    assert segments(data, ".queue"), "the log has index files to compare"
    result = mq("log", "verify", str(data))
    assert result.exit_code == 0 and "all is intact" in result.stdout


def test_an_index_with_right_crcs_and_wrong_rows_is_found(data: Path) -> None:
    segment, following = segments(data)[:2]
    log_id = bytes.fromhex(json.loads(mq("log", "inspect", str(data), "--json").stdout)["log_id"])
    index = OpenSegment(int(segment.stem))
    index.add((1, 0), 0, 3, 500, 300, 1_700_000_000_000)
    index.end = int(following.stem)
    side = segment.with_suffix(".queue")
    side.write_bytes(b"".join(index.encode({}, seed(log_id))))
    assert mq("log", "inspect", str(data)).exit_code == 0
    found = json.loads(mq("log", "verify", str(data), "--json").stdout)
    assert [finding["kind"] for finding in found["findings"]] == ["index"]
    assert "not the index of its segment" in found["findings"][0]["text"]


def test_damage_is_told_once_and_not_as_a_hole_in_the_offsets(data: Path) -> None:
    segment = segments(data)[1]
    hit = messages_in(data, segment)[1]
    flip(segment, hit["position"] - int(segment.stem) + 30)
    found = json.loads(mq("log", "verify", str(data), "--json").stdout)
    assert [(f["kind"], f["position"]) for f in found["findings"]] == [("damage", hit["position"])]


# --- doctor -----------------------------------------------------------------------------------


def test_a_healthy_folder(data: Path) -> None:
    found = doctor(data)
    assert (found["starts"], serious(found)) == ("writes", [])
    assert "the next start serves reads and writes" in mq("doctor", str(data)).stdout


@pytest.mark.parametrize(("limit", "warned"), [("500:600", True), ("500:11000", False)])
def test_a_limit_on_open_files_that_is_too_low(data: Path, limit: str, warned: bool) -> None:
    """What `mq run` could raise is not too low."""
    done = subprocess.run(
        ["prlimit", f"--nofile={limit}", *MQ, "doctor", str(data), "--json"],
        capture_output=True,
        check=True,
    )
    said = [c["text"] for c in json.loads(done.stdout)["complaints"] if c["severity"] == "warning"]
    assert any("may open 600 files" in text for text in said) == warned, said


def test_looking_changes_nothing(data: Path) -> None:
    flip(segments(data)[1], 30)
    before = files_of(data)
    doctor(data)
    assert files_of(data) == before


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["doctor", str(tmp_path)])
    assert "has no log" in str(result.exception)


def test_a_bad_index_is_set_aside(data: Path) -> None:
    side = segments(data, ".queue")[0]
    flip(side, 5)
    found = doctor(data)
    assert [c["file"] for c in found["complaints"] if c["repair"] == "set-aside"] == [str(side)]
    bad = side.read_bytes()
    found = doctor(data, "--repair")
    assert len(found["done"]) == 1 and not side.exists()
    assert (data / "cut" / side.name).read_bytes() == bad
    assert start(data)[1] == [12, 12, 12]


def test_a_bad_node_id_is_set_aside(data: Path) -> None:
    (data / "node").write_bytes(b"\0" * 17)
    found = doctor(data)
    assert found["starts"] == "fails" and "is no node id" in serious(found)[0]
    assert doctor(data, "--repair")["healthy"]
    assert (data / "cut" / "node").exists()
    assert not start(data)[0].in_doubt


@pytest.mark.parametrize("gone", ["*.seg", "*"])
def test_a_bad_node_id_beside_an_empty_log_is_set_aside(data: Path, gone: str) -> None:
    for path in (data / "log").glob(gone):
        path.unlink()
    if gone == "*":
        (data / "log").rmdir()
    found = doctor(data)
    assert (found["starts"], serious(found)) == ("writes", [])
    (data / "node").write_bytes(b"\0" * 17)
    found = doctor(data)
    assert found["starts"] == "fails" and "is no node id" in serious(found)[0]
    found = doctor(data, "--repair")
    assert found["healthy"] and (data / "cut" / "node").exists()


def test_doubt_is_named_and_the_end_is_cut_only_when_told(data: Path) -> None:
    segment = segments(data)[-1]
    hit = messages_in(data, segment)[1]
    flip(segment, hit["position"] - int(segment.stem) + 30)
    found = doctor(data)
    assert found["starts"] == "only reads"
    assert any(f"all from position {hit['position']} on" in text for text in serious(found))
    before = files_of(data)
    found = doctor(data, "--repair")
    assert not found["healthy"] and files_of(data).keys() == before.keys()
    found = doctor(data, "--cut")
    assert found["healthy"] and found["starts"] == "writes"
    (kept,) = (data / "cut").iterdir()
    bytes_cut = before[str(segment)][hit["position"] - int(segment.stem) :]
    assert kept.read_bytes() == bytes_cut.rstrip(b"\0")
    report, offsets = start(data)
    assert not report.in_doubt and offsets == [12, 9, 9]
    assert mq("log", "verify", str(data)).exit_code == 0


def test_damage_before_the_checkpoint_is_not_cut(data: Path) -> None:
    segment = segments(data)[0]
    hit = messages_in(data, segment)[1]
    flip(segment, hit["position"] + 30)
    found = doctor(data, "--repair", "--cut")
    assert found["starts"] == "writes" and found["done"] == []
    assert start(data)[1] == [12, 12, 12]


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--cut", "note: there is nothing to cut"),
        ("--repair", "note: there is nothing that --repair"),
    ],
)
def test_what_was_asked_for_and_has_nothing_to_do_is_said(
    data: Path, option: str, sentence: str
) -> None:
    result = mq("doctor", str(data), option)
    assert result.exit_code == 0 and sentence in result.stdout
    assert "nothing" not in mq("doctor", str(data)).stdout


def test_a_first_start_that_was_cut_off_is_moved_aside(tmp_path: Path) -> None:
    """So little of it is there that it can't be told which log it is, and no message can be."""
    data = tmp_path / "first"
    with EmbeddedBroker(data=str(data)) as broker, Producer(broker.address) as producer:
        producer.send(Message("t", b"x"))
    (segment,) = segments(data)
    assert messages_in(data, segment)[0]["position"] > START_BYTES
    whole = segment.read_bytes()
    segment.write_bytes(whole[:100] + bytes(1 << 16))
    found = doctor(data)
    assert found["starts"] == "only reads"
    assert any("no message was ever in it" in each["text"] for each in found["complaints"])
    found = doctor(data, "--repair")
    assert found["starts"] == "writes" and len(found["done"]) == 1
    assert (data / "cut" / segment.name).read_bytes()[:100] == whole[:100]
    assert not start(data)[0].in_doubt


def test_a_beginning_with_something_behind_it_is_not_moved_aside(tmp_path: Path) -> None:
    data = tmp_path / "first"
    make_log(data, starts=1)
    first, *others = segments(data)
    for each in others:
        each.unlink()
    content = bytearray(first.read_bytes())
    content[:200] = bytes(200)
    first.write_bytes(content)
    found = doctor(data, "--repair")
    assert found["starts"] == "only reads" and first.exists()


def test_a_torn_end_is_left_to_the_next_start(data: Path) -> None:
    segment = segments(data)[-1]
    end = len(segment.read_bytes().rstrip(b"\0"))
    segment.write_bytes(segment.read_bytes()[: end - 10])
    found = doctor(data)
    assert found["healthy"] and found["starts"] == "writes"
    assert any("the next start cuts" in c["text"] for c in found["complaints"])


def test_a_folder_that_is_served_is_looked_at_with_a_note(data: Path) -> None:
    async def run() -> Result:
        log, _, environment = await opened(data)
        before = (data / "lock").read_bytes()
        result = await asyncio.to_thread(CliRunner().invoke, cli, ["doctor", str(data)])
        assert (data / "lock").read_bytes() == before
        await closed(log, environment)
        return result

    note = f"note: process {os.getpid()} serves this folder"
    assert note in asyncio.run(run()).stdout
    assert "serves this folder" not in mq("doctor", str(data)).stdout


def test_nothing_is_repaired_under_a_running_broker(data: Path) -> None:
    flip(segments(data, ".queue")[0], 5)

    async def run() -> BaseException | None:
        log, _, environment = await opened(data)
        result = await asyncio.to_thread(CliRunner().invoke, cli, ["doctor", str(data), "--repair"])
        await closed(log, environment)
        return result.exception

    assert "is in use by process" in str(asyncio.run(run()))
