"""Starts on damaged logs: what costs only its offsets, and what puts the state in doubt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cometmq.batch import Kind
from cometmq.errors import LogInDoubt
from cometmq.log import Log
from cometmq.protocol import Status
from cometmq.testing.environment import SeededRandom
from cometmq.testing.log_kit import DATA, LogKit, in_loop


async def in_doubt_twice(kit: LogKit, match: str) -> Log:
    """Start in doubt, twice: nothing is written, nothing can be appended."""
    before = kit.content()
    for _ in range(2):
        log = await kit.open()
        assert match in kit.report.in_doubt and "mq log inspect" in kit.report.in_doubt
        with pytest.raises(LogInDoubt):
            kit.append()
        with pytest.raises(LogInDoubt):
            log.append_control("mark", [[0]])
        with pytest.raises(LogInDoubt):
            log.truncate(0)
        log.write()
        await kit.settle(1)
        assert log.synced == log.appended == log.readable
        await log.close()
        assert kit.content() == before
    return log


@in_loop
async def test_damage_behind_the_checkpoint_puts_the_state_in_doubt(kit: LogKit) -> None:
    log = await kit.open()
    await kit.send(count=3)
    bad = await kit.send(count=4)
    await kit.send(count=2)
    await log.close()
    kit.flip(bad.position + 100)
    log = await in_doubt_twice(kit, f"no intact batch at position {bad.position}")
    assert [damage.position for damage in kit.report.damage] == [bad.position]
    # Readers get what is there, and hear of what isn't.
    good = await log.reader.read(1, 0, 0, 1 << 20, log.readable)
    assert (good.status, good.next_offset) == (Status.OK, 3)
    gap = await log.reader.read(1, 0, 3, 1 << 20, log.readable)
    assert (gap.status, gap.next_offset) == (Status.DAMAGED, 7)


@in_loop
async def test_a_flip_before_a_mark_is_damage_and_no_torn_end(kit: LogKit) -> None:
    await kit.open()
    last = await kit.send()
    await kit.settle(0.2)
    kit.kill()
    assert kit.kinds()[-2:] == [Kind.MESSAGES, Kind.MARK]
    kit.flip(last.position + 80)
    await in_doubt_twice(kit, "it is damaged")


@in_loop
async def test_a_flip_in_what_nobody_was_told_to_be_safe_is_a_torn_end(kit: LogKit) -> None:
    log = await kit.open()
    await kit.send()
    torn = kit.append(count=2)
    kit.append(queue=1)
    log.write()
    kit.kill()
    kit.flip(torn.position + 80)
    log = await kit.open()
    (cut,) = kit.report.cuts
    assert cut.position == torn.position
    assert dict(log.state.next_offsets.items()) == {(1, 0): 1}


@in_loop
async def test_another_nodes_word_proves_nothing_and_nothing_is_cut(kit: LogKit) -> None:
    log = await kit.open()
    bad = await kit.send()
    await kit.send(queue=1)
    await log.close()
    kit.flip(bad.position + 80)
    # A copied folder: the node file stayed behind.
    kit.environment.files.unlink(f"{DATA}/node")
    first = log.node
    before = kit.content()
    log = await kit.open()
    assert log.node != first
    assert kit.content() == before, "a start in doubt gave the folder an id"
    assert f"node {first}" in log.in_doubt and f"node {log.node}" in log.in_doubt
    kit.kill()
    await in_doubt_twice(kit, "no note of its own")


@in_loop
async def test_a_clean_copy_starts_as_a_node_of_its_own(kit: LogKit) -> None:
    log = await kit.open()
    await kit.send(count=3)
    await log.close()
    kit.environment.files.unlink(f"{DATA}/node")
    copied = log.appended
    log = await kit.open()
    # No stamp says what this disk holds: all of it is made sure of.
    assert kit.report.rewritten_bytes == copied
    assert log.next_offset(1, 0) == 3 and log.epoch == 2 and not log.in_doubt


async def two_segments(kit: LogKit) -> tuple[int, int]:
    """Positions of a batch in the first segment and of the second segment."""
    log = await kit.open()
    await kit.send(count=3)
    place = await kit.send(count=4)
    await kit.send(count=2)
    log.roll()
    await kit.settle(1)
    await kit.send()
    base = kit.storage.segments()[1].base
    await log.close()
    return place.position, base


@in_loop
async def test_damage_before_the_checkpoint_costs_only_its_offsets(kit: LogKit) -> None:
    bad, _ = await two_segments(kit)
    kit.flip(bad + 100)
    for path in kit.paths(".queue"):
        kit.environment.files.unlink(path)
    log = await kit.open()
    assert not kit.report.in_doubt
    assert (await kit.send()).base_offset == 10
    gap = await log.read(1, 0, 3, 1 << 20)
    assert (gap.status, gap.next_offset) == (Status.DAMAGED, 7)
    assert f"{0:020}.seg" in gap.detail
    assert (await log.read(1, 0, 7, 1 << 20)).status == Status.OK


@in_loop
async def test_a_young_queues_damaged_first_batch_is_no_expired_one(kit: LogKit) -> None:
    """Also when the index was lost and only the damaged segment itself can be asked."""
    log = await kit.open()
    bad = await kit.send(queue=3, count=4)
    await kit.send(queue=3, count=2)
    log.roll()
    await kit.settle(1)
    await log.close()
    kit.flip(bad.position + 20)
    for path in kit.paths(".queue"):
        kit.environment.files.unlink(path)
    log = await kit.open()
    gap = await log.read(1, 3, 0, 1 << 20)
    assert (gap.status, gap.next_offset) == (Status.DAMAGED, 4)


@in_loop
async def test_an_earlier_segment_that_is_too_short_is_reported(kit: LogKit) -> None:
    bad, base = await two_segments(kit)
    kit.environment.files.open(kit.paths()[0]).truncate(bad + 10)
    log = await kit.open()
    (damage,) = kit.report.damage
    assert damage.position == bad + 10 and f"{base - bad - 10} bytes are missing" in damage.reason
    assert log.next_offset(1, 0) == 10 and not log.in_doubt


@in_loop
async def test_a_hole_behind_the_checkpoint_is_doubt(kit: LogKit) -> None:
    for _ in range(3):
        log = await kit.open()
        await kit.send()
        await log.close()
    second = kit.storage.segments()[1]
    last = kit.storage.segments()[2]
    end = next(b for b in kit.batches() if b.position > last.base and b.kind == 4)
    kit.flip(end.position + 80)
    kit.environment.files.unlink(second.name)
    await in_doubt_twice(kit, "no intact batch at position")


@in_loop
async def test_no_whole_checkpoint_and_no_beginning_is_doubt(kit: LogKit) -> None:
    await two_segments(kit)
    kit.environment.files.unlink(kit.paths()[0])
    base = kit.storage.segments()[1].base
    end = next(b for b in kit.batches() if b.position > base and b.kind == Kind.CHECKPOINT_END)
    kit.flip(end.position + 80)
    await in_doubt_twice(kit, "has a whole head checkpoint")


@in_loop
async def test_a_first_batch_that_cannot_be_read_is_doubt(kit: LogKit) -> None:
    log = await kit.open()
    await kit.send()
    await log.close()
    kit.flip(80)
    await in_doubt_twice(kit, "it can't be told which log this is")


# --- files that are not ours ------------------------------------------------------------------


@in_loop
async def test_the_segment_of_another_log_is_told_by_name(
    kit: LogKit, make_kit: Callable[[], LogKit]
) -> None:
    await two_segments(kit)
    other = make_kit()
    other.environment.random = SeededRandom(99)
    await two_segments(other)
    end = kit.log.appended
    foreign = other.environment.files.read_file(other.paths()[0])
    file = kit.environment.files.open(f"{DATA}/log/{end:020}.seg", create=True)
    file.write(0, [foreign])
    await in_doubt_twice(kit, f"{end:020}.seg is no part of this log: it belongs to another log")


@in_loop
async def test_a_segment_whose_name_lies_is_told_by_name(kit: LogKit) -> None:
    _, base = await two_segments(kit)
    end = kit.log.appended + 5
    copy = kit.environment.files.read_file(kit.paths()[1])
    file = kit.environment.files.open(f"{DATA}/log/{end:020}.seg", create=True)
    file.write(0, [copy])
    await in_doubt_twice(kit, f"its first batch belongs to position {base}")


@in_loop
async def test_old_damage_is_not_taken_for_the_torn_end_of_an_unproven_segment(
    kit: LogKit,
) -> None:
    log = await kit.open()
    await kit.send()
    bad = await kit.send(count=2)
    await kit.send()
    kit.environment.files.hold_syncs()
    kit.append(count=5)
    log.write()
    log.roll()
    kit.kill()
    kit.environment.files.holding = False
    kit.flip(bad.position + 40)
    log = await kit.open()
    assert not kit.report.cuts and not log.in_doubt and log.next_offset(1, 0) == 9
    gap = await log.read(1, 0, 1, 1 << 20)
    assert (gap.status, gap.next_offset) == (Status.DAMAGED, 3)
    assert (await log.read(1, 0, 3, 1 << 20)).next_offset == 9
