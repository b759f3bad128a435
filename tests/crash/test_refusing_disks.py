"""Disks that refuse, once or for good, dawdle, or fill up: what a log makes of each answer."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from cometmq.errors import LogError, LogStopped, NoSpace
from cometmq.interfaces import Level
from cometmq.log import Appended, Log, LogSettings, Outcome
from cometmq.protocol import Status
from cometmq.testing.files import Operation
from cometmq.testing.log_kit import DATA, LogKit, in_loop, two_segments
from cometmq.testing.log_reader import consume

SETTINGS = LogSettings(mark_idle_ms=100)
ROLLING = LogSettings(segment_bytes=3000)


async def opened(kit: LogKit) -> Log:
    """With two messages."""
    log = await kit.open(settings=SETTINGS)
    await kit.send(0, 2)
    return log


async def opened_to_roll(kit: LogKit) -> Log:
    """Whose segment is full soon, and which has its reserve."""
    log = await kit.open(settings=ROLLING)
    await kit.settle(1)
    return log


async def written(kit: LogKit, level: Level, appended: Appended) -> list[Outcome]:
    """What became of it in a second, if anything."""
    outcomes = kit.wait(level, appended)
    kit.log.write()
    await kit.settle(1)
    return outcomes


@pytest.mark.parametrize("power", [True, False])
@in_loop
async def test_after_one_failed_sync_nothing_is_acknowledged_any_more(
    kit: LogKit, power: bool
) -> None:
    log = await opened(kit)
    kit.environment.files.fail("sync", errno.EIO, name=".seg")
    lost = await written(kit, "disk", kit.append(0, 1))
    assert lost == [Outcome.DROPPED] and "sync" in log.stopped
    # The disk "works" again, as after the kernel threw the page away.
    with pytest.raises(LogStopped):
        kit.append(0, 1)
    late = Appended(log.appended, log.appended + 1, 0, 0)
    assert await written(kit, "memory", late) == [Outcome.DROPPED]
    await log.close()
    kit.crash() if power else kit.kill()
    log = await kit.open(settings=SETTINGS)
    assert log.next_offset(1, 0) == (2 if power else 3)
    assert (await kit.send(0, 1)).base_offset == log.next_offset(1, 0) - 1


@pytest.mark.parametrize("level", ["disk", "memory"])
@in_loop
async def test_what_is_written_to_a_deleted_segment_is_never_acknowledged(
    kit: LogKit, level: Level
) -> None:
    """As by `rm -rf` of the data folder. What needs no sync is stopped by the next one."""
    log = await opened(kit)
    path = kit.paths()[0]
    kit.environment.files.unlink(path)
    outcomes = await written(kit, level, kit.append(0, 1))
    assert outcomes == [Outcome.DROPPED if level == "disk" else Outcome.REACHED]
    assert path in log.stopped and "who takes away files" in log.stopped
    with pytest.raises(LogStopped):
        kit.append(0, 1)
    await log.close()


@in_loop
async def test_a_segment_deleted_by_the_broker_itself_during_a_sync_stops_nothing(
    kit: LogKit,
) -> None:
    log = await opened(kit)
    end = log.appended
    files = kit.environment.files
    files.hold_syncs()
    outcomes = kit.wait("disk", kit.append(0, 1))
    log.write()
    await kit.settle()
    assert files.held == 1
    files.holding = False  # those to come don't wait
    log.truncate(end)
    files.release_syncs()
    await kit.settle(1)
    assert outcomes == [Outcome.DROPPED] and not log.stopped
    await kit.send(0, 1)
    assert len((await consume(log)).bodies) == 3


@in_loop
async def test_a_read_that_fails_once_is_told_and_works_again(kit: LogKit) -> None:
    await two_segments(kit, clean=True)
    log = await kit.open(settings=SETTINGS)
    before = await consume(log)
    kit.environment.files.fail("read", errno.EIO, name=kit.paths()[0], times=3)
    result = await log.read(1, 0, 0, 1)
    assert result.status == Status.DAMAGED and "Input/output error" in result.detail
    kit.environment.files.mend()
    assert (await consume(log)).bodies == before.bodies


@in_loop
async def test_a_start_that_can_not_read_changes_nothing(kit: LogKit) -> None:
    await two_segments(kit, clean=True)
    before = kit.content()
    needed = 0
    while True:
        kit.environment.files.fail("read", errno.EIO, name=".seg", skip=needed, times=None)
        try:
            log = await kit.open(settings=SETTINGS)
            if not kit.report.in_doubt:
                break
            await log.close()
        except LogError as error:
            assert "Input/output error" in str(error)
        kit.kill()
        kit.environment.files.mend()
        assert {p: c for p, c in kit.content().items() if p in before} == before
        needed += 1
    assert needed > 3
    kit.environment.files.mend()
    assert len((await consume(log)).bodies) == 8 and not kit.report.cuts


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EFBIG])
@pytest.mark.parametrize(
    "operation", ["write", "allocate", "create", "truncate", "rename", "unlink"]
)
@in_loop
async def test_a_refusal_of_any_kind_is_clear_and_leaves_no_hole(
    kit: LogKit, operation: Operation, number: int
) -> None:
    """Refused, or taken back, or stopped: but what is answered is there, without a hole."""
    log = await kit.open(settings=ROLLING)
    stored = 0
    for skip in (0, 1):
        kit.environment.files.fail(operation, number, skip=skip, after_bytes=50)
        for _ in range(12):
            try:
                outcomes = kit.wait("disk", kit.append(0, 1, body=bytes(500)))
            except (NoSpace, LogError):
                continue
            log.write()
            await kit.settle(0.2)
            if outcomes == [Outcome.REACHED]:
                stored += 1
        if not log.stopped:
            assert log.next_offset(1, 0) == stored
        kit.environment.files.mend()
    await log.close()
    kit.kill()
    log = await kit.open()
    assert not kit.report.in_doubt and not kit.report.damage
    assert log.next_offset(1, 0) >= stored > 0
    seen = await consume(log)
    assert len(seen.bodies) == log.next_offset(1, 0) and not seen.damaged


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EROFS, errno.EIO, errno.ENOSPC])
@in_loop
async def test_a_roll_that_gets_no_file_is_put_off_and_stops_nothing(
    kit: LogKit, number: int
) -> None:
    log = await opened_to_roll(kit)
    stored = 0
    kit.environment.files.fail("create", number, times=None, name=".seg")
    kit.environment.files.unlink(f"{DATA}/log/reserve")
    for _ in range(8):
        await kit.send(0, 1, body=bytes(500))
        stored += 1
    assert not log.stopped and len(kit.paths()) == 1
    kit.environment.files.mend()
    await kit.send(0, 1, body=bytes(500))
    await kit.settle(1)
    assert not log.stopped and len(kit.paths()) == 2
    assert len((await consume(log)).bodies) == stored + 1


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
@in_loop
async def test_a_segment_that_can_not_be_closed_is_gone_on_with(
    kit: LogKit, caplog: pytest.LogCaptureFixture, number: int, stays: bool
) -> None:
    """The next one is there by then, and perhaps can't be removed again."""
    log = await opened_to_roll(kit)
    files = kit.environment.files
    files.fail("truncate", number, times=None, name=".seg")
    if stays:
        files.fail("unlink", number, times=None, name=".seg")
    for _ in range(8):
        await kit.send(0, 1, body=bytes(500))
    assert not log.stopped and len(kit.storage.segments()) == 1
    assert f"{kit.paths()[0]} can't be closed" in caplog.text
    kit.crash()
    log = await kit.open(settings=ROLLING)
    assert not (kit.report.in_doubt or kit.report.damage or kit.report.cuts)
    await kit.settle(1)
    kit.environment.files.mend()
    assert len((await consume(log)).bodies) == 8
    for _ in range(8):
        await kit.send(0, 1, body=bytes(500))
    assert not log.stopped and len(kit.storage.segments()) == len(kit.paths()) >= 3
    assert len((await consume(log)).bodies) == 16


