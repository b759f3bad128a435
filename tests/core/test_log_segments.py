"""A running log: segments and their checkpoints, cuts and trims."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.batch import Kind
from cometmq.log import LogSettings, Outcome
from cometmq.protocol import Status
from cometmq.testing.log_kit import LogKit, in_loop

# --- segments and checkpoints -----------------------------------------------------------------


@in_loop
async def test_a_segment_closes_at_its_size(kit: LogKit) -> None:
    log = await kit.open(settings=LogSettings(segment_bytes=3000))
    for _ in range(12):
        await kit.send(body=bytes(800))
    bases = [segment.base for segment in kit.storage.segments()]
    assert len(bases) > 3
    sizes = [second - first for first, second in zip(bases, bases[1:], strict=False)]
    assert all(3000 <= size < 5000 for size in sizes)
    assert log.epoch == 1
    result = await log.read(1, 0, 0, 1 << 20)
    assert result.next_offset > 0
    kit.kill()
    log = await kit.open()
    assert log.next_offset(1, 0) == 12
    # Only what follows the newest whole checkpoint was read.
    assert kit.report.replayed_from == bases[-1]


@in_loop
async def test_a_segment_closes_at_its_number_of_batches_once_its_checkpoint_is_small(
    kit: LogKit,
) -> None:
    log = await kit.open(settings=LogSettings(segment_batches=10))
    for _ in range(10):
        await kit.send(body=b"")
    assert len(kit.storage.segments()) == 1
    checkpoint = log._writer.checkpoints[0]
    await kit.send(body=bytes(20 * checkpoint))
    assert len(kit.storage.segments()) == 2


@in_loop
async def test_a_segment_closes_a_day_after_its_first_message(kit: LogKit) -> None:
    log = await kit.open()
    await kit.settle(100_000)
    assert len(kit.storage.segments()) == 1
    await kit.send()
    await kit.settle(86_300)
    assert len(kit.storage.segments()) == 1
    await kit.settle(200)
    assert len(kit.storage.segments()) == 2
    await kit.settle(200_000)
    assert len(kit.storage.segments()) == 2 and log.synced == log.appended


def many_queues(kit: LogKit, count: int) -> None:
    for incarnation in range(1, count + 1):
        kit.append(incarnation=incarnation)


@in_loop
async def test_a_checkpoint_is_written_in_steps_among_the_data(kit: LogKit) -> None:
    settings = LogSettings(checkpoint_step_bytes=1)
    log = await kit.open(settings=settings)
    many_queues(kit, 9000)
    log.write()
    await kit.settle(1)
    log.roll()
    base = kit.storage.segments()[-1].base
    await kit.send()
    # It doesn't close before its checkpoint has ended.
    log.roll()
    assert kit.storage.segments()[-1].base == base
    sent = 1
    while log._writer.checkpointing:
        await kit.send()
        sent += 1
    kinds = [batch.kind for batch in kit.batches() if batch.position >= base]
    assert kinds[0] == Kind.SEGMENT_START
    between = kinds[: kinds.index(Kind.CHECKPOINT_END)]
    assert Kind.MESSAGES in between and between.count(Kind.CHECKPOINT_SLICE) > 3
    offsets = {key: offset for key, offset in log.state.next_offsets.items()}
    kit.kill()
    log = await kit.open()
    assert kit.report.replayed_from == base
    assert dict(log.state.next_offsets.items()) == offsets
    assert log.next_offset(1, 0) == 1 + sent


@in_loop
async def test_no_segment_closes_before_its_checkpoint_has_ended(kit: LogKit) -> None:
    log = await kit.open(settings=LogSettings(checkpoint_step_bytes=1, segment_bytes=1 << 18))
    many_queues(kit, 9000)
    log.write()
    base = kit.storage.segments()[-1].base
    assert base > 0
    await kit.send(body=bytes(1 << 18))
    assert log._writer.checkpointing and kit.storage.segments()[-1].base == base
    await kit.settle(1)
    assert kit.storage.segments()[-1].base > base


@in_loop
async def test_a_roll_says_whether_there_is_a_new_segment_and_where_its_head_ends(
    kit: LogKit,
) -> None:
    log = await kit.open(settings=LogSettings(checkpoint_step_bytes=1))
    await kit.send()
    assert log.head_end is not None and log.head_end <= log.appended
    assert log.roll()
    base = kit.storage.segments()[-1].base
    assert log.head_end is None and not log.roll()
    await kit.settle(1)
    assert log.head_end is not None and base < log.head_end <= log.settled
    kit.environment.files.capacity_bytes = 0
    kit.environment.files.unlink(kit.paths("reserve")[0])
    await kit.send()
    assert not log.roll() and kit.storage.segments()[-1].base == base
    await kit.send()
    assert log.next_offset(1, 0) == 3, "the segment that was written to still is"


@in_loop
async def test_an_idle_log_ends_its_checkpoint(kit: LogKit) -> None:
    log = await kit.open(settings=LogSettings(checkpoint_step_bytes=1))
    many_queues(kit, 9000)
    log.write()
    log.roll()
    assert log._writer.checkpointing
    await kit.settle(0.3)
    assert not log._writer.checkpointing and log.synced < log.appended
    await kit.settle(0.5)
    assert log.synced == log.appended


@in_loop
async def test_the_index_of_a_closed_segment_is_written_beside_it(kit: LogKit) -> None:
    log = await kit.open()
    await kit.send(count=5)
    log.roll()
    await kit.settle(1)
    assert [path[-30:] for path in kit.paths(".queue")] == ["log/00000000000000000000.queue"]
    await kit.send()
    result = await log.read(1, 0, 0, 1 << 20)
    assert result.next_offset == 5


# --- cuts -------------------------------------------------------------------------------------


async def judge(kit: LogKit, offset: int, epoch: int) -> int | None:
    """Whether who has `offset` of queue 0 from `epoch` may go on there."""
    return await kit.log.when_loaded(lambda: kit.log.judge(1, 0, offset, epoch))


@in_loop
async def test_a_truncation_drops_waiters_state_and_readers(kit: LogKit) -> None:
    log = await kit.open()
    cuts: list[int] = []
    log.on_truncated(cuts.append)
    keep = await kit.send(count=3)
    await kit.send(count=4)
    kit.environment.files.hold_syncs()
    waiting = kit.wait("disk", kit.append(queue=1))
    log.write()
    kit.environment.files.holding = False
    log.truncate(keep.end)
    assert waiting == [Outcome.DROPPED] and cuts == [keep.end]
    assert (log.next_offset(1, 0), log.next_offset(1, 1), log.epoch) == (3, 0, 2)
    kit.environment.files.release_syncs()
    await kit.settle()
    # Who read to 7 in epoch 1 goes on at 3; who read to 3 has read nothing that was cut.
    assert await judge(kit, 7, 1) == 3
    assert await judge(kit, 3, 1) is None
    assert (await kit.send()).base_offset == 3
    assert await judge(kit, 4, 2) is None
    assert await judge(kit, 4, 1) == 3
    kit.kill()
    log = await kit.open()
    assert log.next_offset(1, 0) == 4
    assert await judge(kit, 7, 1) == 3
    assert await judge(kit, 4, 2) is None


@in_loop
async def test_a_truncation_into_an_earlier_segment(kit: LogKit) -> None:
    log = await kit.open()
    keep = await kit.send(count=3)
    await kit.send(count=3)
    log.roll()
    await kit.settle(1)
    await kit.send(count=3)
    log.truncate(keep.end)
    await kit.settle(1)
    assert [s.base for s in kit.storage.segments()] == [0, keep.end]
    assert log.next_offset(1, 0) == 3
    assert (await kit.send()).base_offset == 3
    result = await log.read(1, 0, 0, 1 << 20)
    assert (result.next_offset, result.max_offset) == (3, 4)


@in_loop
async def test_a_cut_during_a_sync_is_not_undone_by_it(kit: LogKit) -> None:
    log = await kit.open()
    keep = await kit.send()
    kit.environment.files.hold_syncs()
    kit.wait("disk", kit.append(body=bytes(5000)))
    log.write()
    await kit.settle()
    kit.environment.files.holding = False
    log.truncate(keep.end)
    kit.environment.files.release_syncs(1)
    await kit.settle()
    assert log.synced == keep.end < log.appended
    kit.environment.files.release_syncs()
    await kit.settle(1)
    assert log.synced == log.appended


@in_loop
async def test_only_the_border_of_a_batch_can_be_cut_at(kit: LogKit) -> None:
    log = await kit.open()
    one = await kit.send()
    with pytest.raises(ValueError, match="no batch ends at position"):
        log.truncate(one.end - 1)
    with pytest.raises(ValueError, match="is not in the log"):
        log.truncate(one.end + 1000)
    assert log.next_offset(1, 0) == 1


@in_loop
async def test_an_epoch_above_our_own_is_judged_by_where_ours_began(kit: LogKit) -> None:
    log = await kit.open()
    await kit.send(count=5)
    await log.close()
    log = await kit.open()
    await kit.send(count=5)
    assert await judge(kit, 9, 7) == 5
    assert await judge(kit, 5, 7) is None
    assert await judge(kit, 10**9, 0) is None


# --- trims ------------------------------------------------------------------------------------


async def three_segments(kit: LogKit) -> list[int]:
    log = await kit.open()
    for _ in range(2):
        await kit.send(count=5)
        await kit.send(queue=1)
        log.roll()
        await kit.settle(1)
    await kit.send(count=5)
    return [segment.base for segment in kit.storage.segments()]


@in_loop
async def test_a_trim_deletes_whole_segments_and_moves_min_offsets(kit: LogKit) -> None:
    bases = await three_segments(kit)
    log = kit.log
    assert [segment.base for segment in await log.trim(bases[2] - 1)] == bases[:1]
    assert [segment.base for segment in kit.storage.segments()] == bases[1:]
    assert (log.start, log.min_offset(1, 0), log.min_offset(1, 1)) == (bases[1], 5, 1)
    result = await log.read(1, 0, 2, 1 << 20)
    assert (result.status, result.next_offset) == (Status.EXPIRED, 5)
    assert await log.trim(bases[1]) == [] and log.start == bases[1]
    kit.kill()
    log = await kit.open()
    assert (log.start, log.min_offset(1, 0), log.next_offset(1, 0)) == (bases[1], 5, 15)
    assert log.next_offset(1, 1) == 2 and not kit.report.missing_below
    # Judged by what is gone: the oldest offset that is left.
    assert await judge(kit, 15, 1) is None


@in_loop
async def test_nothing_is_deleted_before_the_trim_is_settled(kit: LogKit) -> None:
    bases = await three_segments(kit)
    kit.environment.files.hold_syncs()
    trimming = asyncio.create_task(kit.log.trim(bases[1]))
    await kit.settle()
    assert len(kit.storage.segments()) == 3 and kit.log.min_offset(1, 0) == 0
    kit.environment.files.release_syncs()
    await kit.settle()
    assert [segment.base for segment in await trimming] == bases[:1]
    assert kit.log.start == bases[1]
    assert len(kit.storage.segments()) == 2


@in_loop
async def test_a_trim_never_goes_past_the_last_segment_nor_past_one_without_a_checkpoint(
    kit: LogKit,
) -> None:
    bases = await three_segments(kit)
    kit.flip(kit.log._writer.checkpoints.pop(bases[1]) - 1)
    assert await kit.log.trim(bases[1]) == [] and kit.log.start == 0
    assert [segment.base for segment in await kit.log.trim(10**12)] == bases[:2]
    assert kit.log.start == bases[2]
    assert [segment.base for segment in kit.storage.segments()] == [bases[2]]
