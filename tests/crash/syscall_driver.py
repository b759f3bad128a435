"""What tests/crash/test_syscalls.py runs: `visit FOLDER` under strace, then `judge FOLDER` without.

strace kills a process at its WHEN-th call of each system call that matters. For every scenario,
system call and n, a forked child makes just so many calls that fail at once that the n-th of the
scenario is the deadly one. What it leaves stays in a folder of its own: `SCENARIO/SYSCALL-N`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cometmq.batch import Batch, RecordTuple, decode_messages, encode_messages, parse
from cometmq.errors import CometError
from cometmq.log import Log, LogSettings, Outcome
from cometmq.log.inspection import inspect_log
from cometmq.message import NOWHERE, ReceivedMessage
from cometmq.protocol import Status
from cometmq.real_environment import RealClock, RealRandom
from cometmq.real_files import RealFiles
from cometmq.testing.environment import InlineThreads
from cometmq_plugins.group_commit import GroupCommit
from cometmq_plugins.segments import SegmentStorage

NO_FILE = 1 << 20
"""A descriptor that nobody has."""
SYSCALLS: dict[str, Callable[[], object]] = {
    "pwritev2": lambda: os.pwritev(NO_FILE, [b"x"], 0),
    "fdatasync": lambda: os.fdatasync(NO_FILE),
    "fsync": lambda: os.fsync(NO_FILE),
    "ftruncate": lambda: os.ftruncate(NO_FILE, 0),
    "fallocate": lambda: os.posix_fallocate(NO_FILE, 0, 1),
    "openat": lambda: os.open("", os.O_RDONLY),
    "rename": lambda: os.rename("", ""),
    "unlink": lambda: os.unlink(""),
    "mkdir": lambda: os.mkdir(""),
}
"""Name, and a call of it that fails at once."""
WHEN = dict.fromkeys(SYSCALLS, 100) | {"openat": 3000}
"""Which call kills; the parent, which imports everything, opens many files itself."""
TEMPLATE = "template"
ACKNOWLEDGED = "acknowledged"
"""A file in each folder: how many messages were told to be safe."""
QUEUES = 3
SETTINGS = LogSettings(mark_idle_ms=60_000, checkpoint_step_bytes=200, background_ms=1)


async def at_once(function: Callable[[], float]) -> float:
    return function()


class OneThread:
    """An environment whose every system call is made by one thread, so that they can be counted."""

    def __init__(self) -> None:
        self.clock = RealClock()
        self.random = RealRandom()
        self.threads = InlineThreads()
        self.files = RealFiles(at_once)


class Kit:
    """One log on real files. `told` gets a byte for every message that is acknowledged."""

    def __init__(self, data: Path, told: int, ready: Callable[[], None]) -> None:
        self.told = told
        self.ready = ready
        """To be called where the counting begins."""
        self.environment = OneThread()
        storage = SegmentStorage(
            self.environment,
            self.environment.files,
            str(data),
            persistent=True,
            step_bytes=1 << 14,
            reserve_bytes=1 << 14,
        )
        self.storage = storage
        self.log = Log(storage, GroupCommit("disk", 500), self.environment, settings=SETTINGS)

    def append(self, count: int = 1) -> int:
        """Append batches of one message to the queues in turn; the position behind them."""
        end = 0
        for _ in range(count):
            number = sum(self.log.next_offset(1, queue) for queue in range(QUEUES))
            record: RecordTuple = (1_700_000_000_000, b"%d" % number, "", (), {})
            queue = number % QUEUES
            batch = parse(encode_messages("topic", queue, [record]))
            end = self.log.append(batch, incarnation=1, queue=queue).end
        return end

    async def send(self, count: int) -> None:
        """Append, and tell each that is on disk."""
        for _ in range(count):
            end = self.append()
            done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            self.log.wait("disk", end, done.set_result)
            self.log.write()
            assert await done is Outcome.REACHED
            os.write(self.told, b"x")

    async def checkpointed(self) -> None:
        """Wait until the head checkpoint has ended and is on disk."""
        while self.log._writer.checkpointing:
            await asyncio.sleep(0.001)
        await self.send(1)

    async def rolled(self) -> None:
        await self.checkpointed()
        self.log.roll()


Act = Callable[[Kit], Awaitable[None]]


class Scenario(NamedTuple):
    name: str
    prepare: Act
    act: Act
    """Begins with the log closed; calls `kit.ready()` before what is swept."""


async def nothing(kit: Kit) -> None:
    kit.ready()


async def some(kit: Kit) -> None:
    """Three segments, and an end that no mark closes."""
    await kit.log.open()
    for _ in range(2):
        await kit.send(4)
        await kit.rolled()
    await kit.send(3)


async def torn(kit: Kit) -> None:
    """The same with an unsynced and damaged end."""
    await some(kit)
    at = kit.append() - 20
    kit.append(2)
    kit.log.write()
    segment = kit.storage.segments()[-1]
    descriptor = os.open(segment.name, os.O_RDWR)
    os.pwrite(descriptor, b"\xff", at - segment.base)


async def start(kit: Kit) -> None:
    kit.ready()
    await kit.log.open()
    await kit.send(2)


async def stop(kit: Kit) -> None:
    await kit.log.open()
    await kit.send(2)
    kit.append()
    kit.ready()
    await kit.log.close()


async def roll(kit: Kit) -> None:
    await kit.log.open()
    await kit.checkpointed()
    kit.append(2)
    kit.ready()
    kit.log.roll()
    await kit.send(3)
    await asyncio.sleep(0.005)
    await kit.send(1)


async def taken_back(kit: Kit) -> None:
    """The old segment can't be closed, so the new one is removed again; the next try works."""
    await kit.log.open()
    await kit.checkpointed()
    kit.append(2)
    seal = kit.storage.seal

    def refuse(end: int) -> None:
        raise OSError(errno.EIO, "not now")

    kit.storage.seal = refuse  # type: ignore[method-assign]
    kit.ready()
    assert not kit.log.roll()
    await kit.send(1)
    kit.storage.seal = seal  # type: ignore[method-assign]
    assert kit.log.roll()
    await kit.send(2)


