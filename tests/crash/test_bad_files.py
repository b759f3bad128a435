"""Files that are not what they should be: too short, swapped, missing, foreign, or too new."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from crc32c import crc32c

from cometmq.batch import Kind, encode_control, stamp
from cometmq.batch.layout import (
    BROKER_CRC_AT,
    LENGTH_AT,
    PRODUCER_CRC_AT,
    RESERVED,
    SEALED_AT,
    U32,
)
from cometmq.errors import LogError
from cometmq.log import LogSettings
from cometmq.log.verification import verify_log
from cometmq.testing.log_kit import DATA, LogKit, in_loop, two_segments
from cometmq.testing.log_reader import consume

ATTRIBUTES_AT = SEALED_AT
UNKNOWN_KIND = 15
SETTINGS = LogSettings(mark_idle_ms=100)


# --- files that end early, are swapped, missing, foreign or too new -----------------------------


@in_loop
async def test_a_file_that_ends_near_any_edge_is_told_or_a_prefix(kit: LogKit) -> None:
    await two_segments(kit, clean=True)
    files = kit.environment.files
    kit.environment.files = files.crash()
    before = await consume(await kit.open(settings=SETTINGS))
    batches = [batch for batch in kit.batches() if batch.epoch == 1]
    last = kit.storage.segments()[1].base
    kit.kill()
    borders = {batch.position + batch.length for batch in batches}
    edges = sorted({border + near for border in borders for near in (-1, 0, 1)})
    end = edges.pop()
    for edge in edges:
        base = last if edge >= last else 0
        if not base < edge < end:
            continue
        kit.environment.files = files.crash()
        path = f"{DATA}/log/{base:020}.seg"
        file = kit.environment.files.open(path)
        file.truncate(edge - base)
        file.sync_blocking()
        log = await kit.open(settings=SETTINGS)
        seen = await consume(log)
        assert all(before.bodies[place] == body for place, body in seen.bodies.items())
        missing = before.bodies.keys() - seen.bodies.keys()
        if base == 0:
            # Another segment follows: what should be between is known.
            assert missing <= seen.damaged and not kit.report.cuts, edge
            assert kit.report.damage or not missing, edge
        else:
            assert len(kit.report.cuts) == (0 if edge in borders else 1), edge
            assert all(offset >= seen.ends[queue] for queue, offset in missing), edge
        kit.kill()


def read_files(kit: LogKit) -> dict[str, bytes]:
    return {path: kit.environment.files.read_file(path) for path in kit.paths()}


def put_file(kit: LogKit, path: str, content: bytes) -> None:
    files = kit.environment.files
    if files.exists(path):
        files.unlink(path)
    file = files.open(path, create=True)
    file.write(0, [content])
    file.sync_blocking()
    files.sync_folder(f"{DATA}/log")


async def only_reads(kit: LogKit, match: str) -> None:
    """The start is in doubt, says why, writes nothing, and does so again."""
    before = kit.content()
    for _ in range(2):
        log = await kit.open(settings=SETTINGS)
        assert match in kit.report.in_doubt, kit.report
        await log.close()
        kit.kill()
        assert kit.content() == before


@in_loop
async def test_swapped_segments_are_in_doubt(kit: LogKit) -> None:
    await two_segments(kit, clean=True)
    (first, one), (second, two) = read_files(kit).items()
    put_file(kit, first, two)
    put_file(kit, second, one)
    await only_reads(kit, "is no part of this log")


@in_loop
async def test_a_missing_middle_segment_costs_only_its_offsets(kit: LogKit) -> None:
    await two_segments(kit, clean=True)
    before = await consume(await kit.open(settings=SETTINGS))
    await kit.log.close()
    kit.kill()
    kit.environment.files.unlink(kit.paths()[1])
    log = await kit.open(settings=SETTINGS)
    assert not kit.report.in_doubt and kit.report.damage
    seen = await consume(log)
    assert before.bodies.keys() - seen.bodies.keys() == seen.damaged != set()


@in_loop
async def test_the_index_of_another_log_is_made_again(
    kit: LogKit, make_kit: Callable[[], LogKit]
) -> None:
    await two_segments(kit, clean=True)
    other = make_kit()
    other.environment.random = type(other.environment.random)(seed=7)
    await two_segments(other, clean=True)
    side = kit.paths(".queue")[0]
    foreign = other.environment.files.read_file(other.paths(".queue")[0])
    assert foreign != kit.environment.files.read_file(side)
    put_file(kit, side, foreign)
    seen = await consume(await kit.open(settings=SETTINGS))
    assert len(seen.bodies) == 8 and not seen.damaged
    assert kit.environment.files.read_file(side) != foreign


@in_loop
async def test_a_batch_of_a_newer_format_is_never_cut(kit: LogKit) -> None:
    """As after an upgrade and a downgrade: the end of the log is not ours to judge."""
    await two_segments(kit, clean=True)
    end = kit.log.appended
    newer = b"CMB\x02" + bytes(range(1, 251))
    path = f"{DATA}/log/{end:020}.seg"
    put_file(kit, path, newer)
    await only_reads(kit, "format version 2; this release reads up to 1")
    assert "newer release" in kit.report.in_doubt


@in_loop
async def test_a_batch_with_good_crcs_and_unknown_bits_is_never_cut(kit: LogKit) -> None:
    await two_segments(kit, clean=True)
    batch = mark_at(kit, kit.log.appended)
    batch[ATTRIBUTES_AT] |= RESERVED
    reseal(kit, batch)
    kit.overwrite(kit.log.appended, bytes(batch))
    await only_reads(kit, "both CRCs are right")


@in_loop
async def test_a_batch_kind_of_a_newer_release_is_refused_by_name(kit: LogKit) -> None:
    await two_segments(kit, clean=True)
    batch = mark_at(kit, kit.log.appended)
    batch[ATTRIBUTES_AT + 1] = UNKNOWN_KIND
    reseal(kit, batch)
    kit.overwrite(kit.log.appended, bytes(batch))
    before = kit.content()
    with pytest.raises(LogError, match=f"batch-kind-{UNKNOWN_KIND}.*newer release"):
        await kit.open(settings=SETTINGS)
    kit.kill()
    assert kit.content() == before
    given_up = LogSettings(drop_state=[f"batch-kind-{UNKNOWN_KIND}"])
    log = await kit.open(settings=given_up)
    await log.close()
    kit.kill()
    assert len((await consume(await kit.open(settings=SETTINGS))).bodies) == 8


def mark_at(kit: LogKit, position: int) -> bytearray:
    """A mark batch stamped for the end of the log."""
    buffer = encode_control(int(Kind.MARK), [[position]])
    stamp(
        buffer,
        log_id_seed=kit.log._writer.seed,
        position=position,
        epoch=kit.log.epoch,
        synced_before=position,
        base_offset=0,
        store_time=0,
        incarnation=0,
        queue=0,
    )
    return buffer


def reseal(kit: LogKit, buffer: bytearray) -> None:
    """Make both CRCs right again."""
    U32.pack_into(buffer, PRODUCER_CRC_AT, crc32c(buffer[SEALED_AT:]))
    U32.pack_into(buffer, BROKER_CRC_AT, crc32c(buffer[LENGTH_AT:SEALED_AT], kit.log._writer.seed))


@pytest.mark.parametrize("base", [(1 << 63) + 1, (1 << 64) - 1, 10**20 - 1])
@in_loop
async def test_a_name_that_no_log_gets_to_is_told_and_nothing_is_written(
    kit: LogKit, base: int
) -> None:
    await two_segments(kit, clean=True)
    before = kit.content()
    path = f"{DATA}/log/{base:020d}.seg"
    kit.environment.files.open(path, create=True)
    with pytest.raises(LogError, match=f"{base}.seg; move the file away"):
        await kit.open(settings=SETTINGS)
    kit.kill()
    report = verify_log(kit.environment.files, DATA)
    assert [(bad.kind, bad.file) for bad in report.findings] == [("name", path)]
    kit.environment.files.unlink(path)
    assert kit.content() == before
    assert verify_log(kit.environment.files, DATA).intact
    await kit.open(settings=SETTINGS)  # nobody holds the lock


@in_loop
async def test_a_leftover_that_can_not_be_deleted_keeps_nobody_from_starting(
    kit: LogKit, caplog: pytest.LogCaptureFixture
) -> None:
    await two_segments(kit, clean=True)
    stray = f"{DATA}/log/{0:020d}.queue.tmp"
    kit.environment.files.open(stray, create=True)
    kit.environment.files.fail("unlink", errno.EPERM, name=stray, times=None)
    log = await kit.open(settings=SETTINGS)
    assert stray in caplog.text
    assert len((await consume(log)).bodies) == 8
    await kit.send()
