"""The functions in C against those in Python that they stand for: the same, or nothing."""

from __future__ import annotations

import gc
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cometmq import native
from cometmq.batch import (
    Batch,
    BatchError,
    ProducerTuple,
    encode,
    encode_bodies,
    encode_messages,
    parse,
    rewrite,
    verify_producer,
    verify_unstamped,
    view,
)
from cometmq.batch.layout import BATCH_BYTES_MAX, seal
from cometmq.environment import Buffer
from cometmq.errors import ProtocolError
from cometmq.protocol import frames

pytestmark = pytest.mark.skipif(not native.loaded, reason="without the module in C")
steady = settings(derandomize=True, database=None, deadline=None, max_examples=300)
TIME = 1_796_000_000_000

times = st.integers(-10, 1 << 20) | st.integers(TIME, TIME + 10) | st.integers(-(1 << 63), 1 << 63)
edges = st.sampled_from([255, 256, 16 << 10, (16 << 10) + 1, 65535, 65536]).map(bytes)
bodies = st.lists(st.binary(max_size=30) | edges, min_size=1, max_size=30)
u64 = st.integers(0, (1 << 64) - 1)
producers = st.none() | st.tuples(u64, u64, u64)


def plainly(module: Any, name: str, call: Callable[[], Any]) -> Any:
    """What `call` gives, or its error as text, while the module's function has no shortcut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, None)
        try:
            return call()
        except (BatchError, ProtocolError, struct.error, OverflowError, UnicodeError) as error:
            return type(error), str(error)


def directly(call: Callable[[], Any]) -> Any:
    """The same with it."""
    try:
        return call()
    except (BatchError, ProtocolError, struct.error, OverflowError, UnicodeError) as error:
        return type(error), str(error)


# --- encoding ---------------------------------------------------------------------------------


@st.composite
def births_of(draw: st.DrawFn, count: int) -> list[tuple[int, int]]:
    places = sorted({0, *draw(st.lists(st.integers(0, count - 1), max_size=4))})
    return [(place, draw(times)) for place in places]


@steady
@given(data=st.data(), contents=bodies, queue=st.integers(-1, 65537), producer=producers)
def test_bodies_are_encoded_alike(
    data: st.DataObject, contents: list[bytes], queue: int, producer: ProducerTuple | None
) -> None:
    topic = data.draw(st.text(max_size=70))
    births = data.draw(births_of(len(contents)))

    def call() -> bytearray:
        return encode_bodies(topic, queue, births, contents, producer=producer)

    assert directly(call) == plainly(encode, "_sealed", call)


@steady
@given(
    body=st.binary(max_size=30) | edges,
    born=times,
    tag=st.text(max_size=40) | st.sampled_from(["\ud800", "x" * 255, "x" * 256, "x" * 65536]),
    producer=producers,
)
def test_a_lone_message_is_encoded_alike(
    body: bytes, born: int, tag: str, producer: ProducerTuple | None
) -> None:
    record = (born, body, tag, (), encode.NO_PROPERTIES)

    def call() -> bytearray:
        return encode_messages("orders", 3, [record], producer=producer)

    assert directly(call) == plainly(encode, "_sealed", call)


def test_too_large_a_batch_is_refused_by_the_same_sentence() -> None:
    contents = [bytes(BATCH_BYTES_MAX // 2)] * 2

    def call() -> bytearray:
        return encode_bodies("orders", 0, [(0, TIME)], contents)

    assert directly(call) == plainly(encode, "_sealed", call)
    assert directly(call)[0] is BatchError


@pytest.mark.parametrize(
    "arguments",
    [
        (b"", 0, [(0, 1)], [b"a"], None, ""),
        (bytes(256), 0, [(0, 1)], [b"a"], None, ""),
        (b"t", 65536, [(0, 1)], [b"a"], None, ""),
        (b"t", -1, [(0, 1)], [b"a"], None, ""),
        (b"t", 0, [], [b"a"], None, ""),
        (b"t", 0, [(0, 1)], [], None, ""),
        (b"t", 0, [(1, 1)], [b"a"], None, ""),
        (b"t", 0, [(0, 1), (2, 1)], [b"a"], None, ""),
        (b"t", 0, [(0, 1), (1, 1), (0, 1)], [b"a", b"b"], None, ""),
        (b"t", 0, [(0, 1, 2)], [b"a"], None, ""),
        (b"t", 0, [[0, 1]], [b"a"], None, ""),
        (b"t", 0, [(0, -1)], [b"a"], None, ""),
        (b"t", 0, [(0, 1 << 64)], [b"a"], None, ""),
        (b"t", 0, [(0, 1)], [bytearray(b"a")], None, ""),
        (b"t", 0, [(0, 1)], [b"a"], (1, 2), ""),
        (b"t", 0, [(0, 1)], [b"a"], (1, 2, -3), ""),
        (b"t", 0, [(0, 1)], [b"a"], [1, 2, 3], ""),
        (b"t", 0, [(0, 1)], [b"a"], None, "\ud800"),
        (bytearray(b"t"), 0, [(0, 1)], [b"a"], None, ""),
    ],
)
def test_what_is_not_plain_is_left_to_python(arguments: tuple[Any, ...]) -> None:
    assert native.sealed is not None
    assert native.sealed(*arguments) is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sealed", (b"t",)),
        ("sealed", (b"t", 0, 5, [b"a"], None, "")),
        ("prove", (b"t",)),
        ("stamped", (b"t",)),
        ("pack", (1,)),
        ("framed", ([b"a"],)),
        ("framed", ([b"a"], "x")),
        ("receive", (1,)),
        ("receive", ("x", bytearray(1), 1, 1, 1, 1)),
        ("receive", (0, b"read-only", 1, 1, 1, 1)),
    ],
)
def test_a_mistaken_call_is_an_error_and_no_crash(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, BufferError)):
        getattr(native, name)(*arguments)


# --- proving ----------------------------------------------------------------------------------


def proven(piece: memoryview, limit: int) -> Batch | None:
    """What the broker's checks make of it, in Python."""
    try:
        batch = parse(piece, limit=limit)
        if batch.length != len(piece) or batch.kind:
            return None
        verify_unstamped(batch)
        verify_producer(batch)
    except BatchError:
        return None
    return batch


