"""A running log: drains, positions and levels, and what fails."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from cometmq.batch import Kind
from cometmq.errors import LogStopped, NoSpace, NotAvailable
from cometmq.log import Log, LogSettings, Outcome
from cometmq.protocol import Status
from cometmq.testing.log_kit import LogKit, in_loop
from cometmq_plugins.group_commit import GroupCommit

MakeKit = Callable[..., LogKit]
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
async def test_a_stamp_says_where_when_and_what_was_on_disk(kit: LogKit) -> None:
    log = await kit.open()
    synced = log.synced
    first = kit.append(count=2)
    log.write()
    second = kit.append(queue=3, incarnation=7)
    log.write()
    third = await kit.send()
    fourth = kit.append()
    log.write()
    stored = {batch.position: batch for batch in kit.batches()}
    stamps = [stored[a.position].synced_before for a in (first, second, third, fourth)]
    assert stamps == [synced, synced, synced, third.end]
    batch = stored[second.position]
    assert (batch.incarnation, batch.queue, batch.base_offset, batch.epoch) == (7, 3, 0, 1)
    assert batch.store_time == kit.environment.clock.wall_ms() == second.store_time


@in_loop
async def test_a_large_batch_is_stored_as_it_came(kit: LogKit) -> None:
    log = await kit.open()
    body = bytes(range(256)) * 400
    await kit.send(body=body)
    result = log.read_now(1, 0, 0, 1 << 20)
    assert result is not None and body in bytes(result.batches[0])
    kit.kill()
    assert (await kit.open()).next_offset(1, 0) == 1


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
async def test_with_level_memory_all_is_readable_when_appended(make_kit: MakeKit) -> None:
    kit = make_kit(lambda: GroupCommit("memory", 500))
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
async def test_a_lone_waiter_is_told_from_a_crowd(make_kit: MakeKit) -> None:
    heard: list[tuple[bool, bool]] = []

    class Policy(GroupCommit):
        def appended(self, awaited: bool, alone: bool) -> None:
            heard.append((awaited, alone))
            super().appended(awaited, alone)

    kit = make_kit(lambda: Policy("disk", 500))
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


# --- words ------------------------------------------------------------------------------------


@in_loop
async def test_what_could_be_lost_is_said(kit: LogKit) -> None:
    log = await kit.open()
    assert "takes nothing that was acknowledged at level disk" in log.could_lose()
    weak = Log(kit.storage, GroupCommit("memory", 500), kit.environment)
    assert "500 ms and one sync, at most 256 MiB" in weak.could_lose()
    assert log.stats()["segments"] == 1
