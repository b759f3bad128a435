"""What a newcomer types around groups and folders, and what `mq` answers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from cometmq import Consumer
from cometmq.testing.process import BrokerProcess, run_mq


@pytest.mark.parametrize("arguments", [[], ["group"], ["cleanup"], ["log"], ["topic"]])
def test_a_command_that_lacks_its_verb_shows_its_help_as_it_is(arguments: Sequence[str]) -> None:
    done = run_mq(*arguments)
    shown = run_mq(*arguments, "--help").ok().decode()
    assert (done.code, done.out, done.err) == (2, b"", shown)


def test_the_help_for_a_lacking_verb_is_one_object_if_json_is_wanted() -> None:
    done = run_mq("group", "--json")
    assert (done.code, "error" in json.loads(done.err)) == (2, True)


def test_the_doctor_says_what_a_sound_folder_will_do(broker: BrokerProcess) -> None:
    done = run_mq("doctor", str(broker.data))
    assert done.code == 0, done.err
    assert done.out.decode().splitlines()[-1] == "the next start serves reads and writes"


def test_the_doctor_wants_the_folder_around_the_log(broker: BrokerProcess) -> None:
    done = run_mq("doctor", str(broker.data / "log"))
    assert (done.code, done.err.count("\n")) == (1, 1), done.err
    assert "no folder `log` is in it" in done.err and "data folder of a broker" in done.err


MEMBER = """
import sys
from contextlib import suppress

from cometmq import Consumer

with Consumer(sys.argv[1], group="billing") as consumer:
    consumer.subscribe("bills", handler=lambda message: print("got it", flush=True))
    with suppress(KeyboardInterrupt):
        consumer.run()
print("left")
"""


def test_ctrl_c_ends_a_member_without_a_traceback(broker: BrokerProcess) -> None:
    run_mq("produce", "bills", address=broker.address, text=b"one\n").ok()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", MEMBER, broker.address], stdout=pipe, stderr=pipe
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"got it\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"left\n", b"")
    done = run_mq("group", "lag", "billing", "--json", address=broker.address)
    assert [row["lag"] for row in json.loads(done.ok())] == [0]


@pytest.mark.parametrize("verb", [["reset", "--to", "earliest"], ["delete", "--yes"]])
def test_a_group_at_work_is_told_with_the_option_that_overrules(
    broker: BrokerProcess, verb: Sequence[str]
) -> None:
    run_mq("produce", "bills", address=broker.address, text=b"one\n").ok()
    with Consumer(broker.address, group="billing", client_id="till") as consumer:
        consumer.subscribe("bills")
        message = consumer.receive(timeout=30)
        assert message is not None
        message.ack()
        done = run_mq("group", verb[0], "billing", *verb[1:], address=broker.address)
        assert (done.code, done.err.count("\n")) == (1, 1), done.err
        assert "1 active member ('till')" in done.err
        assert f"before you {verb[0]} it" in done.err and "`--force`" in done.err