def fields(batch: Batch) -> tuple[Any, ...]:
    return tuple(getattr(batch, name) for name in batch.__struct_fields__)


@steady
@given(
    contents=st.lists(st.binary(max_size=60), min_size=1, max_size=5),
    producer=producers,
    changes=st.lists(st.tuples(st.integers(0, 140), st.integers(0, 255)), max_size=2),
    cut=st.integers(-3, 3),
    repaired=st.booleans(),
)
def test_what_c_proves_python_proves_too(
    contents: list[bytes],
    producer: ProducerTuple | None,
    changes: list[tuple[int, int]],
    cut: int,
    repaired: bool,
) -> None:
    assert native.prove is not None
    buffer = encode_bodies("orders", 1, [(0, TIME)], contents, producer=producer)
    for place, value in changes:
        buffer[place % len(buffer)] = value
    if repaired:  # or nearly all would only show that the CRC is looked at
        seal(buffer)
    piece = memoryview(bytes(buffer[: len(buffer) - cut] if cut > 0 else buffer + bytes(-cut)))
    found = native.prove(piece, 1 << 20, Batch)
    wanted = plainly(view, "_parse", lambda: proven(piece, 1 << 20))
    if found is not None:
        assert wanted is not None
        assert fields(found) == fields(wanted)
    if not changes and not cut:
        assert found is not None


@steady
@given(
    contents=st.lists(st.binary(max_size=60), min_size=1, max_size=5),
    producer=producers,
    stamp=st.binary(min_size=68, max_size=68),
    changes=st.lists(st.tuples(st.integers(0, 140), st.integers(0, 255)), max_size=2),
    cut=st.integers(-3, 3),
)
def test_what_c_parses_python_parses_alike(
    contents: list[bytes],
    producer: ProducerTuple | None,
    stamp: bytes,
    changes: list[tuple[int, int]],
    cut: int,
) -> None:
    buffer = encode_bodies("orders", 1, [(0, TIME)], contents, producer=producer)
    buffer[4:8], buffer[12:72], buffer[63] = stamp[:4], stamp[8:], 0
    for place, value in changes:
        buffer[place % len(buffer)] = value
    piece = bytes(buffer[: len(buffer) - cut] if cut > 0 else buffer + bytes(-cut))

    def call() -> tuple[Any, ...]:
        return fields(parse(piece, limit=1 << 20))

    assert directly(call) == plainly(view, "_parse", call)
    if not changes and not cut:
        assert native.parse is not None
        assert native.parse(memoryview(piece), 1 << 20, Batch) is not None


