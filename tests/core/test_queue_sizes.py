"""What is told to whoever frees space: ages and bytes of segments and queues, and raised min
offsets, before plain sums over all batches of the log."""

from __future__ import annotations

from random import Random

import pytest

from cometmq.batch import Batch, Kind
from cometmq.interfaces import StateView
from cometmq.log import LogSettings
from cometmq.log.min_offsets import MinOffset, MinOffsets
from cometmq.log.records import TopicChange
from cometmq.protocol import Status
from cometmq.testing.log_bytes import LogBytes
from cometmq.testing.log_kit import LogKit, in_loop
from cometmq.testing.state_view_contract import StateViewContract

QUEUES = range(3)
KEYS = [(1, queue) for queue in QUEUES]


async def lived(kit: LogKit, random: Random) -> list[Batch]:
    """A log of some segments; its batches of messages."""
    log = await kit.open(settings=LogSettings(mark_idle_ms=10**9))
    for _ in range(40):
        queue, count = random.choice(QUEUES), random.randint(1, 3)
        kit.append(queue, count, body=b"x" * random.randint(1, 50))
        log.write()
        await kit.settle(0.01)
        if random.random() < 0.15:
            log.roll()
            await kit.settle(1.0)
    return [batch for batch in kit.batches() if not batch.kind]


async def check(kit: LogKit, batches: list[Batch]) -> None:
    log, index = kit.log, kit.log.index
    bases = [segment.base for segment in log.segments()]
    for base, end in zip(bases, [*bases[1:], log.appended], strict=True):
        times = [batch.store_time for batch in batches if base <= batch.position < end]
        assert await log.newest_time(base) == max(times, default=None)
    for queue in QUEUES:
        mine = [batch for batch in batches if batch.queue == queue]
        for offset in range(log.next_offset(1, queue) + 2):
            rest = sum(batch.length for batch in mine if batch.next_offset > offset)
            found = await log.when_loaded(lambda: index.bytes_from(1, queue, offset))  # noqa: B023
            assert found == rest, (queue, offset)
            times = [b.store_time for b in mine if b.base_offset <= offset < b.next_offset]
            at = await log.when_loaded(lambda: index.time_at(1, queue, offset))  # noqa: B023
            assert at == max(times, default=None)
    total = sum(batch.length for batch in batches)
    for most in range(0, total + 200, 97):
        begin = await log.when_loaded(lambda: index.newest_begin(KEYS, most))  # noqa: B023
        kept = sum(batch.length for batch in batches if batch.position >= begin)
        more = [batch for batch in batches if batch.position < begin]
        assert kept <= most and (not more or kept + more[-1].length > most)


@pytest.mark.parametrize("seed", range(6))
@in_loop
async def test_sums_are_those_of_all_batches(kit: LogKit, seed: int) -> None:
    batches = await lived(kit, Random(seed))
    await check(kit, batches)
    await check(kit, batches)
    await kit.log.close()
    kit.kill()
    log = await kit.open()
    await check(kit, batches)
    await kit.send(1, 2)
    await check(kit, [batch for batch in kit.batches() if not batch.kind])
    # A cut and a trim must not leave old sums behind.
    batches = [batch for batch in kit.batches() if not batch.kind]
    middle = batches[len(batches) // 2]
    log.truncate(middle.position)
    await kit.settle(1.0)
    await check(kit, [batch for batch in kit.batches() if not batch.kind])
    await log.trim(log.appended)
    await kit.settle()
    await check(kit, [batch for batch in kit.batches() if not batch.kind])


@in_loop
async def test_a_segment_that_is_not_there_has_no_age(kit: LogKit) -> None:
    log = await kit.open()
    assert await log.newest_time(0) is None
    assert await log.newest_time(10**9) is None


@in_loop
async def test_readers_hear_of_raised_min_offsets_at_once_and_after_a_crash(kit: LogKit) -> None:
    log = await kit.open()
    await kit.send(count=10)
    log.raise_min_offsets({(1, 0): 4, (1, 1): 0})
    result = await log.read(1, 0, 2, 1 << 20)
    assert (result.status, result.next_offset, result.min_offset) == (Status.EXPIRED, 4, 4)
    assert (await log.read(1, 0, 4, 1 << 20)).status == Status.OK
    assert await log.when_loaded(lambda: log.index.offset_by_time(1, 0, 0)) == 4
    log.raise_min_offsets({(1, 0): 3})
    assert log.min_offset(1, 0) == 4
    await kit.settle(1.0)
    kit.crash()
    log = await kit.open()
    assert (log.min_offset(1, 0), log.next_offset(1, 0)) == (4, 10)


@in_loop
async def test_a_cut_takes_back_what_was_raised_behind_it(kit: LogKit) -> None:
    log = await kit.open()
    sent = await kit.send(count=10)
    log.raise_min_offsets({(1, 0): 4})
    log.truncate(sent.end)
    await kit.settle(1.0)
    assert log.min_offset(1, 0) == 0


@in_loop
async def test_raising_nothing_writes_nothing_and_much_is_split(kit: LogKit) -> None:
    log = await kit.open()
    end = log.appended
    log.raise_min_offsets({})
    assert log.appended == end
    log.raise_min_offsets({(1, queue): 1 for queue in range(5000)})
    assert kit.kinds().count(Kind.MIN_OFFSET) == 2
    assert log.min_offset(1, 4999) == 1


class TestMinOffsets(StateViewContract):
    def make_view(self) -> MinOffsets:
        return MinOffsets()

    def make_history(self, log: LogBytes, random: Random) -> list[Batch]:
        alive = [1, 2, 3]
        history = []
        for _ in range(random.randint(0, 60)):
            if random.random() < 0.1 and len(alive) > 1:
                gone = alive.pop(random.randrange(len(alive)))
                history.append(
                    log.control(Kind.TOPIC_CHANGE, [TopicChange(gone, f"t{gone}", deleted=True)])
                )
                continue
            raised = [
                MinOffset(random.choice(alive), random.randint(0, 3), random.randint(0, 50))
                for _ in range(random.randint(1, 4))
            ]
            history.append(log.control(Kind.MIN_OFFSET, raised))
        return history

    def observe(self, view: StateView) -> object:
        assert isinstance(view, MinOffsets)
        return [view.get(incarnation, queue) for incarnation in range(5) for queue in range(5)]