async def checkpoint(kit: Kit) -> None:
    await kit.log.open()
    await kit.rolled()
    kit.ready()
    while kit.log._writer.checkpointing:
        await kit.send(1)
    await kit.send(2)


async def trim(kit: Kit) -> None:
    await kit.log.open()
    await kit.checkpointed()
    kit.ready()
    await kit.log.trim(kit.storage.segments()[-1].base)
    await kit.send(2)


async def cut(kit: Kit) -> None:
    """Take back what nobody was told, as after a failed write or a lost election."""
    await kit.log.open()
    await kit.send(2)
    end = kit.log.appended
    kit.append(2)
    kit.log.write()
    kit.ready()
    kit.log.truncate(end)
    await kit.send(1)


SCENARIOS = [
    Scenario("first start", nothing, start),
    Scenario("start", some, start),
    Scenario("start on a torn end", torn, start),
    Scenario("clean stop", some, stop),
    Scenario("roll", some, roll),
    Scenario("roll taken back", some, taken_back),
    Scenario("checkpoint", some, checkpoint),
    Scenario("trim", some, trim),
    Scenario("cut", some, cut),
]


def in_child(work: Callable[[], Awaitable[None]]) -> int:
    """Do it in a forked process; how that ended, as of os.waitstatus_to_exitcode."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        asyncio.run(_awaited(work))
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    os._exit(code)


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def burn(syscall: str, count: int) -> None:
    for _ in range(count):
        with suppress(OSError):
            SYSCALLS[syscall]()


def die(scenario: Scenario, template: Path, folder: Path, syscall: str, n: int) -> str:
    """Be killed at the n-th call. `early`: before the place where counting begins, `late`: there
    are not so many calls; else "killed"."""
    assert in_child(partial(renew, folder, template)) == 0
    heard, told = os.pipe()

    def ready() -> None:
        burn(syscall, WHEN[syscall] - n)
        os.write(told, b"r")

    code = in_child(lambda: scenario.act(Kit(folder, told, ready)))
    os.close(told)
    said = os.read(heard, 1 << 16)
    os.close(heard)
    before = int((template / ACKNOWLEDGED).read_text())
    (folder / ACKNOWLEDGED).write_text(str(before + said.count(b"x")))
    if code not in (0, -9):
        sys.exit(f"{scenario.name}, {syscall} number {n}: failed by itself ({code})")
    if code == 0:
        return "late"
    return "killed" if b"r" in said else "early"


async def renew(folder: Path, template: Path) -> None:
    """In a child, since these calls count, too."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)