async def refused_roll(kit: LogKit, number: int) -> tuple[Log, int]:
    """A log that got a new segment's file, but no space in it, could not remove it either, and
    went on in the old segment; and how many messages it has."""
    log = await opened_to_roll(kit)
    kit.environment.files.fail("allocate", number, name=".seg")
    kit.environment.files.fail("unlink", errno.EROFS, times=None, name=".seg")
    stored = 0
    while len(kit.paths()) == 1:
        await kit.send(0, 1, body=bytes(500))
        stored += 1
    for _ in range(2):
        await kit.send(0, 1, body=b"behind the name of the file that stayed")
    assert not log.stopped and len(kit.storage.segments()) == 1
    return log, stored + 2


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.ENOSPC])
@in_loop
async def test_a_segment_that_could_not_be_removed_again_goes_before_the_next_one(
    kit: LogKit, number: int
) -> None:
    log, stored = await refused_roll(kit, number)
    assert len(kit.paths()) == 2
    (_, leftover) = kit.paths()
    kit.environment.files.mend()
    await kit.send(0, 1)
    await kit.settle(1)
    assert not log.stopped and len(kit.storage.segments()) == len(kit.paths()) == 2
    assert leftover not in kit.paths()
    assert len((await consume(log)).bodies) == stored + 1


