"""A log on a modelled disk, driven by hypothesis: any order of sends, rolls, trims, cuts, faults,
kills and power cuts, after which unsynced bytes may be lost, torn at sectors, or reordered.

What fails is shrunk; the printed example replays it.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cometmq.batch import decode_messages, parse, verify_producer
from cometmq.errors import LogError, NoSpace
from cometmq.log import LogSettings, Outcome
from cometmq.message import NOWHERE, ReceivedMessage
from cometmq.protocol import Status
from cometmq.testing.files import PowerCut
from cometmq.testing.log_kit import LogKit

LONG_EXAMPLES = 10 * int(os.environ.get("CRASH_ROUNDS", "200"))
QUEUES = range(3)
MakeKit = Callable[[], LogKit]
SETTINGS = LogSettings(segment_bytes=3000, checkpoint_step_bytes=150)


class Queue:
    """What must and what may be in one queue."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        """All that was ever appended and not taken back, in order."""
        self.written = 0
        """So many are in the page cache: a kill leaves them."""
        self.safe = 0
        """So many are on disk: nothing takes them."""


class ModelledDisk(RuleBasedStateMachine):
    """One data folder through all that can befall it."""

    def __init__(self, kit: LogKit) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.kit = kit
        self.queues = [Queue() for _ in QUEUES]
        self.count = 0
        self.runner.run(self.start())

    def teardown(self) -> None:
        try:
            self.runner.run(self.restart())
        finally:
            self.runner.close()

    # --- working --------------------------------------------------------------------------------

    @rule(
        queues=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=4),
        count=st.integers(1, 3),
        size=st.sampled_from([0, 10, 300, 900]),
        wait=st.booleans(),
    )
    def send(self, queues: list[int], count: int, size: int, wait: bool) -> None:
        """One drain; with `wait` until it is on disk."""
        self.work(self._send(queues, count, size, wait))

    @rule()
    def roll(self) -> None:
        self.work(self._roll())

    @rule(seconds=st.sampled_from([0.02, 0.2, 0.6]))
    def idle(self, seconds: float) -> None:
        self.work(self.kit.settle(seconds))

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        self.work(self._trim(share))

    @rule()
    def take_back(self) -> None:
        """Cut what nobody was told to be safe, as after a failed write."""
        self.work(self._take_back())

    # --- faults ---------------------------------------------------------------------------------

    @rule(dice=st.randoms(use_true_random=False))
    def power_cut(self, dice: Random) -> None:
        self.runner.run(self.cut_power(dice))

    @rule(after=st.integers(0, 40), dice=st.randoms(use_true_random=False), clean=st.booleans())
    def power_cut_at_a_start_or_stop(self, after: int, dice: Random, clean: bool) -> None:
        """So many changes of the disk later, at the latest when all is done."""
        self.runner.run(self._cut_power_at(after, dice, clean))

    @rule()
    def kill(self) -> None:
        self.runner.run(self.restart())

    @rule()
    def clean_stop(self) -> None:
        self.runner.run(self._clean_stop())

    @rule(
        operation=st.sampled_from(["write", "sync", "allocate", "truncate", "create", "rename"]),
        number=st.sampled_from([errno.EIO, errno.ENOSPC, errno.EROFS]),
        skip=st.integers(0, 3),
        part=st.sampled_from([0, 1, 100, 600]),
    )
    def fault(self, operation: Any, number: int, skip: int, part: int) -> None:
        """The disk refuses once."""
        self.kit.environment.files.fail(operation, number, skip=skip, after_bytes=part)

    @rule()
    def mend(self) -> None:
        self.kit.environment.files.mend()

    @rule(room=st.sampled_from([0, 5000, 20_000]))
    def fill_disk(self, room: int) -> None:
        """Somebody else leaves only so much."""
        files = self.kit.environment.files
        files.capacity_bytes = files.space("/data")[0] - files.space("/data")[1] + room

    @rule()
    def make_room(self) -> None:
        self.kit.environment.files.capacity_bytes = 1 << 40

    @precondition(lambda self: self.kit.log.stopped)
    @rule(dice=st.randoms(use_true_random=False), power=st.booleans())
    def start_again(self, dice: Random, power: bool) -> None:
        """A log that has stopped comes back, perhaps after a reset of the machine."""
        self.runner.run(self.cut_power(dice) if power else self.restart())

    @invariant()
    def all_is_there(self) -> None:
        self.runner.run(self.read())

    # --- inside -----------------------------------------------------------------------------------

    def work(self, action: Any) -> None:
        """Refusals by name are no faults of the log; what is left is judged at the next start."""
        try:
            self.runner.run(action)
        except LogError as error:
            assert str(error)

    async def _send(self, queues: list[int], count: int, size: int, wait: bool) -> None:
        log = self.kit.log
        if log.stopped:
            return
        outcomes = []
        numbers = []
        for number in queues:
            body = b"%d:" % self.count + bytes(size)
            try:
                appended = self.kit.append(number, count, body=body)
            except NoSpace:
                break
            self.count += 1
            self.queues[number].bodies += [body] * count
            numbers.append(number)
            outcomes.append(self.kit.wait("disk" if wait else "memory", appended))
        log.write()
        await self.kit.settle()
        for number, outcome in zip(numbers, outcomes, strict=True):
            queue = self.queues[number]
            if outcome == [Outcome.REACHED]:
                queue.written = max(queue.written, log.next_offset(1, number))
                if wait:
                    queue.safe = log.next_offset(1, number)
            elif outcome == [Outcome.NOT_WRITTEN]:
                del queue.bodies[log.next_offset(1, number) :]
            else:
                assert outcome == [Outcome.DROPPED] and log.stopped, outcome

    async def _roll(self) -> None:
        if not self.kit.log.stopped:
            self.kit.log.roll()
            await self.kit.settle()

    async def _trim(self, share: float) -> None:
        log = self.kit.log
        if log.stopped:
            return
        task = asyncio.ensure_future(log.trim(int(log.appended * share)))
        while not task.done():
            await self.kit.settle(0.1)
        await task

    async def _take_back(self) -> None:
        log = self.kit.log
        if log.stopped:
            return
        end = log.synced
        before = [
            await log.when_loaded(partial(log.index.next_offset_before, 1, q, end)) for q in QUEUES
        ]
        try:
            log.truncate(end)
        finally:
            if not log.stopped:
                for number, queue in enumerate(self.queues):
                    del queue.bodies[before[number] :]
                    queue.written = min(queue.written, before[number])
        await self.kit.settle()

    async def start(self) -> None:
        """Open what is there; nothing may be in doubt, and nothing safe may be gone."""
        files = self.kit.environment.files
        try:
            await self.kit.open(settings=SETTINGS)
        except (NoSpace, LogError):
            # Without room, or on a disk that refuses: when that is over it starts.
            files.mend()
            files.capacity_bytes = 1 << 40
            self.kit.kill()
            await self.kit.open(settings=SETTINGS)
        report, log = self.kit.report, self.kit.log
        assert not report.in_doubt and not report.damage and not report.missing_below, report
        for number, queue in enumerate(self.queues):
            there = log.next_offset(1, number)
            assert queue.safe <= there <= len(queue.bodies), (number, queue.safe, there)
            del queue.bodies[there:]
            # What a start has shown stays.
            queue.safe = queue.written = there

    async def restart(self) -> None:
        """A kill: what was written stays."""
        for queue in self.queues:
            queue.safe = max(queue.safe, queue.written) if not self.kit.log.stopped else queue.safe
        self.kit.kill()
        await self.start()

    async def cut_power(self, dice: Random) -> None:
        self.kit.crash(dice)
        await self.start()

    async def _cut_power_at(self, after: int, dice: Random, clean: bool) -> None:
        files = self.kit.environment.files
        files.cut_power_after(after)
        try:
            if clean:
                await self.kit.log.close()
            self.kit.kill()
            await self.kit.open(settings=SETTINGS)
            await self.kit.settle(1)
        except (PowerCut, LogError):
            pass
        await self.cut_power(dice)

    async def _clean_stop(self) -> None:
        await self.kit.log.close()
        await self.restart()

    async def read(self) -> None:
        """Every queue from its min offset on: each body once, in its place."""
        log = self.kit.log
        if log.stopped:
            return
        for number, queue in enumerate(self.queues):
            offset = await log.when_loaded(partial(log.min_offset, 1, number))
            high = await log.when_loaded(partial(log.max_offset, 1, number))
            while offset < high:
                result = await log.read(1, number, offset, 2000)
                assert result.status == Status.OK, result
                for piece in result.batches:
                    batch = parse(bytes(piece))
                    verify_producer(batch)
                    for message in decode_messages(batch, NOWHERE, first_offset=offset):
                        assert isinstance(message, ReceivedMessage)
                        assert message.body == queue.bodies[offset]
                        assert message.offset == offset
                        offset += 1


def drive(make_kit: MakeKit, examples: int, *, derandomize: bool) -> None:
    class OnAnEmptyDisk(ModelledDisk):
        def __init__(self) -> None:
            super().__init__(make_kit())

    run_state_machine_as_test(
        OnAnEmptyDisk,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            derandomize=derandomize,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_log_through_all_that_can_befall_it(make_kit: MakeKit) -> None:
    drive(make_kit, 60, derandomize=True)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_log_through_very_much(make_kit: MakeKit) -> None:
    drive(make_kit, LONG_EXAMPLES, derandomize=False)
