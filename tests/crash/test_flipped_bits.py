"""Every bit of a segment, its index and a checkpoint, flipped in turn.

A flip is either harmless, repaired from the log, or told with file and position while the rest is
served; at the unproven end of the log it may be a cut that is told and kept. Never wrong bytes,
never a silent skip.
"""

from __future__ import annotations

import pytest

from cometmq.batch import Batch, RecordTuple, encode_messages, parse, text_hash
from cometmq.batch.layout import SEALED_AT
from cometmq.broker.filtering import Chosen, filtered
from cometmq.errors import LogError
from cometmq.log import LogSettings
from cometmq.testing.files import FaultyFiles
from cometmq.testing.log_kit import LogKit, in_loop, two_segments
from cometmq.testing.log_reader import Seen, consume

SETTINGS = LogSettings(mark_idle_ms=100)


async def judge(kit: LogKit, before: Seen, unproven: int, what: str) -> str:
    """Start on a harmed folder; what became of it, in a word. `unproven`: from here on a flip may
    be taken for a torn end."""
    try:
        log = await kit.open(settings=SETTINGS)
    except LogError as error:
        assert "restore" in str(error) or "look at it" in str(error), f"{what}: {error}"
        return "refused"
    report = kit.report
    seen = await consume(log)
    for place, body in seen.bodies.items():
        assert before.bodies.get(place) == body, f"{what}: {place} has other bytes"
    missing = before.bodies.keys() - seen.bodies.keys()
    untold = {place for place in missing - seen.damaged if place[1] < seen.ends[place[0]]}
    assert not untold, f"{what}: {untold} are skipped without a word"
    beyond = missing - seen.damaged
    if report.cuts:
        (cut,) = report.cuts
        assert cut.position >= unproven, f"{what}: {cut} of what was proven to be on disk"
        assert kit.environment.files.read_file(cut.kept), f"{what}: nothing was kept"
        return "cut"
    if report.in_doubt:
        assert "position" in report.in_doubt or ".seg" in report.in_doubt, what
        return "doubt"
    assert not beyond, f"{what}: {beyond} are gone"
    if missing:
        assert all(".seg" in detail or "position" in detail for detail in seen.details), what
        return "damaged"
    return "harmless"


def flipped(files: FaultyFiles, path: str, at: int, bit: int) -> FaultyFiles:
    copy = files.crash()
    old = copy.read_file(path)[at]
    file = copy.open(path)
    file.write(at, [bytes([old ^ (1 << bit)])])
    file.sync_blocking()
    return copy


async def sweep(kit: LogKit, *, every: int, bits: int) -> dict[str, int]:
    """Flip `bits` bits of every `every`-th byte of every file but prepared zeros; how often each
    thing came of it."""
    files = kit.environment.files.crash()
    kit.environment.files = files.crash()
    before = await consume(await kit.open(settings=SETTINGS))
    assert len(before.bodies) == 8
    unproven = max(batch.synced_before for batch in kit.batches() if batch.epoch == 1)
    kit.kill()
    kit.environment.files = files
    outcomes: dict[str, int] = {}
    for path, content in sorted(kit.content().items()):
        for at in range(0, len(content), every):
            for bit in range(at, at + bits):
                kit.environment.files = flipped(files, path, at, bit % 8)
                outcome = await judge(
                    kit, before, unproven, f"bit {bit % 8} of byte {at} of {path}"
                )
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
                kit.kill()
    return outcomes


@pytest.mark.parametrize("clean", [True, False])
@in_loop
async def test_flipped_bits_are_harmless_repaired_or_told(kit: LogKit, clean: bool) -> None:
    await two_segments(kit, clean=clean)
    outcomes = await sweep(kit, every=3, bits=1)
    print(outcomes)
    assert outcomes.keys() >= {"harmless", "doubt", "damaged", "cut"}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("clean", [True, False])
@in_loop
async def test_every_flipped_bit_is_harmless_repaired_or_told(kit: LogKit, clean: bool) -> None:
    await two_segments(kit, clean=clean)
    outcomes = await sweep(kit, every=1, bits=8)
    print(outcomes)


class Tagged:
    """Selects by tag, as a broker does before it cuts a batch."""

    def __init__(self, tag: str) -> None:
        self._hash = text_hash(tag)

    def select(self, batch: Batch) -> list[int] | None:
        return [place for place, one in enumerate(batch.tag_hashes) if one == self._hash]


def test_a_filter_neither_hides_damage_nor_seals_it_anew() -> None:
    """A cut gets a CRC of the broker's own: of what is not intact there must be none."""
    records: list[RecordTuple] = [(0, b"body", tag, (), {}) for tag in ("a", "b", "b", "b")]
    batch = encode_messages("topic", 0, records)
    chosen = Chosen(Tagged("a"), "test", lambda plugin, error: pytest.fail(f"{error!r}"))
    (cut,) = filtered(chosen, [memoryview(batch)], 0, len(batch))
    assert parse(cut).count == 1
    for at in range(SEALED_AT, len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 1
        assert filtered(chosen, [memoryview(damaged)], 0, len(batch)) == [damaged]