def visit(scratch: Path, scenario: Scenario, syscall: str) -> None:
    """Leave a folder for each n."""
    home = scratch / scenario.name
    n = 1
    while True:
        folder = home / f"{syscall}-{n}"
        ended = die(scenario, home / TEMPLATE, folder, syscall, n)
        if ended != "killed":
            assert in_child(partial(remove, folder)) == 0
        if ended == "late":
            return
        n += 1
        if n >= WHEN[syscall]:
            sys.exit(f"{scenario.name} makes more than {WHEN[syscall]} calls of {syscall}")


async def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def prepare(scratch: Path, scenario: Scenario) -> None:
    template = scratch / scenario.name / TEMPLATE
    template.mkdir(parents=True)
    heard, told = os.pipe()
    kit = Kit(template, told, lambda: None)
    if in_child(lambda: scenario.prepare(kit)):
        sys.exit(f"{scenario.name}: could not be prepared")
    os.close(told)
    (template / ACKNOWLEDGED).write_text(str(os.read(heard, 1 << 16).count(b"x")))


# --- what was left ----------------------------------------------------------------------------


def judge_all(scratch: Path) -> None:
    """Print what is wrong, and how many places there were."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for home in sorted(scratch.iterdir()):
        counts: Counter[str] = Counter()
        for folder in sorted(home.glob("*-*")):
            try:
                asyncio.run(judge(folder, int((folder / ACKNOWLEDGED).read_text()), nowhere))
            except (AssertionError, CometError) as error:
                sys.exit(f"{folder}: {error}")
            counts[folder.name.partition("-")[0]] += 1
        print(f"{home.name}: {sum(counts.values())} points {dict(counts)}")


async def judge(folder: Path, acknowledged: int, nowhere: int) -> None:
    """Two starts: all acknowledged messages are there and right, and the log goes on."""
    for _ in range(2):
        kit = Kit(folder, nowhere, lambda: None)
        report = await kit.log.open()
        assert not report.in_doubt and not report.damage, report
        numbers = sorted([number async for number in found(kit)])
        first = numbers[0] if numbers else 0
        assert numbers == list(range(first, first + len(numbers))), f"not whole: {numbers}"
        assert kit.log.start or not first, f"{first} messages are gone without a trim"
        assert first + len(numbers) >= acknowledged, f"{numbers}, but {acknowledged} were told"
        await kit.send(1)
        acknowledged = first + len(numbers) + 1
        await kit.log.close()
        inspected = inspect_log(kit.environment.files, str(folder))
        assert inspected.intact, inspected.findings


async def found(kit: Kit) -> AsyncIterator[int]:
    """The number of each message that can be read."""
    for queue in range(QUEUES):
        low = await kit.log.when_loaded(partial(kit.log.min_offset, 1, queue))
        while low < kit.log.next_offset(1, queue):
            result = await kit.log.read(1, queue, low, 1 << 20)
            assert result.status == Status.OK, result
            for piece in result.batches:
                batch: Batch = parse(bytes(piece))
                for message in decode_messages(batch, NOWHERE):
                    assert isinstance(message, ReceivedMessage) and message.offset == low
                    yield int(message.body)
                    low += 1


def main(mode: str, scratch: Path, syscalls: Sequence[str]) -> None:
    if mode == "judge":
        judge_all(scratch)
        return
    for scenario in SCENARIOS:
        prepare(scratch, scenario)
        for syscall in syscalls:
            visit(scratch, scenario, syscall)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
