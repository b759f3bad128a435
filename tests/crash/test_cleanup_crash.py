"""The power goes out at every change of the disk during a cleanup, and the process is killed at
its system calls: right bytes or "expired", and topics, groups and offsets as they were.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from cometmq import Admin, Expired, Message, Producer, PullConsumer
from cometmq.batch import decode_messages, parse
from cometmq.broker.offsets import CommittedOffsets, OffsetCommit
from cometmq.broker.topics import Topics
from cometmq.errors import CometError
from cometmq.log import LogSettings
from cometmq.log.records import TopicChange
from cometmq.message import NOWHERE, ReceivedMessage
from cometmq.protocol import Status
from cometmq.testing.files import PowerCut
from cometmq.testing.log_kit import LogKit
from cometmq.testing.process import BrokerProcess, run_mq
from cometmq_plugins.cleanup.options import CleanupOptions
from cometmq_plugins.cleanup.plugin import CleanupPlugin

QUEUES = 2
PADDING = bytes(1000)
SETTINGS = LogSettings(mark_idle_ms=60_000, segment_bytes=1 << 20)
OPTIONS = CleanupOptions(max_age_hours=0, timezone="UTC", pause_ms=10)


class World:
    """A log with topic `topic` (incarnation 1), a group's offsets, and cleanup, on a disk that
    may lose its power."""

    def __init__(self, kit: LogKit, *, one_segment: bool = False) -> None:
        """`one_segment`: all messages are in one, and it fills the disk."""
        self.one_segment = one_segment
        self.kit = kit
        self.plugin = CleanupPlugin(OPTIONS)

    async def open(self) -> None:
        self.topics, self.offsets = Topics(), CommittedOffsets()
        await self.kit.open(views=[self.topics, self.offsets], settings=SETTINGS)
        self.plugin.started(
            SimpleNamespace(
                environment=self.kit.environment,
                log=self.kit.log,
                topics=self.topics,
                offsets=self.offsets,
                report=self.kit.report,
                composition=SimpleNamespace(collect_sound=lambda hook, pressure: []),
            )
        )

    async def prepare(self) -> None:
        """Five segments, or one on a full disk; a commit, and a raised min offset."""
        await self.open()
        log = self.kit.log
        log.append_control("topic-change", [TopicChange(1, "topic", QUEUES, created_ms=5)])
        for segment in range(5):
            for number in range(4):
                await self.kit.send(number % QUEUES, body=b"%d-%d" % (segment, number) + PADDING)
            log.append_control("offset-commit", [OffsetCommit("group", 1, 0, segment, 1)])
            assert self.one_segment or log.roll()
            await self.kit.settle(1.0)
        log.raise_min_offsets({(1, 1): 3})
        await self.kit.settle(1.0)
        if self.one_segment:
            files = self.kit.environment.files
            total, free = files.space("/")
            files.capacity_bytes = (total - free) * 100 // 95

    async def clean(self) -> None:
        """All segments of messages but the last go. Raises TimeoutError when it never ends."""
        task = asyncio.ensure_future(self.plugin._daily())
        for _ in range(1000):
            await self.kit.settle(0.01)
            if task.done():
                task.result()
                return
        task.cancel()
        raise TimeoutError("without power nothing is ever settled")

    async def judge(self) -> None:
        """After a start: what was there is there, from the min offsets on."""
        log, report = self.kit.log, self.kit.report
        assert not report.in_doubt and not report.damage and not report.missing_below, report
        topic = self.topics.get("topic")
        assert topic is not None and (topic.incarnation, topic.queues) == (1, QUEUES)
        place = self.offsets.get("group", 1, 0)
        assert place is not None and place.offset == 4
        low = [await log.when_loaded(lambda: log.min_offset(1, queue)) for queue in range(QUEUES)]  # noqa: B023
        assert low[1] >= 3
        for queue in range(QUEUES):
            assert log.next_offset(1, queue) == 10
            for offset in range(10):
                result = await log.read(1, queue, offset, 1)
                if offset < low[queue]:
                    assert (result.status, result.next_offset) == (Status.EXPIRED, low[queue])
                    continue
                (piece,) = result.batches
                (message,) = decode_messages(parse(bytes(piece)), NOWHERE)
                assert isinstance(message, ReceivedMessage)
                segment, number = divmod(offset, 2)
                assert message.body == b"%d-%d" % (segment, 2 * number + queue) + PADDING
        starts = [segment.base for segment in log.segments()]
        assert starts[0] == log.start, "a deletion that was begun is finished"


async def power_cut_at(world: World, change: int, dice: Random) -> bool:
    """Whether the power went out before the cleanup was done."""
    await world.prepare()
    world.kit.environment.files.cut_power_after(change)
    try:
        await world.clean()
        done = True
    except (PowerCut, CometError, TimeoutError):
        done = False
    world.kit.crash(dice)
    await world.open()
    await world.judge()
    await world.clean()
    await world.judge()
    assert [world.kit.log.min_offset(1, queue) for queue in range(QUEUES)] == [10, 10]
    return not done


def power_cuts(make_world: Callable[[], World], seed: int) -> int:
    """Until there are none left; how many there were."""
    change = 0
    while asyncio.run(power_cut_at(make_world(), change, Random(100 * seed + change))):
        change += 1
    return change


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_every_change_of_the_disk(make_kit: Callable[[], LogKit], seed: int) -> None:
    assert power_cuts(lambda: World(make_kit()), seed) > 12, "five trims, five folders"


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_every_change_while_the_last_segment_is_closed_and_goes(
    make_kit: Callable[[], LogKit], seed: int
) -> None:
    cuts = power_cuts(lambda: World(make_kit(), one_segment=True), seed)
    assert cuts >= 8, "a roll and its head, a trim, a folder"


# --- a real process ---------------------------------------------------------------------------

CONFIG = """
[log]
segment_bytes = 1048576
[plugin.commitlog]
allocate_step_bytes = 262144
reserve_bytes = 1048576
[plugin.cleanup]
max_age_hours = 0
pause_ms = 1
at = "0 0 1 1 *"
"""
SYSCALLS = ("unlink", "fsync", "fdatasync", "pwritev2", "fallocate", "ftruncate", "openat")
MESSAGES = 60
SIZE_BYTES = 100_000


def body(number: int) -> bytes:
    return b"%d:" % number + bytes(SIZE_BYTES)


@contextmanager
def killed_at(broker: BrokerProcess, syscall: str, number: int) -> Iterator[None]:
    """From now on the broker is killed at a thread's call of this number."""
    inject = f"inject={syscall}:signal=KILL:when={number}"
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={syscall}", "-e", inject]
    strace = subprocess.Popen([*command, "-p", str(broker.pid)], stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 30
        while f"TracerPid:\t{strace.pid}" not in Path(f"/proc/{broker.pid}/status").read_text():
            if strace.poll() is not None or time.monotonic() > deadline:
                pytest.skip("this machine lets nobody trace")
            time.sleep(0.01)
        yield
    finally:
        strace.terminate()
        strace.communicate()


def kill_during_cleanup(folder: Path, template: Path, syscall: str, number: int) -> bool:
    """Whether it was killed. What it left is judged by another start."""
    shutil.copytree(template, folder)
    broker = BrokerProcess(folder, "--config", str(template.parent / "mq.toml")).start()
    try:
        with killed_at(broker, syscall, number):
            done = run_mq("cleanup", "run", "--timeout", "4", address=broker.address)
        broker.kill()
        broker.start()
        check(broker.address)
        run_mq("cleanup", "run", address=broker.address).ok()
        check(broker.address)
        assert broker.stop() == 0
        run_mq("log", "inspect", str(broker.data)).ok()
    finally:
        broker.kill()
    shutil.rmtree(folder)
    return done.code != 0


def check(address: str) -> None:
    """Topic, group and offsets are as they were, and every message is right or expired."""
    with (
        Admin(address) as admin,
        PullConsumer(address, topic="orders", start=0) as consumer,
    ):
        assert admin.describe_topic("orders").info.queues == 1
        assert admin.committed("billing", "orders") == {0: 7}
        bounds = admin.offsets("orders")[0]
        assert bounds.max_offset == MESSAGES
        low = bounds.min_offset
        if low:
            with pytest.raises(Expired) as expired:
                consumer.poll(timeout=10)
            assert expired.value.next_offset == low
        while low < MESSAGES:
            for message in consumer.poll(timeout=10):
                assert (message.offset, message.body) == (low, body(low))
                low += 1


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_kill_at_every_system_call_of_a_cleanup(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (apt-get install strace)")
    template = tmp_path / "template"
    template.mkdir()
    (tmp_path / "mq.toml").write_text(CONFIG)
    with BrokerProcess(template, "--config", str(tmp_path / "mq.toml")) as broker:
        with Admin(broker.address) as admin, Producer(broker.address) as producer:
            admin.create_topic("orders", queues=1)
            for number in range(MESSAGES):
                producer.send(Message("orders", body(number)))
            with PullConsumer(broker.address, group="billing", topic="orders") as consumer:
                consumer.seek(7)
                consumer.commit()
        assert broker.stop() == 0
    kills = 0
    for syscall in SYSCALLS:
        number = 1
        while kill_during_cleanup(tmp_path / f"{syscall}-{number}", template, syscall, number):
            number += 1
        print(f"{syscall}: {number - 1} kills")
        kills += number - 1
    assert kills >= 20
