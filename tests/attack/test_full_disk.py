"""A disk that fills up and stays full: nothing acked is lost, and a start is always possible."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from cometmq.batch import Batch
from cometmq.errors import NoSpace
from cometmq.testing.files import FaultyFiles
from cometmq.testing.log_kit import LogKit, in_loop

STEP = 1 << 16

MakeKit = Callable[..., LogKit]


def full(files: FaultyFiles) -> None:
    total, free = files.space("/")
    files.capacity_bytes = total - free


async def fill(kit: LogKit, size_bytes: int) -> int:
    """Send until there is no space; how many messages went."""
    sent = 0
    while True:
        try:
            await kit.send(body=bytes(size_bytes))
        except NoSpace:
            return sent
        sent += 1


def messages(kit: LogKit) -> int:
    return sum(
        batch.count for batch in kit.batches() if isinstance(batch, Batch) and not batch.kind
    )


@pytest.mark.parametrize("size_bytes", [10, 3_000])
@in_loop
async def test_a_broker_that_filled_its_disk_starts_again_and_again(
    make_kit: MakeKit, size_bytes: int
) -> None:
    kit = make_kit(step_bytes=STEP, reserve_bytes=2 * STEP)
    await kit.open()
    sent = await fill_after(kit, size_bytes)
    for start in range(20):
        if start % 2:
            await kit.log.close()
        kit.crash(Random(start))
        await kit.open()
        assert not kit.report.in_doubt
        sent += await fill(kit, size_bytes)
        assert messages(kit) == sent


async def fill_after(kit: LogKit, size_bytes: int) -> int:
    full(kit.environment.files)
    return await fill(kit, size_bytes)


@in_loop
async def test_a_disk_too_small_for_a_reserve_is_not_filled_to_the_last_byte(
    make_kit: MakeKit,
) -> None:
    kit = make_kit(step_bytes=STEP, reserve_bytes=64 * STEP)
    kit.environment.files.capacity_bytes = 16 * STEP
    await kit.open()
    sent = await fill(kit, 3_000)
    for start in range(20):
        kit.crash(Random(start))
        await kit.open()
        sent += await fill(kit, 3_000)
    assert messages(kit) == sent


@in_loop
async def test_control_batches_leave_of_the_reserve_what_a_start_needs(make_kit: MakeKit) -> None:
    kit = make_kit(step_bytes=STEP, reserve_bytes=2 * STEP)
    await kit.open()
    full(kit.environment.files)
    with pytest.raises(NoSpace):
        while True:
            kit.log.append_control("mark", [[0, "x" * 4_000]])
            kit.log.write()
            await kit.settle()
    kit.kill()
    await kit.open()
    with pytest.raises(NoSpace):
        await kit.send()
    kit.log.append_control("mark", [[0]])  # as a trim would, which is what makes room
    kit.log.write()