@pytest.mark.parametrize("power", [True, False])
@in_loop
async def test_a_start_never_takes_the_file_that_stayed_for_a_segment(
    make_kit: Callable[[], LogKit], power: bool
) -> None:
    for dice in range(20 if power else 1):
        kit = make_kit()
        _, stored = await refused_roll(kit, errno.EIO)
        kit.crash(Random(dice)) if power else kit.kill()
        kit.environment.files.mend()
        log = await kit.open()
        assert not (kit.report.in_doubt or kit.report.damage or kit.report.cuts)
        assert len((await consume(log)).bodies) == stored
        assert len(kit.paths()) == len(kit.storage.segments()) == 2
        await kit.send(0, 1)


@in_loop
async def test_a_file_that_stayed_and_comes_back_before_later_segments_is_none_either(
    make_kit: Callable[[], LogKit],
) -> None:
    for dice in range(20):
        kit = make_kit()
        log, stored = await refused_roll(kit, errno.EIO)
        kit.environment.files.mend()
        kit.append(0, 1)
        log.write()
        kit.crash(Random(dice))
        log = await kit.open()
        assert not (kit.report.in_doubt or kit.report.damage)
        assert len((await consume(log)).bodies) in (stored, stored + 1)
        assert len(kit.paths()) == len(kit.storage.segments())


@in_loop
async def test_the_log_may_end_where_the_file_that_stayed_begins(kit: LogKit) -> None:
    """What lies behind its name is torn, so the next segment gets that very name."""
    log, stored = await refused_roll(kit, errno.EIO)
    kit.environment.files.mend()
    first, leftover = kit.paths()
    base = int(leftover[-24:-4])
    assert len(kit.paths()) == 2 and log.appended > base
    kit.environment.files.open(first).write(base, [b"torn", bytes(log.appended - base - 4)])
    kit.kill()
    log = await kit.open()
    assert not kit.report.in_doubt and len(kit.report.cuts) + len(kit.report.damage) == 1
    assert len((await consume(log)).bodies) == stored - 2
    assert (await kit.send(0, 1)).base_offset >= stored - 2


@pytest.mark.parametrize("operation", ["open", "rename"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EROFS, errno.EIO])
@in_loop
async def test_a_reserve_that_can_not_be_taken_puts_the_roll_off(
    kit: LogKit, operation: Operation, number: int
) -> None:
    log = await opened_to_roll(kit)
    files = kit.environment.files
    files.fail("create", errno.ENOSPC, times=None, name=".seg")
    files.fail(operation, number, times=None, name="reserve")
    for _ in range(8):
        await kit.send(0, 1, body=bytes(500))
    assert not log.stopped and len(kit.paths()) == 1
    files.mend()
    files.fail("create", errno.ENOSPC, times=None, name=".seg")
    await kit.send(0, 1, body=bytes(500))
    assert not log.stopped and len(kit.paths()) == 2
    assert len((await consume(log)).bodies) == 9


