"""A client process: does one job, and tells the controller when it is ready, starts and is done.

It writes lines that begin with `@`: `@ready` once it is set up and warm, then, after the line
`go` on its stdin, `@started`, and `@done` with a `Work` as JSON. A line `stop` ends a job that
goes on until then. What libraries print besides is ignored.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import cast

import msgspec

from benchmarks.pacing import Stopwatch, latency_of, pace, stamped, stamps_of
from benchmarks.peers import peer_named
from benchmarks.peers.base import Client, Idler, Job
from benchmarks.results import Work

ONE_WARM_UP = 1000
"""Lone sends before those that are measured; a small share of what a broker takes."""


def say(word: str, rest: str = "") -> None:
    """A line to the controller."""
    sys.stdout.write(f"@{word} {rest}\n")
    sys.stdout.flush()


def started() -> None:
    """The clock runs from here."""
    say("started")


def await_go() -> None:
    """Be ready, and wait for the controller; raises EOFError when it is gone."""
    say("ready")
    if sys.stdin.readline().strip() != "go":
        raise EOFError("the controller ended before it said go")


def publish(client: Client, job: Job) -> Work:
    """As fast as it goes; from the first send to the last ack."""
    topics, body = job.topic_names(), os.urandom(job.size_bytes)
    if job.create:
        client.create_topics([job.warm_up_topic, *topics])
    if job.warm_up:
        client.publish([job.warm_up_topic], body, job.warm_up, job.variant)()
    if job.marker:
        client.send_one(job.topic, bytes(job.size_bytes))
    await_go()
    started()
    watch = Stopwatch()
    acked = client.publish(topics, body, job.count, job.variant)
    work = watch.stop(job.count)
    if (count := acked()) != job.count:
        raise RuntimeError(f"{count} of {job.count} messages were acked")
    return work


def one(client: Client, job: Job) -> Work:
    """One send after the other, each with its time."""
    body, clock_ns = os.urandom(job.size_bytes), time.perf_counter_ns
    client.create_topics([job.warm_up_topic, job.topic])
    client.publish([job.warm_up_topic], body, job.warm_up, job.variant)()
    for _ in range(min(ONE_WARM_UP, job.count)):
        client.send_one(job.topic, body)
    await_go()
    started()
    watch, times_ns = Stopwatch(), []
    for _ in range(job.count):
        start_ns = clock_ns()
        client.send_one(job.topic, body)
        times_ns.append(clock_ns() - start_ns)
    work = watch.stop(job.count)
    work.latency = latency_of(times_ns)
    return work


def paced(client: Client, job: Job) -> Work:
    """At a steady rate, each body stamped with when it left and when it was due."""
    pad = os.urandom(job.size_bytes)
    client.create_topics([job.warm_up_topic, job.topic])
    client.publish([job.warm_up_topic], pad, job.warm_up, job.variant)()
    client.send_one(job.topic, bytes(job.size_bytes))
    await_go()
    started()
    watch = Stopwatch()
    for due_ns in pace(job.rate, job.count, client.pause):
        client.hand_over(job.topic, [stamped(pad, due) for due in due_ns])
    client.drain()
    return watch.stop(job.count)


def consume(client: Client, job: Job) -> Work:
    """Read what lies there, from the first fetch on; the warm-up's topic first."""
    if job.warm_up:
        client.read(job.warm_up_topic, lambda: None, _counter(job.warm_up, job.size_bytes))
    await_go()
    watch: list[Stopwatch] = []

    def start() -> None:
        started()
        watch.append(Stopwatch())

    if job.until_stopped:
        seen, stopped = [0], _stop_flag()

        def take(bodies: list[bytes]) -> bool:
            seen[0] += len(bodies)
            return stopped.is_set() or seen[0] >= job.count

        client.read(job.topic, start, take)
        return watch[0].stop(seen[0])
    client.read(job.topic, start, _counter(job.count, job.size_bytes))
    return watch[0].stop(job.count)


def _counter(count: int, size_bytes: int) -> Callable[[list[bytes]], bool]:
    """Touches every body, and says stop at the last; raises RuntimeError for a wrong size."""
    seen = read_bytes = 0

    def take(bodies: list[bytes]) -> bool:
        nonlocal seen, read_bytes
        seen += len(bodies)
        read_bytes += sum(map(len, bodies))
        if seen < count:
            return False
        if read_bytes != seen * size_bytes:
            raise RuntimeError(f"{seen} messages had {read_bytes} bytes; sent {size_bytes} each")
        return True

    return take


def follow(client: Client, job: Job) -> Work:
    """Read beside the producer: ready at the marker, then `count` messages and their times."""
    left_ns: list[int] = []
    due_ns: list[int] = []
    seen = [0]
    watch: list[Stopwatch] = []

    def take(bodies: list[bytes]) -> bool:
        now_ns = time.monotonic_ns()
        for sent, due in map(stamps_of, bodies):
            if sent == 0:
                await_go()
                started()
                watch.append(Stopwatch())
                continue
            seen[0] += 1
            if job.rate:
                left_ns.append(now_ns - sent)
                due_ns.append(now_ns - due)
        return seen[0] >= job.count

    client.read(job.topic, lambda: None, take)
    work = watch[0].stop(seen[0])
    work.latency = latency_of(left_ns, due_ns) if job.rate else None
    return work


def idle(client: Client, job: Job) -> Work:
    """Many consumers wait where nothing comes, until the controller says stop."""
    client.create_topics([job.topic])
    stopped: list[threading.Event] = []
    watch: list[Stopwatch] = []

    def ready() -> None:
        await_go()
        started()
        stopped.append(_stop_flag())
        watch.append(Stopwatch())

    cast(Idler, client).idle(job.topic, job.count, ready, lambda: stopped[0].is_set())
    return watch[0].stop(job.count)


def _stop_flag() -> threading.Event:
    """Set once the controller says stop (or is gone)."""
    flag = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        flag.set()

    threading.Thread(target=listen, daemon=True).start()
    return flag


ROLES: dict[str, Callable[[Client, Job], Work]] = {
    "publish": publish,
    "one": one,
    "paced": paced,
    "consume": consume,
    "follow": follow,
    "idle": idle,
}


def main() -> None:
    """Do the job given as the only argument."""
    job = msgspec.json.decode(sys.argv[1], type=Job)
    client = peer_named(job.peer).connect(job.address, job.role)
    work = ROLES[job.role](client, job)
    say("done", msgspec.json.encode(work).decode())
    client.close()


if __name__ == "__main__":
    main()
