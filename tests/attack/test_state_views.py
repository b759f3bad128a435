"""State views that fail, of which the contract says that they never do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from cometmq.batch import Batch
from cometmq.errors import LogStopped, PluginFailure
from cometmq.log import Outcome, drains
from cometmq.log.state import SLICE_BYTES_MAX
from cometmq.testing.log_kit import LogKit, in_loop


class Failing:
    """A view that fails once it is told to."""

    name = "failing"
    kinds: Sequence[str] = ("messages",)

    def __init__(self) -> None:
        self.counted = 0
        self.error: BaseException | None = None
        self.mute: BaseException | None = None

    def apply(self, batch: Batch) -> None:
        self.counted += batch.count
        error, self.error = self.error, None
        if error is not None:
            raise error

    def slices(self) -> Iterator[bytes]:
        if self.mute is not None:
            raise self.mute
        yield b"%d" % self.counted

    def load(self, data: bytes) -> None:
        self.counted += int(data)

    def reset(self) -> None:
        self.counted = 0


@pytest.mark.parametrize("error", [RuntimeError("mine"), MemoryError()])
@pytest.mark.parametrize("size_bytes", [10, 10_000])
@in_loop
async def test_what_is_taken_in_by_half_is_taken_back_with_its_drain(
    kit: LogKit, error: Exception, size_bytes: int
) -> None:
    view = Failing()
    await kit.open(views=[view])
    await kit.send(count=2)
    before = kit.wait("memory", kit.append(body=bytes(size_bytes)))
    view.error = error
    with pytest.raises(PluginFailure, match=f"state view failing .*{type(error).__name__}"):
        kit.append(count=5, body=bytes(size_bytes))
    behind = kit.wait("disk", kit.append(queue=1))
    kit.log.write()
    assert before == behind == [Outcome.NOT_WRITTEN]
    assert (kit.log.next_offset(1, 0), kit.log.next_offset(1, 1), view.counted) == (2, 0, 2)
    assert (await kit.send()).base_offset == 2
    assert (await kit.send(queue=1)).base_offset == 0
    kit.kill()
    again = Failing()
    log = await kit.open(views=[again])
    assert not kit.report.cuts and not kit.report.damage
    assert (log.next_offset(1, 0), log.next_offset(1, 1), again.counted) == (3, 1, 4)


@in_loop
async def test_a_view_that_can_not_bear_what_the_log_holds_stops_it(kit: LogKit) -> None:
    view = Failing()
    log = await kit.open(views=[view])
    await kit.send()
    view.error = RuntimeError("mine")
    with pytest.raises(PluginFailure, match="mine"):
        kit.append()
    view.error = RuntimeError("again")
    log.write()
    assert "again" in log.stopped


@in_loop
async def test_a_checkpoint_without_the_state_of_a_view_never_counts(kit: LogKit) -> None:
    view = Failing()
    log = await kit.open(views=[view])
    for _ in range(3):
        await kit.send()
    view.mute = MemoryError("short")
    log.roll()
    view.mute = None
    log.write()
    await kit.settle(1)
    assert "MemoryError" in log.stopped
    kit.kill()
    again = Failing()
    log = await kit.open(views=[again])
    assert (log.next_offset(1, 0), again.counted) == (3, 3)


@in_loop
async def test_a_view_that_always_fails_does_not_fill_the_disk_with_segments(kit: LogKit) -> None:
    view = Failing()
    log = await kit.open(views=[view])
    await kit.send()
    while not log.stopped:
        view.error = RuntimeError("mine")
        with pytest.raises(PluginFailure):
            kit.append()
        log.write()
        assert len(kit.storage.segments()) <= drains.TORN_MAX + 1
    assert "state view failing" in log.stopped and "mine" in log.stopped
    with pytest.raises(LogStopped, match="state view failing"):
        kit.append()
    kit.kill()
    again = Failing()
    log = await kit.open(views=[again])
    assert (log.next_offset(1, 0), again.counted, kit.report.in_doubt) == (1, 1, "")


@in_loop
async def test_a_view_that_fails_now_and_then_stops_nothing(kit: LogKit) -> None:
    view = Failing()
    log = await kit.open(views=[view])
    for _ in range(2 * drains.TORN_MAX):
        view.error = RuntimeError("mine")
        with pytest.raises(PluginFailure):
            kit.append()
        log.write()
        await kit.send()
        await kit.settle(2 * drains.TORN_WITHIN_S / drains.TORN_MAX)
    assert not log.stopped and log.next_offset(1, 0) == 2 * drains.TORN_MAX


def broken(method: str, what: object) -> Failing:
    """A view one method of which fails, or yields `what`."""

    def fails(*arguments: object) -> Iterator[object]:
        if isinstance(what, Exception):
            raise what
        return iter([what])

    view: Failing = type("Broken", (Failing,), {method: fails})()
    return view


BROKEN = {
    **{method: RuntimeError("mine") for method in ("apply", "load", "reset", "slices")},
    "slices ": "a text",
    "slices  ": None,
    "slices   ": bytes(SLICE_BYTES_MAX + 1),
}


@pytest.mark.parametrize("method, what", BROKEN.items(), ids=[name.strip() for name in BROKEN])
@in_loop
async def test_a_view_that_fails_in_a_start_is_named_and_leaves_a_log_that_starts_without_it(
    kit: LogKit, method: str, what: object
) -> None:
    await kit.open(views=[Failing()])
    await kit.send()
    kit.kill()
    with pytest.raises(PluginFailure, match="state view failing .*Broken.* failed: .*plugin out"):
        await kit.open(views=[broken(method.strip(), what)])
    kit.kill()
    again = Failing()
    log = await kit.open(views=[again])
    assert (log.next_offset(1, 0), again.counted) == (1, 1)
    assert not (kit.report.in_doubt or kit.report.damage)
