"""RabbitMQ's broker, for its streams and its quorum queues."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.base import Running
from benchmarks.processes import free_port, running, wait_for_port

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
SETTLE_S = 2.0


def missing() -> str:
    """What is not installed, or ""."""
    return "" if SERVER.exists() else "no rabbitmq-server"


def version() -> str:
    """The version of the Debian package."""
    command = ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"]
    told = subprocess.run(command, capture_output=True, text=True)
    return f"RabbitMQ {told.stdout.partition('-')[0] or 'of unknown version'}"


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[Running]:
    """One node with its own epmd; the address is "AMQP port/stream port"."""
    amqp, stream, epmd, distribution = (free_port() for _ in range(4))
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{amqp}\n"
        f"stream.listeners.tcp.1 = 127.0.0.1:{stream}\n"
        f"stream.advertised_host = 127.0.0.1\nstream.advertised_port = {stream}\n"
        "log.file.level = warning\n"
    )
    (folder / "plugins").write_text("[rabbitmq_stream].\n")
    environment = {
        "HOME": str(folder),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(epmd),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": os.devnull,
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }
    log = folder / "broker.log"
    names = ["epmd", "-address", "127.0.0.1", "-port", str(epmd)]
    with running(names, log, environment) as daemon:
        wait_for_port(epmd, daemon, log)
        with running([str(SERVER)], log, environment) as process:
            wait_for_port(amqp, process, log)
            wait_for_port(stream, process, log)
            time.sleep(SETTLE_S)
            yield Running(f"{amqp}/{stream}", [_beam(process.pid)])


def _beam(root: int) -> int:
    """The Erlang machine among a process and what it has started."""
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if Path(f"/proc/{pid}/comm").read_text().strip() == "beam.smp":
            return pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        waiting += [int(child) for child in children.split()]
    raise RuntimeError("rabbitmq-server runs without an Erlang machine")
