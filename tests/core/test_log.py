"""A running log: drains, positions, levels, segments, checkpoints, cuts and trims."""

from __future__ import annotations

import asyncio
import errno

import pytest

from cometmq.batch import Kind
from cometmq.environment import Environment
from cometmq.errors import LogStopped, NoSpace, NotAvailable
from cometmq.interfaces import Level, Storage
from cometmq.log import Log, LogSettings, Outcome
from cometmq.protocol import Status
from cometmq.testing.log_kit import LogKit, in_loop
from cometmq_plugins.group_commit import GroupCommit
from cometmq_plugins.segments import SegmentStorage


def storage(environment: Environment, data: str) -> Storage:
    return SegmentStorage(
        environment,
        environment.files,
        data,
        persistent=True,
        step_bytes=1 << 16,
        reserve_bytes=1 << 17,
    )


def kit_of(level: Level = "disk") -> LogKit:
    return LogKit(storage, lambda: GroupCommit(level, 500))


@pytest.fixture
def kit() -> LogKit:
    return kit_of()


REACHED = [Outcome.REACHED]


# --- a new log --------------------------------------------------------------------------------


@in_loop
async def test_a_new_log_has_a_segment_an_epoch_and_a_whole_checkpoint_on_disk(
    kit: LogKit,
) -> None:
    log = await kit.open()
    assert kit.kinds() == [Kind.SEGMENT_START, Kind.EPOCH_START, Kind.CHECKPOINT_SLICE] + [
        Kind.CHECKPOINT_END
    ]
    assert len(log.log_id) == 8 and log.epoch == 1
    assert log.positions() == {
        "start": 0,
        **dict.fromkeys(
            ("appended", "synced", "settled", "readable"),
            kit.batches()[-1].position + kit.batches()[-1].length,
        ),
    }
    assert kit.report.epoch == 1 and not kit.report.cuts and not kit.report.in_doubt
    await log.close()


@in_loop
async def test_every_start_begins_a_segment_and_an_epoch(kit: LogKit) -> None:
    ids = set()
    for epoch in (1, 2, 3):
        log = await kit.open()
        ids.add(log.log_id)
        assert log.epoch == epoch
        assert len(kit.storage.segments()) == epoch
        await log.close()
    assert len(ids) == 1


# --- drains and levels ------------------------------------------------------------------------


@in_loop
async def test_two_sends_of_one_drain_see_each_other(kit: LogKit) -> None:
    log = await kit.open()
    first, second = kit.append(count=3), kit.append(count=2)
    assert (first.base_offset, second.base_offset, log.next_offset(1, 0)) == (0, 3, 5)
    assert first.end == second.position
    outcomes = kit.wait("disk", second)
    log.write()
    await kit.settle()
    assert outcomes == REACHED
    result = log.read_now(1, 0, 0, 1 << 20)
    assert result is not None
    assert (result.status, len(result.batches), result.next_offset) == (Status.OK, 2, 5)


@in_loop
async def test_a_held_sync_decides_who_is_answered_and_what_can_be_read(kit: LogKit) -> None:
    log = await kit.open()
    told: list[set[tuple[int, int]]] = []
    log.on_readable(lambda start, end, queues: told.append(queues))
    kit.environment.files.hold_syncs()
    one = kit.append()
    memory, disk, readable = (kit.wait(name, one) for name in ("memory", "disk", "readable"))
    assert memory == []
    log.write()
    assert memory == REACHED
    await kit.settle(10)
    assert (disk, readable, told, log.max_offset(1, 0)) == ([], [], [], 0)
    # What comes while a sync runs is not on disk with it.
    two = kit.append()
    later = kit.wait("disk", two)
    log.write()
    kit.environment.files.release_syncs(1)
    await kit.settle()
    assert (disk, readable, told) == (REACHED, REACHED, [{(1, 0)}])
    assert log.max_offset(1, 0) == 1 and log.next_offset(1, 0) == 2
    assert later == []
    kit.environment.files.release_syncs()
    await kit.settle()
    assert later == REACHED and log.max_offset(1, 0) == 2


@in_loop
async def test_with_level_memory_all_is_readable_when_appended() -> None:
    kit = kit_of("memory")
    log = await kit.open()
    kit.environment.files.hold_syncs()
    one = kit.append()
    default = kit.wait("readable", one)
    stronger = kit.wait("disk", one)
    log.write()
    await kit.settle()
    assert default == REACHED and log.max_offset(1, 0) == 1
    assert stronger == []
    # The stronger level has started the sync that it needs.
    assert kit.environment.files.held == 1
    kit.environment.files.release_syncs()
    await kit.settle()
    assert stronger == REACHED


