"""Runs one step on one peer: a fresh broker, the same warm-up, client processes, counters."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks.peers.base import Job, Peer, Running
from benchmarks.processes import Counters, read_counters
from benchmarks.results import Result, Work
from benchmarks.steps import MIB, Step
from benchmarks.syncs import SyncCounter
from benchmarks.workers import Worker, WorkerFailed

TOPIC, WARM_UP_TOPIC = "bench", "warm-up"
IDLE_S = 20.0
SETTLE_S = 0.5
MAX_WARM_MEMORY = 4096 * MIB


class Measured(msgspec.Struct):
    """What client processes did between two readings of the broker's counters."""

    works: list[Work]
    before: Counters
    after: Counters
    syncs: int | None


class Bench:
    """One step on one started broker; the workloads are its methods, by name in `WORKLOADS`."""

    def __init__(self, peer: Peer, variant: str, step: Step, broker: Running, folder: Path) -> None:
        self.peer = peer
        self.variant = variant
        self.step = step
        self.broker = broker
        self.folder = folder

    def job(self, role: str, **changes: object) -> Job:
        """A job of this step; `changes` are fields of `Job`."""
        step = self.step
        job = Job(
            role,
            self.peer.name,
            self.variant,
            self.broker.address,
            TOPIC,
            WARM_UP_TOPIC,
            step.size_bytes,
            step.count,
            step.warm_up,
            step.topics,
            step.rate,
        )
        return msgspec.structs.replace(job, **changes)

    def start(self, stack: contextlib.ExitStack, job: Job) -> Worker:
        """A client process that is stopped, at the latest, when `stack` ends."""
        return stack.enter_context(Worker(self.peer.worker(job), self.folder))

    def fill(self, count: int, warm_up: int, topic: str = TOPIC) -> None:
        """Publish, unmeasured, what others will read."""
        with contextlib.ExitStack() as stack:
            job = self.job("publish", count=count, warm_up=warm_up, topic=topic)
            worker = self.start(stack, job)
            worker.await_ready()
            worker.go()
            worker.await_done()

    def measure(
        self, workers: Sequence[Worker], finish: Callable[[], None] | None = None
    ) -> Measured:
        """Let ready workers go together; read the broker's counters before that and when the last
        is done (or `finish` has stopped those that go on until then)."""
        warm_memory(2 * self.step.count * self.step.size_bytes + 64 * MIB)
        with SyncCounter(self.broker.pids) as syncs:
            # Before they go: a short run would be half over once its start was heard of.
            before = read_counters(self.broker.pids)
            for worker in workers:
                worker.go()
            workers[0].await_started()
            if finish is not None:
                finish()
            works = [worker.await_done() for worker in workers]
            after = read_counters(self.broker.pids)
        return Measured(works, before, after, syncs.count)

    # --- workloads ----------------------------------------------------------------------------

    def publish(self) -> Result:
        """One or several producers, as fast as they go."""
        with contextlib.ExitStack() as stack:
            return self.result(self.measure(self.producers(stack)))

    topics = publish

    def producers(self, stack: contextlib.ExitStack) -> list[Worker]:
        """Ready producers; the first has made the topics."""
        share = self.step.producers
        workers = []
        for number in range(share):
            job = self.job(
                "publish",
                count=self.step.count // share,
                warm_up=self.step.warm_up // share,
                create=number == 0,
            )
            workers.append(self.start(stack, job))
            if number == 0:
                workers[0].await_ready()
        for worker in workers[1:]:
            worker.await_ready()
        return workers

    def consume(self) -> Result:
        """A reader alone, over what lies there."""
        self.fill(self.step.count, self.step.warm_up)
        with contextlib.ExitStack() as stack:
            reader = self.start(stack, self.job("consume"))
            reader.await_ready()
            return self.result(self.measure([reader]), published=False)

    def both(self) -> Result:
        """A producer at full rate and a reader beside it; the rate is the reader's."""
        with contextlib.ExitStack() as stack:
            producer = self.start(stack, self.job("publish", marker=True))
            producer.await_ready()
            reader = self.start(stack, self.job("follow"))
            reader.await_ready()
            measured = self.measure([producer, reader])
        sent, received = measured.works
        received.start_ns = sent.start_ns
        result = self.result(measured, rated=received)
        result.extra["publish_rate"] = rate_of([sent])
        return result

    def one(self) -> Result:
        """One message at a time."""
        with contextlib.ExitStack() as stack:
            sender = self.start(stack, self.job("one"))
            sender.await_ready()
            return self.result(self.measure([sender]))

    def paced(self) -> Result:
        """A steady rate, and how long each message takes to the reader."""
        with contextlib.ExitStack() as stack:
            producer = self.start(stack, self.job("paced"))
            producer.await_ready()
            reader = self.start(stack, self.job("follow"))
            reader.await_ready()
            measured = self.measure([producer, reader])
        return self.result(measured, rated=measured.works[1])

    def backlog(self) -> Result:
        """The rate of a producer alone, and beside a reader of the old part, from the disk."""
        step = self.step
        self.fill(step.backlog_bytes // step.size_bytes, step.warm_up)
        with contextlib.ExitStack() as stack:
            job = self.job("publish", create=False, warm_up=step.warm_up)
            alone, beside = self.start(stack, job), self.start(stack, job)
            alone.await_ready()
            alone_rate = rate_of(self.measure([alone]).works)
            beside.await_ready()
            drop_from_cache(self.folder)
            job = self.job("consume", count=1 << 60, warm_up=0, until_stopped=True)
            reader = self.start(stack, job)
            reader.await_ready()
            reader.go()
            reader.await_started()
            measured = self.measure([beside], finish=None)
            reader.stop()
            read = reader.await_done()
        result = self.result(measured)
        assert result.rate is not None
        result.extra = {
            "alone_rate": alone_rate,
            "share_of_alone": result.rate / alone_rate,
            "read_rate": rate_of([read]),
        }
        return result

    def idle(self) -> Result:
        """What consumers that wait for nothing cost the broker."""
        with contextlib.ExitStack() as stack:
            before = read_counters(self.broker.pids)
            waiting = self.start(stack, self.job("idle"))
            waiting.await_ready()

            def finish() -> None:
                time.sleep(IDLE_S)
                waiting.stop()

            measured = self.measure([waiting], finish)
        seconds = measured.after.time_s - measured.before.time_s
        cores = (measured.after.cpu_s - measured.before.cpu_s) / seconds
        added = measured.after.rss_anon_mib - before.rss_anon_mib
        result = self.result(measured)
        result.rate = result.broker_cpu_s_per_million = result.client_cpu_s_per_million = None
        result.written_per_body_byte = result.syncs_per_thousand = None
        result.extra = {"broker_cores": cores, "added_rss_anon_mib": added}
        return result

    # --- figures ------------------------------------------------------------------------------

    def result(
        self, measured: Measured, rated: Work | None = None, published: bool = True
    ) -> Result:
        """The figures of a measurement; `rated` is the work whose rate counts (else all)."""
        works, before, after = measured.works, measured.before, measured.after
        count = rated.count if rated else sum(work.count for work in works)
        client_s = sum(work.cpu_s for work in works)
        broker_s = after.cpu_s - before.cpu_s
        elapsed_s = after.time_s - before.time_s
        foreign_s = after.machine_cpu_s - before.machine_cpu_s - broker_s - client_s
        latencies = [work.latency for work in works if work.latency is not None]
        result = Result(
            step=self.step,
            peer=self.peer.name,
            variant=self.variant,
            repetition=0,
            rate=rate_of([rated] if rated else works),
            latency=latencies[0] if latencies else None,
            broker_cpu_s_per_million=broker_s / count * 1e6,
            client_cpu_s_per_million=client_s / count * 1e6,
            rss_anon_mib=after.rss_anon_mib,
            rss_file_mib=after.rss_file_mib,
            foreign_cores=max(0.0, foreign_s / elapsed_s),
        )
        if published:
            written = after.written_bytes - before.written_bytes
            result.written_per_body_byte = written / (count * self.step.size_bytes)
            if measured.syncs is not None:
                result.syncs_per_thousand = measured.syncs / count * 1e3
        return result


def rate_of(works: Sequence[Work]) -> float:
    """Messages a second, from the first start to the last end."""
    start_ns = min(work.start_ns for work in works)
    end_ns = max(work.end_ns for work in works)
    return sum(work.count for work in works) / ((end_ns - start_ns) / 1e9)


def run_step(peer: Peer, variant: str, step: Step, data: Path, repetition: int) -> Result:
    """Do a step on a fresh broker; what fails becomes a result with an error."""
    os.sync()
    try:
        with tempfile.TemporaryDirectory(prefix=f"{peer.name}-", dir=data) as name:
            folder = Path(name)
            with peer.broker(folder, step.level) as broker:
                time.sleep(SETTLE_S)
                bench = Bench(peer, variant, step, broker, folder)
                workload: Callable[[], Result] = getattr(bench, step.workload)
                result = workload()
    except (WorkerFailed, RuntimeError, OSError) as error:
        result = Result(step, peer.name, variant, repetition, error=str(error)[:600])
    result.repetition = repetition
    return result


def warm_memory(size_bytes: int) -> None:
    """Touch memory and free it again, just before the clock starts.

    A virtual machine that gives free pages back to its host pays for each on its next use: a
    write of new pages can be ten times slower. What ran before would decide who pays.
    """
    size_bytes = min(size_bytes, MAX_WARM_MEMORY)
    with contextlib.closing(mmap.mmap(-1, size_bytes)) as memory:
        chunk = bytes(MIB)
        for start in range(0, size_bytes - MIB, MIB):
            memory[start : start + MIB] = chunk


def drop_from_cache(folder: Path) -> None:
    """Write all files of a folder out and let the page cache forget them."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
