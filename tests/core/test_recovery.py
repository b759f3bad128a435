"""Starts: what a log makes of the bytes that a kill, a power cut or a bad disk left."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from cometmq.batch import Batch, Kind
from cometmq.environment import Environment
from cometmq.errors import LogError, LogInDoubt, NoSpace
from cometmq.interfaces import Storage
from cometmq.log import Log, LogSettings, Outcome
from cometmq.protocol import Status
from cometmq.testing.files import PowerCut
from cometmq.testing.log_kit import DATA, LogKit, in_loop
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


@pytest.fixture
def kit() -> LogKit:
    return LogKit(storage, lambda: GroupCommit("disk", 500))


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


# --- damage -----------------------------------------------------------------------------------


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
    assert offsets(log) == {(1, 0): 1}


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
    log = await kit.open()
    assert log.node != first
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


def stranger() -> LogKit:
    other = LogKit(storage, lambda: GroupCommit("disk", 500))
    other.environment.random = type(other.environment.random)(seed=99)
    return other


@in_loop
async def test_the_segment_of_another_log_is_told_by_name(kit: LogKit) -> None:
    await two_segments(kit)
    other = stranger()
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


# --- parts of a log ---------------------------------------------------------------------------


@in_loop
async def test_the_segments_from_a_checkpoint_on_are_a_log(kit: LogKit) -> None:
    _, base = await two_segments(kit)
    copy = LogKit(storage, lambda: GroupCommit("disk", 500))
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
    _, base = await two_segments(kit)
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


# --- views that come and go -------------------------------------------------------------------


class Marks:
    """A plugin's view: the last record of its kind."""

    def __init__(self, name: str = "claims", kind: str = "claim") -> None:
        self.name = name
        self.kinds: Sequence[str] = [kind]
        self.seen: list[bytes] = []

    def apply(self, batch: Batch) -> None:
        self.seen = [bytes(batch.records)]

    def slices(self) -> Iterator[bytes]:
        yield from self.seen

    def load(self, data: bytes) -> None:
        self.seen = [data]

    def reset(self) -> None:
        self.seen = []


@in_loop
async def test_a_plugins_kind_gets_a_number_that_the_log_remembers(kit: LogKit) -> None:
    view = Marks()
    log = await kit.open(views=[view])
    log.append_control("claim", [["a"]])
    log.write()
    seen = view.seen
    await log.close()
    assert seen
    other, again = Marks("acks", "ack"), Marks()
    log = await kit.open(views=[other, again])
    assert again.seen == seen and other.seen == []
    log.append_control("ack", [["b"]])
    log.write()
    await log.close()
    with pytest.raises(ValueError, match="no state view of this log has the batch kind 'x'"):
        log = await kit.open(views=[other, again])
        log.append_control("x", [["b"]])


@in_loop
async def test_the_state_of_an_absent_plugin_is_not_lost_by_accident(kit: LogKit) -> None:
    log = await kit.open(views=[Marks()])
    log.append_control("claim", [["a"]])
    await log.close()
    with pytest.raises(LogError, match="--drop-state claims"):
        await kit.open()
    before = kit.content()
    with pytest.raises(LogError, match="enable the plugin again"):
        await kit.open(settings=LogSettings(drop_state=["clams"]))
    assert kit.content() == before
    log = await kit.open(settings=LogSettings(drop_state=["claims"]))
    await log.close()
    # It is recorded: from now on nobody is asked again, and nothing comes back.
    log = await kit.open()
    await log.close()
    view = Marks()
    log = await kit.open(views=[view])
    assert view.seen == []
    log.append_control("claim", [["b"]])
    await log.close()
    with pytest.raises(LogError, match="--drop-state claims"):
        await kit.open()


@in_loop
async def test_a_view_that_only_sees_messages_is_missed_too(kit: LogKit) -> None:
    view = Marks("counts", "messages")
    log = await kit.open(views=[view])
    await kit.send()
    assert view.seen
    await log.close()
    log = await kit.open(views=[Marks("counts", "messages")])
    await log.close()
    with pytest.raises(LogError, match="--drop-state counts"):
        await kit.open()
    log = await kit.open(settings=LogSettings(drop_state=["counts"]))
    await log.close()
    log = await kit.open()
    assert log.next_offset(1, 0) == 1


def test_two_views_of_one_name_are_refused(kit: LogKit) -> None:
    with pytest.raises(ValueError, match="two state views have the name 'epochs'"):
        Log(
            storage(kit.environment, DATA),
            GroupCommit("disk", 500),
            kit.environment,
            views=[Marks("epochs")],
        )
