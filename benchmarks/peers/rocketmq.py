"""Apache RocketMQ, one name server and one broker, through its own Java client."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.peers import java
from benchmarks.peers.base import Job, Peer, Running, home
from benchmarks.processes import free_port, running, wait_for_port
from benchmarks.steps import Level, Step

MAIN_CLASS = "RocketWork"
# The flags that runbroker.sh gives, with a heap of 2 GiB instead of 8.
JVM = ["-server", "-Xms2g", "-Xmx2g", "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m"]
JVM += ["-XX:G1ReservePercent=25", "-XX:InitiatingHeapOccupancyPercent=30"]
JVM += ["-XX:SoftRefLRUPolicyMSPerMB=0", "-XX:-OmitStackTraceInFastThrow", "-XX:+AlwaysPreTouch"]
JVM += ["-XX:MaxDirectMemorySize=4g", "-XX:-UseLargePages"]
JVM += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "sun.nio.ch")]
LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{path}</file><encoder><pattern>%d %p %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""
SETTLE_S = 3.0
"""From listening to knowing its name server."""


class RocketMQ(Peer):
    """Class memory flushes asynchronously (as shipped), class disk before each ack."""

    name = "rocketmq"
    workloads = ("publish", "consume", "both", "one", "paced", "topics")
    publish_variants = ("async", "auto", "batches")
    native_client = True

    def missing(self) -> str:
        if lack := java.missing("rocketmq"):
            return lack
        if not (home() / "rocketmq" / "classes" / f"{MAIN_CLASS}.class").exists():
            return f"its client {MAIN_CLASS} is not compiled"
        if len(os.listdir("/sys/class/net")) > 1 and not os.environ.get("COMETMQ_BENCH_ALONE"):
            return "it listens on every interface, and no network namespace could be made"
        return ""

    def version(self) -> str:
        return f"RocketMQ {java.version('rocketmq', 'rocketmq-broker')}, its Java client"

    def variants(self, step: Step) -> Sequence[str]:
        found = super().variants(step)
        if step.workload == "topics":
            # A batch belongs to one topic, so going round robin leaves nothing to batch.
            return ("async",)
        # 500 messages of 64 KiB are more than a request may hold.
        return found if step.size_bytes <= 1024 else [name for name in found if name != "batches"]

    @contextlib.contextmanager
    def broker(self, folder: Path, level: Level) -> Iterator[Running]:
        log = folder / "broker.log"
        names, port = free_port(), free_port()
        logback = folder / "logback.xml"
        logback.write_text(LOGBACK.format(path=folder / "rocketmq.log"))
        options = [f"-Drmq.logback.configurationFile={logback}"]
        environment = {"ROCKETMQ_HOME": str(folder), "NAMESRV_ADDR": f"127.0.0.1:{names}"}
        (folder / "names.conf").write_text(f"listenPort={names}\nbindAddress=127.0.0.1\n")
        (folder / "broker.conf").write_text(_properties(folder, names, port, level))
        with contextlib.ExitStack() as stack:
            server = java.command(
                "rocketmq",
                "org.apache.rocketmq.namesrv.NamesrvStartup",
                ["-Xms512m", "-Xmx512m", *options],
            )
            command = [*server, "-c", str(folder / "names.conf")]
            process = stack.enter_context(running(command, log, environment))
            wait_for_port(names, process, log)
            server = java.command(
                "rocketmq", "org.apache.rocketmq.broker.BrokerStartup", [*JVM, *options]
            )
            command = [*server, "-c", str(folder / "broker.conf")]
            process = stack.enter_context(running(command, log, environment))
            wait_for_port(port, process, log)
            time.sleep(SETTLE_S)
            # The name server is not on the path of a message.
            yield Running(f"127.0.0.1:{names}/127.0.0.1:{port}", [process.pid])

    def worker(self, job: Job) -> list[str]:
        fields = msgspec.structs.asdict(job)
        heap = ["-Xms1g", "-Xmx1g", f"-Drocketmq.client.logRoot={home() / 'rocketmq' / 'home'}"]
        command = java.command("rocketmq", MAIN_CLASS, heap)
        return [*command, *(f"{name}={value}" for name, value in fields.items())]


def _properties(folder: Path, names: int, port: int, level: Level) -> str:
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker",
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "namesrvAddr": f"127.0.0.1:{names}",
        "listenPort": port,
        "bindAddress": "127.0.0.1",
        "haListenPort": free_port(),
        "brokerRole": "ASYNC_MASTER",
        "flushDiskType": "SYNC_FLUSH" if level == "disk" else "ASYNC_FLUSH",
        "storePathRootDir": folder / "store",
        "storePathCommitLog": folder / "store" / "commitlog",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())
