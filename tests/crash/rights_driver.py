"""What `test_rights` runs without the right to pass over rights: prints what it found as JSON."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

from cometmq import Message, Producer
from cometmq.config import load_config
from cometmq.errors import CometError
from cometmq.log.diagnosis import diagnose
from cometmq.plugins import compose
from cometmq.real_environment import RealEnvironment
from cometmq.testing import EmbeddedBroker

TOPIC = "t"
SETTINGS = {"log.segment_bytes": 1 << 20}


def forbid(data: Path, what: str) -> None:
    """Take rights away: `MODE NAME…`, names being patterns below the data folder."""
    mode, *names = what.split()
    for name in names:
        for path in [data] if name == "." else list(data.glob(name)):
            path.chmod(int(mode, 8))


def allow(data: Path) -> None:
    """Give them back."""
    subprocess.run(["chmod", "-R", "u=rwX", str(data)], check=True)


def serve(data: Path) -> str:
    """What a start comes to: `writes`, or its error."""
    try:
        with (
            EmbeddedBroker(data=str(data), settings=SETTINGS) as broker,
            Producer(broker.address) as producer,
        ):
            producer.send(Message(TOPIC, b"x"), level="disk")
    except CometError as error:
        return str(error)
    return "writes"


def look(data: Path) -> tuple[str, list[str]]:
    """What `mq doctor` says: the next start, and the errors."""
    environment = RealEnvironment()
    composition = compose(load_config(None, {}, {}))
    storage = composition.slot("storage", environment=environment, data=str(data))
    try:
        found = diagnose(environment.files, storage, str(data))
    except OSError as error:
        return "fails", [str(error)]
    finally:
        environment.threads.close()
    return found.starts, [each.text for each in found.complaints if each.severity == "error"]


def roll(data: Path, what: str) -> dict[str, object]:
    """Rights are taken away under a broker that needs new segments, and given back."""
    before = len(list(data.glob("log/*.seg")))
    with (
        EmbeddedBroker(data=str(data), settings=SETTINGS) as broker,
        Producer(broker.address) as producer,
    ):
        began = len(list(data.glob("log/*.seg")))
        log = os.open(data / "log", os.O_RDONLY)  # can be listed without the rights to open it
        forbid(data, what)
        message = Message(TOPIC, bytes(100_000), sharding_key="k")
        sent = [producer.send(message, level="disk").offset for _ in range(25)]
        # Before the rights are back: the broker tries again on its own.
        kept = sum(name.endswith(".seg") for name in os.listdir(log))
        os.close(log)
        allow(data)
        sent += [producer.send(message, level="disk").offset for _ in range(25)]
    rolled = len(list(data.glob("log/*.seg")))
    return {"sent": sent, "segments": [before, began, kept, rolled], "after": serve(data)}


def main() -> None:
    logging.disable(logging.CRITICAL)
    folder, job, *states = sys.argv[1:]
    original = Path(folder) / "original"
    for _ in range(2):
        assert serve(original) == "writes"
    found: dict[str, dict[str, object]] = {}
    for state in states:
        data = Path(folder) / "data"
        shutil.copytree(original, data)
        if job == "empty":
            for path in data.glob("log/*.seg"):
                path.unlink()
        if job != "roll":
            forbid(data, state)
            found[state] = {"doctor": look(data), "start": serve(data)}
        else:
            found[state] = roll(data, state)
        allow(data)
        shutil.rmtree(data)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
