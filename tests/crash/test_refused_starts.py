"""A disk that refuses one of the files that a start needs: it fails with a sentence, or serves, and
whatever it was, the next start on a good disk has all that was ever acknowledged."""

from __future__ import annotations

import errno

import pytest

from cometmq.errors import LogError
from cometmq.log import LogSettings, Outcome
from cometmq.testing.files import Operation
from cometmq.testing.log_kit import LogKit, in_loop, two_segments
from cometmq.testing.log_reader import consume

SETTINGS = LogSettings(mark_idle_ms=100, segment_bytes=3000)
STEPS = 3
"""At which use of such a file it is refused."""


async def serve(kit: LogKit) -> int:
    """Live until a clean stop, or until the disk refuses it; how many sends were acknowledged."""
    stored = 0
    log = await kit.open(settings=SETTINGS)
    assert not kit.report.in_doubt, kit.report
    for _ in range(4):
        try:
            outcomes = kit.wait("disk", kit.append(0, 1, body=bytes(700)))
        except LogError:
            continue
        log.write()
        await kit.settle(0.3)
        stored += outcomes == [Outcome.REACHED]
    await log.close()
    return stored


async def attack(kit: LogKit, operation: Operation, number: int, name: str) -> None:
    """Refuse that, once and for good, at each of some steps."""
    stored = len((await consume(await kit.open(settings=SETTINGS))).bodies)
    for step in range(2 * STEPS):
        kit.kill()
        times = 1 if step % 2 else None
        kit.environment.files.fail(operation, number, name=name, times=times, skip=step // 2)
        try:
            stored += await serve(kit)
        except LogError as error:
            assert str(error)
        kit.environment.files.mend()
    kit.kill()
    stored += await serve(kit)
    kit.kill()
    log = await kit.open(settings=SETTINGS)
    assert not (kit.report.in_doubt or kit.report.damage)
    seen = await consume(log)
    assert not seen.damaged and len(seen.bodies) == log.next_offset(1, 0) + log.next_offset(1, 1)
    assert len(seen.bodies) >= stored
    kit.kill()


@pytest.mark.parametrize("name", ["/cut", "/node", ".queue", "reserve", ".tmp", ".seg"])
@pytest.mark.parametrize(
    "operation",
    ["create", "write", "allocate", "truncate", "rename", "unlink", "sync", "sync_folder"],
)
@in_loop
async def test_a_start_that_is_refused_a_file_spoils_nothing(
    kit: LogKit, operation: Operation, name: str
) -> None:
    """Of a log with a torn end, so that a copy of it has to be kept in `cut/`."""
    await two_segments(kit, clean=False)
    for number in (errno.ENOSPC, errno.EIO):
        log = await kit.open(settings=SETTINGS)
        end = kit.append(0, 1).end
        log.write()
        kit.kill()
        kit.shorten(end - 10)
        await attack(kit, operation, number, name)
