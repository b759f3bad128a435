"""Apache Kafka (KRaft, one node, broker and controller in one JVM) through confluent-kafka."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import java
from benchmarks.peers.base import BUFFER_BYTES, QUEUES, Acked, Client, Peer, Running, Take
from benchmarks.processes import free_port, log_end, running, wait_for_port
from benchmarks.steps import WORKLOADS, Level, Step

TIMEOUT_S = 60.0
CONSUME = 2000
TOPICS_PER_CALL = 50
CLUSTER_ID = "Q29tZXRNUS1iZW5jaG1hcg"
# The flags that kafka-run-class.sh gives, with its heap of 1 GiB.
JVM = ["-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
JVM += ["-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"]
JVM += ["-Djava.awt.headless=true"]


class Kafka(Peer):
    """Class memory is Kafka as shipped; class disk flushes before each ack."""

    name = "kafka"
    modules = ("confluent_kafka",)
    workloads = tuple(name for name in WORKLOADS if name != "idle")
    publish_variants = ("callbacks", "errors-only")

    def missing(self) -> str:
        return super().missing() or java.missing("kafka")

    def version(self) -> str:
        import confluent_kafka

        client = f"confluent-kafka {confluent_kafka.__version__}"
        return f"Kafka {java.version('kafka', 'kafka_2.13')}, {client}"

    def variants(self, step: Step) -> Sequence[str]:
        # How acks are counted does not matter where batches are small.
        return ("callbacks",) if step.workload == "topics" else super().variants(step)

    @contextlib.contextmanager
    def broker(self, folder: Path, level: Level) -> Iterator[Running]:
        port, log = free_port(), folder / "broker.log"
        config = folder / "server.properties"
        config.write_text(_properties(folder, port, free_port(), level))
        tool = java.command("kafka", "kafka.tools.StorageTool", ["-Xmx256m"])
        with log.open("wb") as output:
            formatted = subprocess.run(
                [*tool, "format", "-t", CLUSTER_ID, "-c", str(config)], stdout=output, stderr=output
            )
        if formatted.returncode:
            raise RuntimeError(f"Kafka's storage tool failed: {log_end(log)}")
        with running([*java.command("kafka", "kafka.Kafka", JVM), str(config)], log) as process:
            wait_for_port(port, process, log)
            address = f"127.0.0.1:{port}"
            _wait_until_it_answers(address)
            yield Running(address, [process.pid])

    def connect(self, address: str, step_role: str) -> Client:
        return KafkaClient(address, step_role)


def _properties(folder: Path, port: int, controller: int, level: Level) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": folder / "logs",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": QUEUES,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    if level == "disk":
        settings["log.flush.interval.messages"] = 1
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _wait_until_it_answers(address: str) -> None:
    from confluent_kafka.admin import AdminClient

    AdminClient({"bootstrap.servers": address}).list_topics(timeout=TIMEOUT_S)


class KafkaClient:
    """See `Client`. Two ways to count acks: a callback for each, or only for those that fail."""

    def __init__(self, address: str, role: str) -> None:
        self._address = address
        self._role = role
        self._producers: dict[bool, Any] = {}
        self._failed: list[object] = []

    def _producer(self, errors_only: bool = False) -> Any:
        """Made when first asked for: a reader needs none."""
        if errors_only not in self._producers:
            from confluent_kafka import Producer

            options: dict[str, object] = {
                "bootstrap.servers": self._address,
                "acks": 1,
                "delivery.report.only.error": errors_only,
            }
            # With its 5 ms a lone message would wait for others that never come.
            if self._role in ("one", "paced"):
                options["linger.ms"] = 0
            else:
                options["queue.buffering.max.kbytes"] = BUFFER_BYTES >> 10
            self._producers[errors_only] = Producer(options)
        return self._producers[errors_only]

    def create_topics(self, names: Sequence[str]) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self._address})
        for first in range(0, len(names), TOPICS_PER_CALL):
            some = names[first : first + TOPICS_PER_CALL]
            topics = [NewTopic(name, QUEUES, 1) for name in some]
            for made in admin.create_topics(topics, operation_timeout=TIMEOUT_S).values():
                made.result()
        # Partitions get their leaders a moment after they are made.
        time.sleep(1.0)

    def publish(self, topics: Sequence[str], body: bytes, count: int, variant: str) -> Acked:
        errors_only = variant == "errors-only"
        producer, acked, failed = self._producer(errors_only), 0, self._failed

        def on_delivery(error: object, message: object) -> None:
            nonlocal acked
            if error is None:
                acked += 1
            else:
                failed.append(error)

        produce, poll = producer.produce, producer.poll
        for topic in itertools.islice(itertools.cycle(topics), count):
            while True:
                try:
                    produce(topic, body, on_delivery=on_delivery)
                    break
                except BufferError:
                    poll(0.01)
            poll(0)
        left = producer.flush(TIMEOUT_S)
        if failed or left:
            raise RuntimeError(f"{left} messages not acked, {len(failed)} failed: {failed[:1]}")
        return lambda: count if errors_only else acked

    def send_one(self, topic: str, body: bytes) -> None:
        outcome: list[object] = []
        producer = self._producer()
        producer.produce(topic, body, on_delivery=lambda error, message: outcome.append(error))
        while not outcome:
            producer.poll(1.0)
        if outcome[0] is not None:
            raise RuntimeError(f"not acked: {outcome[0]}")

    def hand_over(self, topic: str, bodies: list[bytes]) -> None:
        producer = self._producer()
        for body in bodies:
            producer.produce(topic, body, on_delivery=self._note_failure)

    def _note_failure(self, error: object, message: object) -> None:
        if error is not None:
            self._failed.append(error)

    def pause(self, seconds: float) -> None:
        self._producer().poll(0)
        time.sleep(seconds)

    def drain(self) -> None:
        left = self._producer().flush(TIMEOUT_S)
        if left or self._failed:
            raise RuntimeError(f"{left} messages not acked, failed: {self._failed[:1]}")

    def read(self, topic: str, started: Callable[[], None], take: Take) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": f"bench-{os.getpid()}-{topic}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )

        def on_assign(_: object, partitions: list[Any]) -> None:
            # Known offsets, so that the first fetch follows at once: the clock starts here.
            for partition in partitions:
                partition.offset = 0
            started()
            consumer.assign(partitions)

        consumer.subscribe([topic], on_assign=on_assign)
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            batch = consumer.consume(CONSUME, 1.0 if self._role != "follow" else 0.001)
            if batch:
                if take([_body(message) for message in batch]):
                    break
                consumer.commit(asynchronous=True)
                deadline_s = time.monotonic() + TIMEOUT_S
            elif time.monotonic() > deadline_s:
                raise RuntimeError(f"nothing came for {TIMEOUT_S} s")
        consumer.close()

    def close(self) -> None:
        for producer in self._producers.values():
            producer.flush(TIMEOUT_S)


def _body(message: Any) -> bytes:
    if message.error() is not None:
        raise RuntimeError(f"consume failed: {message.error()}")
    body = message.value()
    assert isinstance(body, bytes)
    return body
