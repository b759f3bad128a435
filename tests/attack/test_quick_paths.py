"""What is done in fewer steps while little is going on must be what is done otherwise."""

from __future__ import annotations

import errno

import pytest

from cometmq.log import LogSettings, Outcome, writer
from cometmq.testing.environment import VirtualEnvironment
from cometmq.testing.log_kit import LogKit, in_loop
from cometmq_plugins.group_commit import GroupCommit
from cometmq_plugins.segments import SegmentStorage

HOUR_S = 3600.0
AGING = LogSettings(mark_idle_ms=3_000_000_000, segment_age_s=10 * HOUR_S)


@pytest.fixture
def kit() -> LogKit:
    def storage(environment: object, data: str) -> SegmentStorage:
        assert isinstance(environment, VirtualEnvironment)
        return SegmentStorage(
            environment,
            environment.files,
            data,
            persistent=True,
            step_bytes=1 << 16,
            reserve_bytes=1 << 17,
        )

    return LogKit(storage, lambda: GroupCommit("disk", 500))


# --- the log ------------------------------------------------------------------------------------


@in_loop
async def test_a_segment_closes_by_its_first_message_s_age(kit: LogKit) -> None:
    await kit.open(settings=AGING)
    await kit.settle(20 * HOUR_S)
    assert len(kit.storage.segments()) == 1, "it has no message"
    await kit.send()
    await kit.settle(9.9 * HOUR_S)
    await kit.send()
    assert len(kit.storage.segments()) == 1
    await kit.settle(0.2 * HOUR_S)
    assert len(kit.storage.segments()) == 2, "it needs no further message for that"


@in_loop
async def test_the_age_of_what_was_cut_is_nobody_s(kit: LogKit) -> None:
    await kit.open(settings=AGING)
    await kit.send()
    await kit.settle(9 * HOUR_S)
    kit.environment.files.fail("write", errno.EIO, name=".seg")
    lost = kit.wait("disk", kit.append())
    kit.log.write()
    assert lost == [Outcome.NOT_WRITTEN]
    await kit.send()
    begun = len(kit.storage.segments())
    await kit.settle(2 * HOUR_S)
    assert len(kit.storage.segments()) == begun, "its first message is two hours old"
    await kit.settle(8.1 * HOUR_S)
    assert len(kit.storage.segments()) == begun + 1


@in_loop
async def test_a_segment_that_was_begun_after_a_cut_keeps_more_than_one_message(
    kit: LogKit,
) -> None:
    await kit.open(settings=AGING)
    await kit.send()
    kit.environment.files.fail("write", errno.EIO, name=".seg")
    kit.append()
    kit.log.write()
    await kit.settle(11 * HOUR_S)
    begun = len(kit.storage.segments())
    for _ in range(3):
        await kit.send()
    assert len(kit.storage.segments()) == begun


@in_loop
async def test_a_message_for_which_memory_is_short_leaves_no_hole(
    kit: LogKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kit.open()
    await kit.send(count=3)

    def short(data: object) -> bytearray:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(writer, "bytearray", short, raising=False)
        with pytest.raises(MemoryError):
            kit.append(count=5)
    kit.log.write()
    assert kit.log.next_offset(1, 0) == 3
    assert (await kit.send()).base_offset == 3
