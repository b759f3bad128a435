"""State views of plugins that come and go, and the numbers of their batch kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from cometmq.batch import Batch
from cometmq.errors import LogError
from cometmq.log import LogSettings
from cometmq.testing.log_kit import LogKit, in_loop


class Marks:
    """A plugin's view: the last record of its kind."""

    def __init__(self, name: str = "leases", kind: str = "lease") -> None:
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
    log.append_control("lease", [["a"]])
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
    log.append_control("lease", [["a"]])
    await log.close()
    with pytest.raises(LogError, match="--drop-state leases"):
        await kit.open()
    before = kit.content()
    with pytest.raises(LogError, match="enable the plugin again"):
        await kit.open(settings=LogSettings(drop_state=["clams"]))
    assert kit.content() == before
    log = await kit.open(settings=LogSettings(drop_state=["leases"]))
    await log.close()
    # It is recorded: from now on nobody is asked again, and nothing comes back.
    log = await kit.open()
    await log.close()
    view = Marks()
    log = await kit.open(views=[view])
    assert view.seen == []
    log.append_control("lease", [["b"]])
    await log.close()
    with pytest.raises(LogError, match="--drop-state leases"):
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


@in_loop
async def test_two_views_of_one_name_are_refused(kit: LogKit) -> None:
    with pytest.raises(ValueError, match="two state views have the name 'epochs'"):
        await kit.open(views=[Marks("epochs")])
