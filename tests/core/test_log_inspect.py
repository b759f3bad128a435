"""`mq log inspect`: what it says of an intact log, and of every way in which one is not."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cometmq.batch import RecordTuple, encode_messages, parse
from cometmq.cli import cli
from cometmq.log.log import Log
from cometmq.log.settings import LogSettings
from cometmq.real_environment import RealEnvironment
from cometmq_plugins.group_commit import GroupCommit
from cometmq_plugins.segments import SegmentStorage


def make_log(data: Path) -> None:
    """A log of two starts and two clean stops, with a roll in each."""

    async def run() -> None:
        for _ in range(2):
            environment = RealEnvironment()
            storage = SegmentStorage(
                environment,
                environment.files,
                str(data),
                persistent=True,
                step_bytes=64 << 10,
                reserve_bytes=0,
            )
            settings = LogSettings(mark_idle_ms=60_000)
            log = Log(storage, GroupCommit("disk", 500, 0), environment, settings=settings)
            await log.open()
            for _ in range(2):
                for queue in range(4):
                    record: RecordTuple = (1_700_000_000_000, b"body" * 20, "", (), {})
                    batch = parse(encode_messages("orders", queue, [record] * 3))
                    log.append(batch, incarnation=1, queue=queue)
                log.write()
                log.roll()
            await log.close()
            environment.threads.close()

    asyncio.run(run())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("made") / "data"
    make_log(data)
    return data


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """A copy of the log to do harm to."""
    copy = tmp_path / "data"
    shutil.copytree(made, copy)
    return copy


def segments(data: Path) -> list[Path]:
    return sorted((data / "log").glob("*.seg"))


def inspect(data: Path, *options: str) -> Result:
    result = CliRunner().invoke(cli, ["log", "inspect", str(data), *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def report(data: Path) -> dict[str, Any]:
    result = inspect(data, "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert (result.exit_code == 0) == found["intact"] == (not found["findings"])
    return found


def findings(data: Path) -> list[tuple[str, str, int]]:
    return [(f["kind"], Path(f["file"]).name, f["position"]) for f in report(data)["findings"]]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def last_end(data: Path) -> int:
    """How many bytes of the last segment file hold batches."""
    last = report(data)["segments"][-1]
    return int(last["end"] - last["base"])


def messages_at(data: Path, segment: int) -> list[dict[str, Any]]:
    lines = inspect(data, "--json", "--batches").stdout.splitlines()
    batches = [json.loads(line) for line in lines[:-1]]
    base = int(segments(data)[segment].stem)
    size = segments(data)[segment].stat().st_size
    mine = [b for b in batches if base <= b["position"] < base + size]
    return [batch for batch in mine if batch["kind"] == "messages"]


def test_an_intact_log(data: Path) -> None:
    found = report(data)
    assert found["findings"] == found["notes"] == []
    assert (found["start"], len(found["log_id"])) == (0, 16)
    files = [segment["file"] for segment in found["segments"]]
    assert files == [str(path) for path in segments(data)]
    assert all(segment["checkpoint"] == "whole" for segment in found["segments"])
    assert sum(segment["messages"] for segment in found["segments"]) == 48
    assert [segment["index"] for segment in found["segments"]][-1] == "open"
    assert all(segment["batches"]["segment-start"] == 1 for segment in found["segments"])
    ends = [segment["end"] for segment in found["segments"]]
    assert ends == [*[segment["base"] for segment in found["segments"]][1:], found["end"]]


def test_the_table_for_people(data: Path) -> None:
    result = inspect(data)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith("all is intact: every batch")
    verified = CliRunner().invoke(cli, ["log", "verify", str(data)])
    assert verified.stdout.splitlines()[-1].endswith("every queue's offsets")
    assert "checkpoint" in result.stdout
    assert "segment-start" in result.stdout


def test_every_batch_is_listed(data: Path) -> None:
    lines = inspect(data, "--batches").stdout.splitlines()
    listed = [line for line in lines if "orders (incarnation 1) queue 2" in line]
    assert len(listed) == 4
    assert "offsets 0 to 2" in listed[0]
    batches = [
        json.loads(line) for line in inspect(data, "--batches", "--json").stdout.splitlines()
    ]
    counted = report(data)["segments"]
    assert len(batches) - 1 == sum(sum(s["batches"].values()) for s in counted)


def test_prepared_zeros_are_intact(data: Path) -> None:
    end = last_end(data)
    last = segments(data)[-1]
    last.write_bytes(last.read_bytes()[:end] + bytes(100_000))
    assert findings(data) == []
    assert report(data)["segments"][-1]["prepared"] == 100_000
    first = segments(data)[0]
    first.write_bytes(first.read_bytes() + bytes(5000))
    assert findings(data) == []
    assert report(data)["segments"][0]["prepared"] == 5000


def test_index_files_may_be_missing_but_not_wrong(data: Path) -> None:
    first = segments(data)[0]
    side = first.with_suffix(".queue")
    side.unlink(missing_ok=True)
    assert findings(data) == []
    assert report(data)["segments"][0]["index"] == "missing"
    side.write_bytes(b"no index" * 20)
    assert findings(data) == [("index", side.name, 0)]
    assert report(data)["segments"][0]["index"] == "bad"


def test_a_torn_tail(data: Path) -> None:
    last = segments(data)[-1]
    end = last_end(data)
    last.write_bytes(last.read_bytes()[: end - 10])
    ((kind, name, position),) = findings(data)
    assert (kind, name) == ("torn", last.name)
    assert int(last.stem) < position < int(last.stem) + end
    assert "the next start cuts" in inspect(data).stdout


def test_torn_bytes_before_prepared_zeros(data: Path) -> None:
    last = segments(data)[-1]
    end = last_end(data)
    last.write_bytes(last.read_bytes()[: end - 10] + bytes(9000))
    assert [kind for kind, _, _ in findings(data)] == ["torn"]


@pytest.mark.parametrize("where", [20, 73, -1])
def test_a_flipped_byte(data: Path, where: int) -> None:
    hit = messages_at(data, 1)[1]
    path = segments(data)[1]
    at = hit["position"] - int(path.stem)
    flip(path, at + (where if where >= 0 else hit["length"] - 1))
    assert findings(data) == [("damage", path.name, hit["position"])]
    text = inspect(data).stdout
    assert f"position {hit['position']}" in text
    assert "restore the file" in text


def test_damage_in_the_last_segment_is_told_from_a_torn_tail(data: Path) -> None:
    last = segments(data)[-1]
    base = int(last.stem)
    flip(last, 20)
    assert findings(data) == [("damage", last.name, base)]


def test_a_file_that_ends_early(data: Path) -> None:
    path = segments(data)[1]
    path.write_bytes(path.read_bytes()[:-10])
    assert {(kind, name) for kind, name, _ in findings(data)} == {("damage", path.name)}


def test_a_missing_file_in_the_middle(data: Path) -> None:
    gone = segments(data)[1]
    gone.unlink()
    assert ("damage", segments(data)[0].name, int(gone.stem)) in findings(data)


def test_missing_older_files(data: Path) -> None:
    first, second = segments(data)[:2]
    first.unlink()
    assert findings(data) == [("missing", second.name, 0)]
    assert str(int(second.stem)) in inspect(data).stdout


def test_wrong_names(data: Path) -> None:
    last = segments(data)[-1]
    moved = last.with_name(f"{int(last.stem) + 7:020}.seg")
    last.rename(moved)
    assert ("damage", moved.name, int(moved.stem)) in findings(data)
    odd = moved.with_name("7.seg")
    moved.rename(odd)
    assert ("name", "7.seg", 0) in findings(data)


def test_a_file_of_another_log(data: Path, tmp_path: Path) -> None:
    make_log(tmp_path / "other")
    mine, foreign = segments(data)[-1], segments(tmp_path / "other")[-1]
    shutil.copy(foreign, mine)
    ((kind, name, _),) = findings(data)
    assert (kind, name) == ("damage", mine.name)
    assert "another log" in inspect(data).stdout


def test_bytes_behind_the_end_of_an_earlier_file(data: Path) -> None:
    path, following = segments(data)[:2]
    path.write_bytes(path.read_bytes() + b"more")
    assert findings(data) == [("damage", path.name, int(following.stem))]


def test_no_segment_says_whose_it_is(data: Path) -> None:
    for path in segments(data)[1:]:
        path.unlink()
    flip(segments(data)[0], 20)
    ((kind, _, position),) = findings(data)
    assert (kind, position) == ("damage", 0)


def test_files_that_are_no_part_of_the_log_are_noted(data: Path) -> None:
    (data / "log" / "notes.txt").write_text("hello")
    found = report(data)
    assert found["findings"] == []
    assert "notes.txt is no part of the log" in found["notes"][0]


@pytest.mark.parametrize("size_bytes", [0, 70_000])
def test_a_file_that_the_disk_refused_is_noted_and_no_damage(data: Path, size_bytes: int) -> None:
    intact = report(data)
    batch = messages_at(data, 1)[-1]["position"]
    (data / "log" / f"{batch:020d}.seg").write_bytes(bytes(size_bytes))
    found = report(data)
    assert found["findings"] == []
    assert "the log went on in the one before" in found["notes"][0]
    assert found["segments"] == intact["segments"]


def test_nothing_is_changed(data: Path) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        paths = sorted(path for path in data.rglob("*") if path.is_file())
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}

    flip(segments(data)[1], 30)
    before = state()
    inspect(data)
    assert state() == before


def test_the_log_folder_itself_may_be_named(data: Path) -> None:
    assert findings(data / "log") == []


def test_a_folder_without_a_log_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cometmq.cli", "log", "inspect", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "has no log" in done.stderr
    assert "name the data folder of a broker" in done.stderr


def test_the_exit_code_of_the_command(data: Path) -> None:
    command = [sys.executable, "-m", "cometmq.cli", "log", "inspect", str(data)]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    flip(segments(data)[1], 30)
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 1