@pytest.mark.parametrize("size", [0, 1, 4, 100, 114, 115])
def test_what_is_too_short_is_not_read(size: int) -> None:
    assert native.prove is not None
    whole = bytes(encode_messages("t", 0, [(TIME, b"x", "", (), {})]))
    assert native.prove(memoryview(whole[:size]), 1 << 20, Batch) is None
    assert native.prove(memoryview(whole), len(whole) - 1, Batch) is None
    assert native.prove(memoryview(whole), len(whole), Batch) is not None


# --- stamping ---------------------------------------------------------------------------------

numbers = st.integers(0, (1 << 63) - 1)


@steady
@given(
    stamp=st.tuples(
        st.integers(0, (1 << 32) - 1),
        *[numbers] * 6,
        st.integers(0, 65536),
        st.integers(0, 256),
        st.integers(0, 256),
        numbers,
    ),
    whole=st.booleans(),
)
@example(stamp=(0,) * 11, whole=False)
def test_a_stamp_is_the_same(stamp: tuple[int, ...], whole: bool) -> None:
    assert native.stamped is not None
    buffer = bytes(encode_messages("orders", 1, [(TIME, b"body", "", (), {})]))
    size = len(buffer) if whole else 76
    outcomes: list[object] = []
    for function in (native.stamped, rewrite._stamped):
        batch = parse(buffer)
        try:
            head = function(batch, size, *stamp)
        except struct.error:
            outcomes.append(None)
        else:
            outcomes.append((head, fields(batch)[1:]))
    assert outcomes[0] == outcomes[1]


# --- frames -----------------------------------------------------------------------------------


class Header(msgspec.Struct):
    text: str


@steady
@given(
    request_id=u64,
    code=st.integers(0, 65535),
    text=st.text(max_size=20) | st.just("x" * 8185),
    body=st.lists(st.binary(max_size=20) | st.sampled_from([8150, 8192]).map(bytes), max_size=18),
)
def test_messages_are_packed_and_unpacked_alike(
    request_id: int, code: int, text: str, body: list[bytes]
) -> None:
    def packing() -> Any:
        return frames.pack(request_id, code, Header(text), body)

    packed = packing()
    assert packed == plainly(frames, "_pack", packing)
    sent: list[Buffer] = list(map(bytes, packed))

    def unpacking() -> Any:
        return frames.unpack(sent)

    assert directly(unpacking) == plainly(frames, "_unpack", unpacking)


@steady
@given(sent=st.lists(st.binary(max_size=40), max_size=18))
@example(sent=[bytes(10) + b"\xff\xff\xff\xff"])
def test_what_is_no_message_is_refused_by_the_same_sentence(sent: Sequence[Buffer]) -> None:
    def call() -> Any:
        return frames.unpack(sent)

    if sent:
        assert directly(call) == plainly(frames, "_unpack", call)


def test_what_is_unfilled_is_as_long_as_it_was_asked_for() -> None:
    assert [len(native.unfilled(size)) for size in (0, 1, 1 << 20)] == [0, 1, 1 << 20]
    for size, error in ((-1, ValueError), (1 << 62, MemoryError), ("1", TypeError)):
        with pytest.raises(error):
            native.unfilled(size)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", [5, "text", memoryview(b"abcdef")[::2]])
def test_a_part_that_is_no_bytes_gets_python_s_answer(part: Any) -> None:
    assert native.pack is not None
    assert native.pack(1, 2, b"", [part]) is None


