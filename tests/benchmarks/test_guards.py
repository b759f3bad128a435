"""Guards: a hot path that has become dearer is found here, and each kind of loss is shown to be."""

from __future__ import annotations

import gc
import inspect
import pathlib
import textwrap
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest
from benchmarks.guards import baselines
from benchmarks.guards.counting import Counters, Measure, costs_of
from benchmarks.guards.paths import MESSAGES, PATHS, Path

from cometmq.batch import decode, layout
from cometmq.broker import dispatch, sends
from cometmq.client import cursor, producing
from cometmq.client.validation import record_of
from cometmq.log import writer
from cometmq.message import Message

AGREED = baselines.read().get(baselines.PYTHON, {})
BORN_MS = 1_750_000_000_000
ADVICE = (
    "find what was added and take it out; if it is worth its price, write the new costs with "
    f"`{baselines.RENEW}` and say in the commit what they are for"
)


@pytest.mark.parametrize("name", PATHS)
def test_no_path_has_become_dearer(name: str) -> None:
    if not AGREED:
        pytest.skip(f"no costs are agreed on for Python {baselines.PYTHON}: {baselines.RENEW}")
    assert name in AGREED, f"{name} has no costs in {baselines.FILE.name}: {baselines.RENEW}"
    dearer = baselines.risen(name, AGREED[name], costs_of(PATHS[name]))
    assert not dearer, "; ".join(dearer) + f": {ADVICE}"


def test_the_agreed_costs_are_of_paths_that_there_are() -> None:
    for python, costs in baselines.read().items():
        assert list(costs) == list(PATHS), f"Python {python}: {baselines.RENEW}"


def test_what_was_written_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    table = baselines.read()
    monkeypatch.setattr(baselines, "FILE", tmp_path / "baselines.toml")
    baselines.write(table)
    assert baselines.read() == table


# --- what holds in every version of Python ---


def test_the_broker_does_nothing_for_each_message() -> None:
    one, full = costs_of(PATHS["publish-one"]), costs_of(PATHS["publish-full"])
    # What a request of more bytes costs as a whole is not even a step a message.
    assert full.steps < one.steps + MESSAGES / 2
    assert full.calls <= 1.02 * one.calls
    # It was given bytes that it may write as they are: of a body there is no second copy.
    assert full.peak_bytes < MESSAGES * 1024 / 4


def test_a_drain_is_one_write() -> None:
    assert costs_of(PATHS["publish-64-in-a-drain"]).outside == 1


def test_what_was_read_is_sent_as_it_lies() -> None:
    assert costs_of(PATHS["fetch-1-mib"]).peak_bytes < 1.1 * (1 << 20)


def test_costs_are_the_same_each_time() -> None:
    first, second = costs_of(PATHS["publish-one"]), costs_of(PATHS["publish-one"])
    assert (first.steps, first.calls, first.outside) == (second.steps, second.calls, second.outside)


def test_what_is_not_measured_costs_nothing() -> None:
    def path(before: int, within: int) -> Path:
        def run(counters: Counters, measure: Measure) -> None:
            for _ in range(before):
                layout.bad("place", 1, "another one")
            measure(lambda: [layout.bad("place", 1, "another one") for _ in range(within)])

        return run

    assert costs_of(path(9, 1)).steps == costs_of(path(0, 1)).steps
    assert costs_of(path(0, 9)).calls > costs_of(path(0, 1)).calls


@pytest.mark.parametrize("tag", ["", "paid"])
def test_the_garbage_collector_does_not_follow_what_is_kept_of_a_message(tag: str) -> None:
    # A receipt keeps its record: hundreds of thousands may be there at a time.
    kept = [record_of(BORN_MS, b"body", Message("orders", b"", tag)) for _ in range(3)]
    gc.collect()
    assert not any(gc.is_tracked(record) for record in kept)
    assert not gc.is_tracked(Message("orders", b"body"))


# --- what was added on purpose is found ---


class Mutation(NamedTuple):
    """A line of a function, and what stands there instead."""

    path: str
    home: Any
    name: str
    old: str
    new: str
    cost: str
    """What rises."""
    users: tuple[ModuleType, ...] = ()
    """Modules that imported the function by name."""

    def do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put a changed copy of the function in its place."""
        function: FunctionType = getattr(self.home, self.name)
        source = textwrap.dedent(inspect.getsource(function))
        (line,) = (line for line in source.splitlines() if line.strip() == self.old)
        indent = line[: -len(line.lstrip())]
        source = source.replace(line, textwrap.indent(textwrap.dedent(self.new), indent))
        scope = dict(function.__globals__)
        code = "from __future__ import annotations\n" + source
        exec(compile(code, function.__code__.co_filename, "exec"), scope)
        for one in (self.home, *self.users):
            monkeypatch.setattr(one, self.name, scope[self.name])


MUTATIONS = {
    "a list for each message that is decoded": Mutation(
        "poll",
        decode,
        "decode_messages",
        "message.offset = offset",
        "list(); message.offset = offset",
        "steps",
        (cursor,),
    ),
    "a list for each message that is sent": Mutation(
        "send-soon",
        producing.Accumulator,
        "append_fast",
        "records.append(record)",
        "list(); records.append(record)",
        "steps",
    ),
    "a look at each message in the broker": Mutation(
        "publish-full",
        sends.Sends,
        "_append",
        "batch = self._checked(piece)",
        "batch = self._checked(piece)\nassert all(length > 0 for length in batch.lengths)",
        "steps",
    ),
    "a copy of each batch in the broker": Mutation(
        "publish-full",
        sends.Sends,
        "_append",
        "batch = self._checked(piece)",
        "batch = self._checked(memoryview(bytes(piece)))",
        "peak_bytes",
    ),
    "a copy of each batch in the client": Mutation(
        "poll",
        cursor.Cursor,
        "_decode_next",
        "self._check(batch, log_id)",
        "copy = bytes(chunk)\nself._check(batch, log_id)",
        "peak_bytes",
    ),
    "a second proof of each batch": Mutation(
        "publish-full",
        sends.Sends,
        "_append",
        "batch = self._checked(piece)",
        "batch = self._checked(piece); self._checked(piece)",
        "crc_bytes",
    ),
    "two writes for a drain": Mutation(
        "publish-64-in-a-drain",
        writer.LogWriter,
        "flush",
        "self._storage.write(self._positions.appended, self._buffers)",
        """\
        self._storage.write(self._positions.appended, self._buffers[:1])
        behind = self._positions.appended + len(self._buffers[0])
        self._storage.write(behind, self._buffers[1:])""",
        "outside",
    ),
    "a debug line for each request": Mutation(
        "publish-one",
        dispatch.Dispatcher,
        "_begin",
        "session = request.session",
        "session = request.session\n"
        "for part in (request.id, request.operation, request.size_bytes):\n"
        "    logger.debug('%s of %s: %s', part, request.peer.name, route.name)",
        "calls",
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_what_was_added_on_purpose_is_found(
    monkeypatch: pytest.MonkeyPatch, mutation: Mutation
) -> None:
    path = PATHS[mutation.path]
    before = costs_of(path)
    mutation.do(monkeypatch)
    dearer = baselines.risen(mutation.path, before, costs_of(path))
    assert any(f" {mutation.cost}, " in sentence for sentence in dearer), dearer
