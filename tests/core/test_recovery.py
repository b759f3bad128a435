"""Starts: where a log ends after a kill or a power cut, and what part of it is a log."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from cometmq.batch import Kind
from cometmq.errors import LogError, NoSpace
from cometmq.log import Log, LogSettings, Outcome
from cometmq.protocol import Status
from cometmq.testing.files import PowerCut
from cometmq.testing.log_kit import DATA, LogKit, in_loop


def offsets(log: Log) -> dict[tuple[int, int], int]:
    return dict(log.state.next_offsets.items())


# --- where the log ends -----------------------------------------------------------------------


@in_loop
async def test_a_log_cut_at_any_batch_behind_a_checkpoint_is_its_plain_replay(
    kit: LogKit,
) -> None:
    random = Random(5)
    log = await kit.open()
    for round in range(3):
        for _ in range(6):
            await kit.send(random.randint(0, 2), random.randint(1, 3))
        if round < 2:
            log.roll()
            await kit.settle(1)
    kit.kill()
    files = kit.environment.files
    batches = kit.batches()
    checkpoint_end = next(b.position for b in batches if b.kind == Kind.CHECKPOINT_END)
    for at, last in enumerate(batches):
        if last.position < checkpoint_end:
            continue
        plain: dict[tuple[int, int], int] = {}
        for batch in batches[: at + 1]:
            if batch.kind == Kind.MESSAGES:
                plain[batch.incarnation, batch.queue] = batch.next_offset
        kit.environment.files = files.crash()
        kit.shorten(last.position + last.length)
        log = await kit.open()
        assert offsets(log) == plain
        assert not kit.report.cuts and not kit.report.in_doubt
        assert kit.report.replayed_from <= last.position
        kit.kill()


@pytest.mark.parametrize("zeros", [0, 700])
@in_loop
async def test_a_torn_end_is_cut_kept_and_reported(kit: LogKit, zeros: int) -> None:
    log = await kit.open()
    await kit.send(count=2)
    torn = kit.append(count=5)
    log.write()
    kit.kill()
    kit.shorten(torn.end)
    files = kit.environment.files
    bytes_of_batch = kit.storage.read(torn.position, torn.end - torn.position)
    for size in (1, 75, 76, 130, torn.end - torn.position - 1):
        kit.environment.files = files.crash()
        kit.shorten(torn.position + size)
        if zeros:
            kit.overwrite(torn.position + size, bytes(zeros))
        log = await kit.open()
        (cut,) = kit.report.cuts
        assert cut.position == torn.position and cut.size == size + zeros
        kept = kit.environment.files.read_file(cut.kept)
        assert kept == bytes_of_batch[:size].rstrip(b"\0")
        assert log.next_offset(1, 0) == 2 and log.epoch == 2
        assert (await kit.send()).base_offset == 2
        kit.kill()
        log = await kit.open()
        assert not kit.report.cuts and log.next_offset(1, 0) == 3
        kit.kill()


@in_loop
async def test_prepared_space_is_no_news(kit: LogKit) -> None:
    await kit.open()
    sent = await kit.send()
    kit.kill()
    assert kit.environment.files.open(kit.paths()[0]).size() == 1 << 16
    log = await kit.open()
    assert not kit.report.cuts and not kit.report.damage
    assert log.next_offset(1, 0) == 1
    assert kit.storage.segments()[1].base == sent.end
    assert not [path for path in kit.content() if "/cut/" in path]


@pytest.mark.parametrize("seed", range(40))
@in_loop
async def test_after_a_power_cut_all_that_was_acknowledged_is_there(kit: LogKit, seed: int) -> None:
    random = Random(seed)
    log = await kit.open(settings=LogSettings(segment_bytes=2500))
    acknowledged = 0
    sent = 0
    for _ in range(random.randint(1, 25)):
        appended = kit.append(count=random.randint(1, 3), body=bytes(random.randint(0, 600)))
        sent = log.next_offset(1, 0)
        if random.random() < 0.6:
            outcomes = kit.wait("disk", appended)
            log.write()
            await kit.settle()
            assert outcomes == [Outcome.REACHED]
            acknowledged = sent
        elif random.random() < 0.7:
            log.write()
    for _ in range(3):
        kit.crash(random)
        log = await kit.open(settings=LogSettings(segment_bytes=2500))
        assert not kit.report.in_doubt and not kit.report.damage
        assert acknowledged <= log.next_offset(1, 0) <= sent
        read = 0
        while read < log.next_offset(1, 0):
            result = await log.read(1, 0, read, 1 << 20)
            assert result.status == Status.OK and result.next_offset > read
            read = result.next_offset
        # What a start has shown stays.
        acknowledged = sent = log.next_offset(1, 0)


@pytest.mark.parametrize("after", range(24))
@in_loop
async def test_a_power_cut_at_any_step_of_a_start_or_a_roll_is_harmless(
    kit: LogKit, after: int
) -> None:
    await kit.open()
    await kit.send(count=3)
    kit.kill()
    kit.environment.files.cut_power_after(after)
    with pytest.raises(PowerCut):
        log = await kit.open()
        while True:
            # What the cut hits may be a task, so that only the next step meets it here.
            log.roll()
            await kit.settle(1)
    for dice in (None, Random(after), Random(after + 100)):
        files = kit.environment.files
        kit.crash(dice)
        log = await kit.open()
        assert log.next_offset(1, 0) == 3 and not kit.report.in_doubt
        assert (await log.read(1, 0, 0, 1 << 20)).next_offset == 3
        kit.environment.files = files


@pytest.mark.parametrize("shortened", [False, True])
@in_loop
async def test_a_whole_checkpoint_behind_a_torn_end_goes_with_it(
    kit: LogKit, shortened: bool
) -> None:
    log = await kit.open()
    await kit.send(count=2)
    kit.environment.files.hold_syncs()
    torn = kit.append(count=5)
    log.write()
    log.roll()
    assert not log._writer.checkpointing
    kit.kill()
    # The disk got the second segment first.
    kit.environment.files.holding = False
    if shortened:
        kit.environment.files.open(kit.paths()[0]).truncate(torn.position + 50)
    else:
        kit.overwrite(torn.position, bytes(torn.end - torn.position))
    log = await kit.open()
    (cut,) = kit.report.cuts
    assert cut.position == torn.position and not kit.report.damage and not log.in_doubt
    assert log.next_offset(1, 0) == 2
    assert (await kit.send()).base_offset == 2
    assert (await log.read(1, 0, 0, 1 << 20)).next_offset == 2
    assert (await log.read(1, 0, 2, 1 << 20)).next_offset == 3


@in_loop
async def test_a_folder_whose_first_start_never_wrote_is_a_new_log(kit: LogKit) -> None:
    files = kit.environment.files
    files.make_folder(f"{DATA}/log")
    files.open(f"{DATA}/log/{0:020}.seg", create=True).allocate(0, 1 << 16)
    log = await kit.open()
    assert log.epoch == 1 and not kit.report.cuts
    assert (await kit.send()).base_offset == 0


@in_loop
async def test_a_segment_without_a_whole_checkpoint_is_passed_over(kit: LogKit) -> None:
    log = await kit.open()
    await kit.send(count=3)
    await log.close()
    log = await kit.open()
    base = kit.storage.segments()[1].base
    end = next(b for b in kit.batches() if b.position > base and b.kind == Kind.CHECKPOINT_END)
    kit.kill()
    kit.shorten(end.position)
    for _ in range(2):
        log = await kit.open()
        assert log.next_offset(1, 0) == 3 and not kit.report.cuts
        await kit.settle(1)
        assert (await log.read(1, 0, 0, 1 << 20)).next_offset == 3
        kit.kill()
        kit.shorten(kit.storage.segments()[-1].base)
    assert kit.report.replayed_from == 0


# --- what is on disk --------------------------------------------------------------------------


@in_loop
async def test_what_is_not_provably_on_disk_is_written_again(kit: LogKit) -> None:
    log = await kit.open()
    first = await kit.send()
    kit.append(count=4)
    log.write()
    kit.kill()
    # The process is dead, the machine is not: the page cache has the last batch, the disk hasn't.
    await kit.open()
    assert kit.report.rewritten_bytes >= kit.storage.segments()[1].base - first.end
    kit.crash()
    log = await kit.open()
    assert log.next_offset(1, 0) == 5


@in_loop
async def test_a_start_that_cannot_write_again_fails_by_name(kit: LogKit) -> None:
    log = await kit.open()
    kit.append()
    log.write()
    kit.kill()
    kit.environment.files.fail("sync", errno.EIO, name=".seg")
    with pytest.raises(LogError, match="could not be written again"):
        await kit.open()
    kit.environment.files.mend()
    log = await kit.open()
    assert log.next_offset(1, 0) == 1


# --- parts of a log ---------------------------------------------------------------------------


async def two_segments(kit: LogKit) -> int:
    """Nine messages, then one in a second segment, whose position is returned."""
    log = await kit.open()
    for count in (3, 4, 2):
        await kit.send(count=count)
    log.roll()
    await kit.settle(1)
    await kit.send()
    base = kit.storage.segments()[1].base
    await log.close()
    return base


@in_loop
async def test_the_segments_from_a_checkpoint_on_are_a_log(
    kit: LogKit, make_kit: Callable[[], LogKit]
) -> None:
    base = await two_segments(kit)
    copy = make_kit()
    files = copy.environment.files
    files.make_folder(f"{DATA}/log")
    data = kit.environment.files.read_file(kit.paths()[1])
    files.open(f"{DATA}/log/{base:020}.seg", create=True).write(0, [data])
    log = await copy.open()
    assert copy.report.missing_below == log.start == base and not copy.report.in_doubt
    assert offsets(log) == {(1, 0): 10}
    assert log.log_id == kit.log.log_id
    result = await log.read(1, 0, 9, 1 << 20)
    assert (result.status, result.next_offset, result.min_offset) == (Status.OK, 10, 9)
    assert (await log.read(1, 0, 2, 1 << 20)).status == Status.EXPIRED
    assert (await copy.send()).base_offset == 10


@in_loop
async def test_a_trim_that_was_begun_is_finished(kit: LogKit) -> None:
    base = await two_segments(kit)
    log = await kit.open()
    log.append_control("trim", [[base]])
    log.write()
    await kit.settle(1)
    kit.kill()
    assert len(kit.storage.segments()) == 3
    log = await kit.open()
    assert kit.report.trimmed_segments == 1 and not kit.report.missing_below
    assert (log.start, kit.storage.segments()[0].base) == (base, base)
    assert await log.when_loaded(lambda: log.min_offset(1, 0)) == 9


# --- a full disk ------------------------------------------------------------------------------


@in_loop
async def test_a_start_on_a_full_disk_takes_the_reserve(kit: LogKit) -> None:
    log = await kit.open()
    await kit.send(count=3)
    await log.close()
    kit.environment.files.capacity_bytes = 0
    log = await kit.open()
    assert log.next_offset(1, 0) == 3 and log.epoch == 2
    assert kit.paths("reserve") == []
    await log.close()
    with pytest.raises(NoSpace):
        await kit.open()
    kit.environment.files.capacity_bytes = 1 << 40
    log = await kit.open()
    assert (await kit.send()).base_offset == 3