@in_loop
async def test_a_weaker_send_is_synced_within_the_interval_or_on_demand(kit: LogKit) -> None:
    log = await kit.open()
    one = kit.append()
    log.write()
    await kit.settle(0.4)
    assert log.synced < one.end
    await kit.settle(0.2)
    assert log.synced == log.readable >= one.end
    two = kit.append()
    log.write()
    log.demand(two.end)
    await kit.settle()
    assert log.readable == two.end


@in_loop
async def test_the_configured_level_beats_the_flush_policys(kit: LogKit) -> None:
    log = await kit.open(settings=LogSettings(level="memory"))
    assert log.default_level == "memory"
    one = kit.append()
    log.write()
    assert log.readable == one.end


@in_loop
async def test_a_level_that_cannot_be_given_is_refused_by_name(kit: LogKit) -> None:
    log = await kit.open()
    one = kit.append()
    with pytest.raises(NotAvailable, match="quorum needs replication"):
        kit.wait("quorum", one)
    with pytest.raises(NotAvailable, match="quorum"):
        Log(kit.storage, GroupCommit("quorum", 500), kit.environment)
    log.write()


@in_loop
async def test_sends_that_trust_memory_wait_when_too_much_is_unsynced(kit: LogKit) -> None:
    log = await kit.open(settings=LogSettings(level="memory", max_unsynced_bytes=2000))
    kit.environment.files.hold_syncs()
    within = kit.wait("memory", kit.append(body=bytes(1500)))
    log.write()
    beyond = kit.wait("memory", kit.append(body=bytes(1500)))
    log.write()
    await kit.settle()
    assert (within, beyond) == (REACHED, [])
    kit.environment.files.release_syncs()
    await kit.settle()
    assert beyond == REACHED


@in_loop
async def test_a_lone_waiter_is_told_from_a_crowd(kit: LogKit) -> None:
    heard: list[tuple[bool, bool]] = []

    class Policy(GroupCommit):
        def appended(self, awaited: bool, alone: bool) -> None:
            heard.append((awaited, alone))
            super().appended(awaited, alone)

    kit = LogKit(storage, lambda: Policy("disk", 500))
    log = await kit.open()
    heard.clear()
    await kit.send()
    kit.append()
    log.write()
    kit.append()
    kit.wait("disk", kit.append())
    log.write()
    assert heard == [(True, True), (False, False), (True, False)]
    await kit.settle()


# --- what fails -------------------------------------------------------------------------------


@pytest.mark.parametrize("after_bytes", [0, 1, 150, 400])
@in_loop
async def test_a_failed_write_takes_back_its_drain_and_nothing_else(
    kit: LogKit, after_bytes: int
) -> None:
    log = await kit.open()
    await kit.send(count=2)
    kit.environment.files.hold_syncs()
    before = kit.append()
    waiting = kit.wait("disk", before)
    log.write()
    await kit.settle()
    kit.environment.files.holding = False
    kit.environment.files.fail("write", errno.EIO, name=".seg", after_bytes=after_bytes)
    lost = [kit.wait(level, kit.append(queue=1)) for level in ("memory", "disk")]
    log.write()
    assert lost == [[Outcome.NOT_WRITTEN]] * 2
    assert (log.next_offset(1, 0), log.next_offset(1, 1)) == (3, 0)
    assert waiting == []
    kit.environment.files.release_syncs()
    await kit.settle()
    assert waiting == REACHED
    again = await kit.send(queue=1)
    assert again.base_offset == 0 and log.epoch == 1
    assert len(kit.storage.segments()) == 2
    kit.kill()
    log = await kit.open()
    assert (log.next_offset(1, 0), log.next_offset(1, 1)) == (3, 1)
    assert not kit.report.cuts and not kit.report.damage


@in_loop
async def test_a_write_that_cannot_be_taken_back_stops_the_log(kit: LogKit) -> None:
    log = await kit.open()
    stopped: list[str] = []
    log.on_stopped(stopped.append)
    kit.environment.files.fail("write", errno.EIO, times=None)
    outcomes = kit.wait("memory", kit.append())
    log.write()
    await kit.settle()
    assert len(outcomes) == 1 and outcomes != REACHED
    assert stopped == [log.stopped] and "could not be taken back" in log.stopped
    with pytest.raises(LogStopped, match="taken back"):
        kit.append()