def test_frames_that_a_collection_takes_away_are_kept_until_they_are_read() -> None:
    """Up to Python 3.11 any allocation may run what somebody asked to be run by a collection."""
    unpack = native.unpack
    assert unpack is not None
    others: list[bytes] = []
    sent: list[bytes] = []

    def take_away(phase: str, info: dict[str, int]) -> None:
        sent.clear()
        others.extend(bytes([n + 1]) * 5014 for n in range(9))

    thresholds = gc.get_threshold()
    try:
        for allocations in range(1, 12):
            sent += [bytes([65]) * 10 + bytes(4) + bytes([65]) * 5000]
            gc.collect()
            gc.callbacks.append(take_away)
            gc.set_threshold(allocations)
            found = unpack(sent)
            gc.callbacks.remove(take_away)
            gc.set_threshold(*thresholds)
            others.clear()
            sent.clear()
            if found is not None:  # else they were gone before it began
                assert found[1] == 0x4141
                assert [set(piece) for piece in found[3]] in ([], [{65}])
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks[:] = [other for other in gc.callbacks if other is not take_away]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no buffers of classes in Python")
def test_a_part_may_take_itself_away_while_its_buffer_is_asked_for() -> None:
    assert native.pack is not None and native.unpack is not None
    holders: list[list[Any]] = [[]]

    class Part:
        def __buffer__(self, flags: int) -> memoryview:
            holders[0].clear()
            return memoryview(b"part")

    for _ in range(20):
        body: list[Any] = [Part()]
        holders[0] = body
        assert native.pack(1, 2, b"", body) == [struct.pack("<QHI", 1, 2, 0) + b"part"]
        sent: list[Any] = [bytes(14), Part()]
        holders[0] = sent
        found = native.unpack(sent)
        assert found is not None
        assert found[3] == [b"part"]


# --- the module -------------------------------------------------------------------------------


def test_a_build_of_other_sources_is_left_alone() -> None:
    code = (
        "import zlib; zlib.crc32 = lambda data: 1; from cometmq import native; print(native.loaded)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_another_crc_may_be_put_in_its_place_or_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    prove, module = native.prove, native._module
    assert prove is not None
    piece = memoryview(bytes(encode_messages("t", 0, [(TIME, b"x", "", (), {})])))
    usual = module.crc32c

    class Once:
        def __call__(self, data: Buffer, start: int) -> int:
            module.crc32c = usual
            return int(usual(data, start))

    monkeypatch.setattr(module, "crc32c", None)
    module.crc32c = Once()
    assert prove(piece, 1 << 20, Batch) is not None
    monkeypatch.delattr(module, "crc32c")
    with pytest.raises(KeyError, match="crc32c"):
        prove(piece, 1 << 20, Batch)


def test_a_variable_turns_it_off() -> None:
    code = "from cometmq import native; print(native.loaded, native.pack)"
    for value, printed in (("0", "False None"), ("1", "True <built-in function pack>")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"COMETMQ_NATIVE": value, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == printed


def test_the_command_says_whether_it_is_there() -> None:
    for value, said in (("0", "in plain Python"), ("1", "with its module in C")):
        done = subprocess.run(
            [sys.executable, "-m", "cometmq.cli", "--version"],
            env={"COMETMQ_NATIVE": value, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip().endswith(said)


def test_nothing_is_kept_of_what_was_done() -> None:
    """Also where it gave up in the midst of something."""
    assert native.sealed and native.prove and native.stamped and native.unpack and native.framed
    buffer = bytes(encode_messages("orders", 1, [(TIME, b"body", "", (), {})]))
    odd = [b"a", b"b", bytearray(b"c")]
    message = [b"".join(frames.pack(1, 2, Header("x"))), b"more"]

    def work() -> None:
        for _ in range(300):
            encode_bodies("orders", 0, [(0, TIME)], [b"x" * 300] * 10, producer=(1, 2, 3))
            native.sealed(b"t", 0, [(0, 1)], odd, None, "")  # type: ignore[misc]
            batch = native.prove(memoryview(buffer), 1 << 20, Batch)  # type: ignore[misc]
            assert batch is not None
            native.stamped(batch, 76, *[1] * 11)  # type: ignore[misc]
            with suppress(struct.error):
                native.stamped(batch, 76, *[1] * 10, -1)  # type: ignore[misc]
            native.unpack(message)  # type: ignore[misc]
            native.unpack([b"short"])  # type: ignore[misc]
            native.framed([b"x" * 300], 4096)  # type: ignore[misc]

    tracemalloc.start()
    try:
        work()
        before, _ = tracemalloc.get_traced_memory()
        work()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 8000
