"""`mq bench`: how fast is this broker, on this machine, through the public API.

Without `--connect` every step gets a broker of its own, freshly started on an empty folder and
warmed, so that steps don't colour each other. Rates are of messages whose ack, or body, arrived.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

import click
import msgspec

from cometmq.cli.composing import read_settings
from cometmq.cli.fresh_broker import Target, fresh_broker
from cometmq.cli.output import json_option, print_json, print_table
from cometmq.client.consumer import PullConsumer
from cometmq.client.producer import Producer
from cometmq.message import Message
from cometmq.plugins import compose

WARM_UP = 100_000
START_TIMEOUT_S = 30.0
SEND_MANY_CHUNK = 5_000


class Figure(msgspec.Struct):
    """One line of the result. Latencies are microseconds; CPU is seconds a million messages."""

    step: str
    messages: int
    size_bytes: int
    rate: float
    mb_per_s: float
    p50_us: float | None = None
    p99_us: float | None = None
    broker_cpu_s_per_million: float | None = None
    client_cpu_s_per_million: float | None = None


def publish_soon(target: Target, topic: str, body: bytes, count: int) -> list[float]:
    """`send_soon` for each message, then `flush`; counts the receipts that hold a result."""
    with Producer(target.address) as producer:
        receipts = [producer.send_soon(Message(topic, body)) for _ in range(count)]
        producer.flush()
        for receipt in receipts:
            receipt.result(timeout=30)
    return []


def publish_many(target: Target, topic: str, body: bytes, count: int) -> list[float]:
    """`send_many` in lists of 5,000."""
    with Producer(target.address) as producer:
        for start in range(0, count, SEND_MANY_CHUNK):
            messages = [Message(topic, body) for _ in range(min(SEND_MANY_CHUNK, count - start))]
            for result in producer.send_many(messages):
                if isinstance(result, BaseException):
                    raise result
    return []


def publish_one(target: Target, topic: str, body: bytes, count: int) -> list[float]:
    """One `send` after the other; returns the seconds of each."""
    times_s = []
    with Producer(target.address) as producer:
        for _ in range(count):
            start_s = time.perf_counter()
            producer.send(Message(topic, body))
            times_s.append(time.perf_counter() - start_s)
    return times_s


def consume(target: Target, topic: str, body: bytes, count: int) -> list[float]:
    """Poll until `count` messages arrived, counted from the first fetch."""
    with PullConsumer(target.address, topic=topic, start="earliest") as consumer:
        left = count
        while left > 0:
            left -= len(consumer.poll(max_messages=2000, timeout=30.0))
    return []


def paced(target: Target, topic: str, body: bytes, count: int, rate: int = 10_000) -> list[float]:
    """Producer at 10,000/s in this thread, consumer in another; seconds from send to poll."""
    times_s: list[float] = []
    ready = threading.Event()

    def read() -> None:
        with PullConsumer(target.address, topic=topic, start="latest") as consumer:
            consumer.poll(timeout=0.0)
            ready.set()
            while len(times_s) < count:
                for message in consumer.poll(max_messages=1000, timeout=10.0):
                    sent_s = float(message.properties["t"])
                    times_s.append(time.perf_counter() - sent_s)

    with Producer(target.address) as producer:
        producer.send(Message(topic, body))
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        ready.wait(START_TIMEOUT_S)
        start_s = time.perf_counter()
        for number in range(count):
            due_s = start_s + number // 10 * 10 / rate
            if (wait_s := due_s - time.perf_counter()) > 0:
                time.sleep(wait_s)
            stamp = {"t": repr(time.perf_counter())}
            producer.send_soon(Message(topic, body, properties=stamp))
        producer.flush()
        reader.join(START_TIMEOUT_S)
    return times_s


STEPS: dict[str, tuple[Callable[[Target, str, bytes, int], list[float]], float]] = {
    "send_soon": (publish_soon, 1.0),
    "send_many": (publish_many, 1.0),
    "consume": (consume, 1.0),
    "one": (publish_one, 0.01),
    "paced": (paced, 0.1),
}
"""Step to (work, share of `--count` that it does)."""


@click.command()
@click.option("--connect", metavar="ADDRESS", help="A running broker; else a fresh one each step.")
@click.option(
    "--plugins", metavar="NAMES", default="", help="For the fresh broker, as in `mq run`."
)
@click.option(
    "--count",
    type=click.IntRange(min=1000),
    metavar="N",
    default=500_000,
    show_default=True,
    help="Messages of the steps in bulk, 1,000 or more; `one` and `paced` do a share of it.",
)
@click.option(
    "--size",
    "size_bytes",
    type=click.IntRange(0, 900_000),
    metavar="BYTES",
    default=1024,
    show_default=True,
    help="Bytes of a body.",
)
@click.option("--topic", default="bench", show_default=True, help="Where the messages go.")
@click.option("--steps", default=",".join(STEPS), show_default=True, help="Comma-separated.")
@json_option
def bench(
    connect: str | None,
    plugins: str,
    count: int,
    size_bytes: int,
    topic: str,
    steps: str,
    as_json: bool,
) -> None:
    """Measure publish, consume, one at a time, and paced end to end."""
    unknown = sorted(set(steps.split(",")) - set(STEPS))
    if unknown:
        raise click.UsageError(f"--steps knows {', '.join(STEPS)}, not {', '.join(unknown)}")
    if not connect:
        # A wrong name is told here, once, and not by the broker that fails to start.
        compose(read_settings(None, plugins))
    figures = []
    for step in steps.split(","):
        with contextlib.ExitStack() as stack:
            target = Target(connect) if connect else stack.enter_context(fresh_broker(plugins))
            figures.append(_measure(step, target, topic, os.urandom(size_bytes), count))
            if as_json:
                print_json(figures[-1])
    if not as_json:
        _show(figures)


def _measure(step: str, target: Target, topic: str, body: bytes, count: int) -> Figure:
    """Warm the broker, prepare what the step reads, run it, and read the clocks around it."""
    work, share = STEPS[step]
    messages = max(100, int(count * share))
    publish_soon(target, f"{topic}-warm-up", body, min(WARM_UP, count))
    if step == "consume":
        publish_soon(target, topic, body, messages)
    broker_s, client_s, start_s = target.cpu_s(), time.process_time(), time.perf_counter()
    times_s = sorted(work(target, topic, body, messages))
    elapsed_s = time.perf_counter() - start_s
    million = messages / 1e6
    return Figure(
        step=step,
        messages=messages,
        size_bytes=len(body),
        rate=round(messages / elapsed_s),
        mb_per_s=round(messages * len(body) / elapsed_s / 1e6, 1),
        p50_us=round(times_s[len(times_s) // 2] * 1e6) if times_s else None,
        p99_us=round(times_s[len(times_s) * 99 // 100] * 1e6) if times_s else None,
        broker_cpu_s_per_million=round((target.cpu_s() - broker_s) / million, 2)
        if target.pid
        else None,
        client_cpu_s_per_million=round((time.process_time() - client_s) / million, 2),
    )


def _show(figures: list[Figure]) -> None:
    def text(value: float | None) -> object:
        return "" if value is None else value

    print_table(
        [
            "step",
            "messages",
            "msgs/s",
            "MB/s",
            "p50 us",
            "p99 us",
            "broker CPU s/M",
            "client CPU s/M",
        ],
        [
            [
                figure.step,
                f"{figure.messages:,}",
                f"{figure.rate:,.0f}",
                figure.mb_per_s,
                text(figure.p50_us),
                text(figure.p99_us),
                text(figure.broker_cpu_s_per_million),
                text(figure.client_cpu_s_per_million),
            ]
            for figure in figures
        ],
    )