@pytest.mark.parametrize(
    "number, advice", [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max")]
)
@pytest.mark.parametrize("operation", ["create", "sync_folder"])
@in_loop
async def test_a_start_that_may_open_no_file_says_which_limit_to_raise(
    kit: LogKit, operation: Operation, number: int, advice: str
) -> None:
    kit.environment.files.fail(operation, number)
    with pytest.raises(LogError, match=advice) as refused:
        await kit.open()
    assert "check" not in str(refused.value)


@in_loop
async def test_a_start_without_a_file_is_refused_by_name(kit: LogKit) -> None:
    await two_segments(kit, clean=True)
    kit.environment.files.fail("create", errno.EROFS, name=".seg")
    with pytest.raises(LogError, match="can't be made .Read-only file system.: mount it"):
        await kit.open(settings=SETTINGS)
    kit.environment.files.mend()
    log = await kit.open(settings=SETTINGS)
    assert len((await consume(log)).bodies) == 8


@in_loop
async def test_a_disk_that_is_full_refuses_reads_on_and_goes_on(kit: LogKit) -> None:
    log = await opened(kit)
    files = kit.environment.files
    total, free = files.space(DATA)
    files.capacity_bytes = total - free
    sent = 2
    with pytest.raises(NoSpace, match="free"):
        while True:
            await kit.send(0, 1, body=bytes(900))
            sent += 1
    assert log.next_offset(1, 0) == sent
    assert (await log.read(1, 0, 0, 1 << 20)).status == Status.OK
    files.capacity_bytes = 1 << 40
    assert (await kit.send(0, 1)).base_offset == sent


@in_loop
async def test_only_who_waits_for_the_disk_waits_for_a_slow_one(kit: LogKit) -> None:
    log = await kit.open(settings=SETTINGS)
    kit.environment.files.hold_syncs()
    slow = kit.wait("disk", kit.append(0, 1))
    log.write()
    await kit.settle(10)
    fast = kit.wait("memory", kit.append(1, 1))
    log.write()
    await kit.settle()
    assert (slow, fast) == ([], [Outcome.REACHED])
    kit.environment.files.release_syncs()
    await kit.settle(1)
    assert slow == [Outcome.REACHED]


@in_loop
async def test_an_index_that_finds_no_room_leaves_no_half_file(kit: LogKit) -> None:
    log = await opened(kit)
    kit.environment.files.fail("write", errno.ENOSPC, name=".queue", after_bytes=20, times=None)
    log.roll()
    await kit.settle(1)
    assert not kit.paths(".queue") and not kit.paths(".tmp")
    assert (await log.read(1, 0, 0, 1 << 20)).status == Status.OK


@in_loop
async def test_a_trim_whose_write_fails_deletes_nothing(kit: LogKit) -> None:
    await two_segments(kit, clean=True)
    log = await kit.open(settings=SETTINGS)
    await kit.settle(1)
    kit.environment.files.fail("write", errno.EIO, name=".seg")
    with pytest.raises(LogError, match="taken back"):
        await log.trim(log.appended)
    assert log.start == 0 and len(kit.paths()) >= 3
    await log.close()
    kit.kill()
    await kit.open(settings=SETTINGS)
    assert not kit.report.missing_below and not kit.report.trimmed_segments


@in_loop
async def test_a_reserve_that_the_disk_refuses_stops_nothing(kit: LogKit) -> None:
    log = await kit.open(settings=SETTINGS)
    await kit.settle(1)
    kit.environment.files.unlink(f"{DATA}/log/reserve")
    kit.environment.files.fail("allocate", errno.EIO, name="reserve", times=None)
    log.roll()
    await kit.settle(1)
    assert not log.stopped and len(kit.paths()) == 2
    assert (await kit.send(0, 1)).base_offset == 0
