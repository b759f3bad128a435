"""What people do wrong at first, and what `mq` answers: one sentence, a next step, an exit code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from cometmq import Admin
from cometmq.testing.process import MQ, BrokerProcess, Done, run_mq

ROOT = Path(__file__).parents[2]
NOBODY = "tcp://127.0.0.1:9"


def one_sentence(done: Done, code: int, *words: str) -> None:
    """It failed with `code`, and said all `words` in one line without a traceback."""
    assert (done.code, done.err.count("\n")) == (code, 1), done.err
    assert done.err.startswith("mq: "), done.err
    for word in words:
        assert word in done.err
    assert "?;" not in done.err


def start_mq(*arguments: str, address: str = "") -> subprocess.Popen[bytes]:
    """`mq` in the background, its three streams at hand."""
    pipe = subprocess.PIPE
    environment = {**os.environ, "MQ_CONNECT": address} if address else None
    return subprocess.Popen(
        [*MQ, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environment
    )


def ended(process: subprocess.Popen[bytes]) -> Done:
    """How it ended, with what it still had to say."""
    out, err = process.communicate(timeout=60)
    return Done(process.returncode, out, err.decode())


# --- the command line -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["porduce", "t"], ["'porduce'", "close to produce", "`mq --help`"]),
        (["frobnicate"], ["known are run, info"]),
        (["topic", "crate", "t"], ["crate", "`mq topic --help`"]),
        (["topic", "descibe", "t"], ["'describe'? `mq topic --help`"]),
        (["--connect", "tcp://127.0.0.1:1", "info"], ["--connect", "after it; `mq --help`"]),
        (["produce"], ["TOPIC", "`mq produce --help`"]),
        (["produce", "t", "--levle", "disk"], ["--levle", "--level", "`mq produce --help`"]),
        (["produce", "t", "no-such-file"], ["no-such-file"]),
        (["produce", "t", "."], ["directory"]),
        (["topic", "alter", "t", "--retention-time"], ["`mq topic alter --help`"]),
        (["produce", "t", "--compression", "gzip"], ["gzip", "zstd", "lz4"]),
        (["produce", "t", "--compression-level", "9"], ["9 without --compression "]),
        (["topic", "create", "t", "--queues", "0"], ["1<=x<=1024"]),
        (["log", "inspect", "no-such-folder"], ["no-such-folder"]),
        (["bench", "--steps", "fly"], ["send_soon", "fly"]),
    ],
)
def test_a_wrong_command_line_is_told_in_one_sentence(
    arguments: Sequence[str], words: Sequence[str]
) -> None:
    one_sentence(run_mq(*arguments), 2, *words)


def test_a_wrong_command_line_is_json_if_that_is_wanted() -> None:
    done = run_mq("topic", "create", "t", "--queues", "0", "--json")
    assert done.code == 2
    assert "--queues" in json.loads(done.err)["error"]


def test_deleting_asks_and_takes_no_answer_as_no(broker: BrokerProcess) -> None:
    run_mq("topic", "create", "kept", address=broker.address).ok()
    nobody = run_mq("topic", "delete", "kept", address=broker.address)
    assert (nobody.code, "--yes" in nobody.err) == (2, True), nobody.err
    refused = run_mq("topic", "delete", "kept", address=broker.address, text=b"n\n")
    assert (refused.code, "not deleted" in refused.err) == (1, True), refused.err
    assert b"kept" in run_mq("topic", "list", address=broker.address).ok()


# --- settings and folders ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[broker]\nlevel = "quorum"\n', ["quorum", "replication"]),
        ('[broker]\nlisten = ["pigeon://here"]\n', ["pigeon://", "tcp://"]),
        ('[broker]\nlisten = ["tcp://0.0.0.0:7800"]\n', ["--insecure"]),
    ],
)
def test_config_check_refuses_what_a_start_refuses(
    tmp_path: Path, text: str, words: Sequence[str]
) -> None:
    path = tmp_path / "mq.toml"
    path.write_text(text)
    data = str(tmp_path / "data")
    one_sentence(run_mq("config", "check", "--config", str(path)), 1, f"{path}:2", *words)
    one_sentence(run_mq("run", "--config", str(path), "--data", data), 1, f"{path}:2", *words)


def test_options_of_a_plugin_that_is_not_enabled_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "mq.toml"
    path.write_text("[plugin.flush-async]\nflush_interval_ms = 200\n")
    done = run_mq("config", "check", "--config", str(path))
    assert (done.code, done.out) == (0, b"ok\n")
    assert "[plugin.flush-async] has no effect" in done.err


def test_a_misspelt_plugin_is_told_once(tmp_path: Path) -> None:
    one_sentence(run_mq("run", "--plugins", "flush-asnyc"), 1, "flush-async")
    one_sentence(run_mq("bench", "--plugins", "memry"), 1, "memory")


def test_a_file_is_no_data_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    done = run_mq("run", "--data", str(path), "--listen", "tcp://127.0.0.1:0")
    one_sentence(done, 1, f"{path} is a file, not a folder")


def test_a_broker_in_memory_claims_no_folder(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--plugins", "memory") as broker:
        out = run_mq("info", address=broker.address).ok().decode()
        assert "nothing survives" in out
    process = start_mq(
        "run", "--plugins", "memory", "--data", str(tmp_path / "m"), "--listen", "tcp://127.0.0.1:0"
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(5)]
    process.send_signal(signal.SIGINT)
    assert ended(process) == Done(0, b"", "")
    assert b"data in memory only\n" in lines
    assert not (tmp_path / "m").exists()


# --- a broker that is not there ---------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [["info"], ["topic", "list"], ["produce", "t"], ["consume", "t"]]
)
def test_nobody_listens(arguments: Sequence[str]) -> None:
    done = run_mq(*arguments, "--timeout", "0.5", address=NOBODY, text=b"line\n")
    one_sentence(done, 3, f"nobody listens on {NOBODY}", "`mq run`")


def test_waiting_for_a_broker_is_told_and_leaves_json_alone() -> None:
    arguments = ("info", "--connect", NOBODY, "--timeout", "1.5")
    told = run_mq(*arguments).err.splitlines()
    assert told[0] == f"mq: waiting for a broker: nobody listens on {NOBODY}" and len(told) == 2
    assert "nobody listens" in json.loads(run_mq(*arguments, "--json").err)["error"]


def test_an_address_without_a_scheme_is_told_how_to_write_it() -> None:
    one_sentence(run_mq("info", "--connect", "localhost:7800"), 1, "as in tcp://127.0.0.1:7800")


def test_a_consume_ends_when_the_broker_dies(broker: BrokerProcess) -> None:
    # More than a client reads ahead, so that it can't know the rest when the broker dies.
    run_mq("produce", "much", address=broker.address, text=(b"x" * 999 + b"\n") * 20_000).ok()
    process = start_mq("consume", "much", "--timeout", "0.5", address=broker.address)
    assert process.stdout is not None
    process.stdout.readline()
    broker.kill()
    done = ended(process)
    waiting, _, sentence = done.err.partition("\n")
    assert waiting == f"mq: waiting for a broker: nobody listens on {broker.address}"
    one_sentence(done._replace(err=sentence), 3, f"mq: nobody listens on {broker.address}, so the ")


def test_a_following_consume_says_that_it_waits_and_goes_on(broker: BrokerProcess) -> None:
    run_mq("topic", "create", "news", "--queues", "1", address=broker.address).ok()
    process = start_mq("consume", "news", "--follow", "--timeout", "0.5", address=broker.address)
    assert process.stdout is not None and process.stderr is not None
    run_mq("produce", "news", address=broker.address, text=b"before\n").ok()
    assert process.stdout.readline() == b"before\n"
    broker.kill()
    assert b"mq: waiting for a broker: " in process.stderr.readline()
    broker.start()
    assert process.stderr.readline().endswith(b" is there\n")
    run_mq("produce", "news", address=broker.address, text=b"after\n").ok()
    assert process.stdout.readline() == b"after\n"
    process.send_signal(signal.SIGINT)
    done = ended(process)
    assert (done.code, "Traceback" in done.err) == (130, False), done.err


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_consume_that_is_asked_to_end_leaves_its_group(
    broker: BrokerProcess, handler: signal.Handlers
) -> None:
    """Also behind the `&` of a script, where a ctrl-C is ignored."""
    run_mq("topic", "create", "news", "--queues", "1", address=broker.address).ok()
    run_mq("produce", "news", address=broker.address, text=b"one\n").ok()
    before = signal.signal(signal.SIGINT, handler)
    try:
        process = start_mq("consume", "news", "--group", "g", "--follow", address=broker.address)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"
    if handler is signal.SIG_IGN:
        process.send_signal(signal.SIGINT)
        run_mq("produce", "news", address=broker.address, text=b"two\n").ok()
        assert process.stdout.readline() == b"two\n"
    process.send_signal(signal.SIGTERM)
    done = ended(process)
    assert (done.code, "Traceback" in done.err) == (130, False), done.err
    with Admin(broker.address) as admin:
        described = admin.describe_group("g")
    assert described.members == []
    assert [queue.owner for queue in described.queues] == [""]


def test_a_produce_stops_where_the_broker_left_it(broker: BrokerProcess) -> None:
    run_mq("topic", "create", "lines", "--queues", "1", address=broker.address).ok()
    process = start_mq("produce", "lines", "--timeout", "0.5", address=broker.address)
    assert process.stdin is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()
    while run_mq("consume", "lines", address=broker.address).ok() != b"first\n":
        time.sleep(0.01)
    broker.kill()
    try:
        while process.poll() is None:  # its stdin never ends: it has to stop by itself
            process.stdin.write(b"more\n")
            process.stdin.flush()
            time.sleep(0.01)
    except BrokenPipeError:
        pass
    process.wait(60)
    assert process.stderr is not None and process.stdout is not None
    err = process.stderr.read().decode()
    for stream in (process.stdin, process.stdout, process.stderr):
        try:
            stream.close()
        except BrokenPipeError:
            pass
    assert process.returncode == 3, err
    assert "1 message, 5 bytes to lines" in err
    assert "nothing behind line" in err and "again when it does" in err


# --- lines that are refused, pipes that close ---------------------------------------------------


def test_lines_refused_for_one_reason_are_one_line(broker: BrokerProcess) -> None:
    text = b'{"body": "good"}\n' + b"17\n" * 1000 + b'{"body": "good"}\nbad\n'
    done = run_mq("produce", "t", "--format", "json", address=broker.address, text=text)
    assert done.code == 1
    first, *others = done.err.splitlines()
    assert first.startswith("2 messages, 32 bytes to t")
    assert [line.partition(" ")[2].partition(":")[0] for line in others[:2]] == [
        "lines 2 to 1,001",
        "line 1,003",
    ]
    assert "1,001 lines not stored" in others[2]
    assert len(others) == 3


@pytest.mark.parametrize("arguments", [["consume", "much"], ["topic", "list"], ["info", "--json"]])
def test_a_reader_that_has_enough_is_no_failure(
    broker: BrokerProcess, arguments: Sequence[str]
) -> None:
    run_mq("produce", "much", address=broker.address, text=b"x\n" * 100_000).ok()
    process = start_mq(*arguments, address=broker.address)
    assert process.stdout is not None
    process.stdout.close()
    process.wait(60)
    assert process.stderr is not None and process.stdin is not None
    with process.stderr, process.stdin:
        assert (process.returncode, process.stderr.read()) == (0, b"")


# --- the quickstart ---------------------------------------------------------------------------


def quickstart(path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(ROOT / "examples/quickstart/run.sh")],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_the_quickstart_reports_nothing_that_looks_like_a_failure() -> None:
    done = quickstart(f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert "the same 100,000 lines out" in done.stdout
    assert "Killed" not in done.stderr


def test_the_quickstart_says_what_is_missing(tmp_path: Path) -> None:
    for tool in ("bash", "mktemp"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    done = quickstart(str(tmp_path))
    assert (done.returncode, done.stderr) == (
        1,
        "mq is not on the PATH; run: pip install .\n",
    )