@in_loop
async def test_a_failed_sync_stops_the_log_for_good(kit: LogKit) -> None:
    log = await kit.open()
    stopped: list[str] = []
    log.on_stopped(stopped.append)
    kit.environment.files.fail("sync", errno.EIO, name=".seg")
    outcomes = kit.wait("disk", kit.append())
    log.write()
    await kit.settle()
    assert outcomes == [Outcome.DROPPED]
    assert len(stopped) == 1 and "check the disk" in stopped[0]
    with pytest.raises(LogStopped):
        kit.append()
    with pytest.raises(LogStopped):
        log.append_control("mark", [[0]])
    late: list[Outcome] = []
    log.wait("memory", 1, late.append)
    assert late == [Outcome.DROPPED]
    synced = log.synced
    log.write()
    await kit.settle(2)
    assert log.synced == synced and len(stopped) == 1
    await log.close()


@in_loop
async def test_without_space_a_batch_is_refused_before_anything_changes(kit: LogKit) -> None:
    log = await kit.open()
    kit.environment.files.capacity_bytes = 0
    body = bytes(4000)
    with pytest.raises(NoSpace):
        for _ in range(100):
            kit.append(body=body)
    end, offset = log._writer.end, log.next_offset(1, 0)
    with pytest.raises(NoSpace):
        kit.append(queue=1, body=body)
    assert (log._writer.end, log.next_offset(1, 0), log.next_offset(1, 1)) == (end, offset, 0)
    # Freeing space takes a control batch: it gets a piece of the reserve.
    log.append_control("mark", [[0]])
    log.write()
    assert log.appended > end
    kit.environment.files.capacity_bytes = 1 << 40
    assert (await kit.send(queue=1, body=body)).base_offset == 0


# --- marks and time ---------------------------------------------------------------------------


@in_loop
async def test_an_idle_log_is_marked_once(kit: LogKit) -> None:
    log = await kit.open()
    await kit.send()
    await kit.settle(0.05)
    await kit.send()
    await kit.settle(0.09)
    assert kit.kinds()[-1] == Kind.MESSAGES
    await kit.settle(0.2)
    assert kit.kinds()[-2:] == [Kind.MESSAGES, Kind.MARK]
    mark = kit.batches()[-1]
    assert mark.synced_before == mark.position and log.synced == log.appended
    length = log.appended
    await kit.settle(60)
    assert log.appended == length


@in_loop
async def test_a_clean_stop_leaves_a_mark_and_nothing_unsynced(kit: LogKit) -> None:
    log = await kit.open()
    kit.append()
    await log.close()
    kinds = kit.kinds()
    assert kinds[-1] == Kind.MARK and Kind.MESSAGES in kinds
    kit.crash()
    log = await kit.open()
    assert log.next_offset(1, 0) == 1 and not kit.report.cuts
    with pytest.raises(LogStopped, match="is closed"):
        await log.close()
        kit.append()


@pytest.mark.parametrize(
    ("step_ms", "expected"), [(-59_000, 0), (-61_000, -61_000), (5000, 5000), (86_400_000,) * 2]
)
@in_loop
async def test_small_steps_back_of_the_clock_are_smoothed(
    kit: LogKit, step_ms: int, expected: int
) -> None:
    await kit.open()
    before = kit.append().store_time
    kit.environment.clock.step_wall(step_ms)
    assert kit.append().store_time == before + expected


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
    assert log.epoch_at(0) == 1 and log.epoch_at(log.appended) == 2


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
    assert await log.trim(bases[2] - 1) == bases[1]
    assert [segment.base for segment in kit.storage.segments()] == bases[1:]
    assert (log.start, log.min_offset(1, 0), log.min_offset(1, 1)) == (bases[1], 5, 1)
    result = await log.read(1, 0, 2, 1 << 20)
    assert (result.status, result.next_offset) == (Status.EXPIRED, 5)
    assert await log.trim(bases[1]) == bases[1]
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
    assert await trimming == bases[1]
    assert len(kit.storage.segments()) == 2


@in_loop
async def test_a_trim_never_goes_past_the_last_segment_nor_past_one_without_a_checkpoint(
    kit: LogKit,
) -> None:
    bases = await three_segments(kit)
    kit.flip(kit.log._writer.checkpoints.pop(bases[1]) - 1)
    assert await kit.log.trim(bases[1]) == 0
    assert await kit.log.trim(10**12) == bases[2]
    assert [segment.base for segment in kit.storage.segments()] == [bases[2]]


# --- words ------------------------------------------------------------------------------------


@in_loop
async def test_what_could_be_lost_is_said(kit: LogKit) -> None:
    log = await kit.open()
    assert "takes nothing that was acknowledged at level disk" in log.could_lose()
    weak = Log(kit.storage, GroupCommit("memory", 500), kit.environment)
    assert "500 ms and one sync, at most 256 MiB" in weak.could_lose()
    assert log.stats()["segments"] == 1
