"""Bytes to messages: the same whatever pieces the bytes come in, and no more than is allowed."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq import native
from cometmq.environment import Buffer
from cometmq.interfaces import Limits
from cometmq.testing.zmtp import GREETING, frame, message, ready
from cometmq_transports.zmtp.decoder import DIRECT_FROM_BYTES, SCRATCH_BYTES, Decoder
from cometmq_transports.zmtp.outbox import Outbox
from cometmq_transports.zmtp.wire import READY, answer, command, header

HELLO = GREETING + ready()
PING = frame(b"\x04PING\x00\x00ctx", command=True)
LIMITS = Limits(frame_bytes=100_000, frames=4, credit_bytes=150_000)
SIZES = [0, 1, 2, 254, 255, 256, 1023, 1024, DIRECT_FROM_BYTES - 1, DIRECT_FROM_BYTES, 9000, 20_000]


class Heard:
    """What a decoder made of bytes that came in pieces of these sizes, again and again."""

    def __init__(
        self,
        data: bytes,
        pieces: Iterable[int] = (),
        limits: Limits = LIMITS,
        most: int = 1000,
        scratch_bytes: int = 2 * DIRECT_FROM_BYTES,
    ) -> None:
        self.messages: list[list[bytes]] = []
        self.per_call: list[int] = []
        self._most = most
        self._scratch = memoryview(bytearray(scratch_bytes))
        self.decoder = Decoder(self._scratch, limits)
        sizes = list(pieces) or [len(data)]
        at = number = 0
        while at < len(data) and not self.decoder.fault:
            size = sizes[number % len(sizes)]
            number += 1
            self._hear(data[at : at + size])
            at += size

    def _hear(self, piece: bytes) -> None:
        while piece and not self.decoder.fault:
            taken = 0
            for buffer in self.decoder.buffers():
                part = piece[taken : taken + len(buffer)]
                buffer[: len(part)] = part
                taken += len(part)
            assert taken, "no room"
            self._keep(self.decoder.came(taken, self._most))
            another = b"?" * min(taken + 300, len(self._scratch))
            self._scratch[: len(another)] = another
            while self.decoder.pending:
                self._keep(self.decoder.more(self._most))
            piece = piece[taken:]

    def _keep(self, messages: Sequence[Sequence[Buffer]]) -> None:
        self.per_call.append(len(messages))
        self.messages.extend([bytes(part) for part in parts] for parts in messages)

    @property
    def said(self) -> tuple[list[list[bytes]], str, list[bytes]]:
        return self.messages, self.decoder.fault, self.decoder.replies


CONTENTS = {size: random.Random(size).randbytes(size) for size in SIZES}
sizes = st.lists(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3), max_size=6)
pieces = st.lists(st.integers(1, 30_000), min_size=1, max_size=10)


@settings(deadline=None)
@given(sizes, pieces, st.integers(1, 5))
def test_any_pieces_make_the_same_messages(
    sizes: list[list[int]], pieces: list[int], most: int
) -> None:
    sent = [[CONTENTS[size] for size in parts] for parts in sizes]
    heard = Heard(HELLO + b"".join(map(message, sent)), pieces, most=most)
    assert heard.said == (sent, "", [READY])
    assert max(heard.per_call, default=0) <= most


@settings(deadline=None)
@given(sizes)
def test_what_an_outbox_sends_a_decoder_hears(sizes: list[list[int]]) -> None:
    sent = [[CONTENTS[size] for size in parts] for parts in sizes]
    outbox = Outbox()
    for parts in sent:
        outbox.put(parts)
    data = b""
    while gathered := outbox.gathered():
        taken = b"".join(gathered)[:10_000]  # the system takes a part
        data += taken
        outbox.sent(len(taken))
    assert outbox.cost_bytes == 0
    assert Heard(HELLO + data).messages == sent


@settings(deadline=None)
@given(st.sampled_from([b"", GREETING, HELLO]), st.binary(max_size=400), pieces)
def test_rubbish_is_the_same_rubbish_in_any_pieces(
    start: bytes, rubbish: bytes, pieces: list[int]
) -> None:
    small = [1 + size % 40 for size in pieces]
    assert Heard(start + rubbish, small).said == Heard(start + rubbish).said


def test_byte_by_byte() -> None:
    sent = [[b"a", bytes(9000)], [b""], [bytes(300)]]
    assert Heard(HELLO + b"".join(map(message, sent)), [1]).said == (sent, "", [READY])


def test_a_large_frame_is_not_copied_once_it_has_begun() -> None:
    content = random.Random(1).randbytes(90_000)
    decoder = Decoder(memoryview(bytearray(SCRATCH_BYTES)), LIMITS)
    first = HELLO + frame(content)[:9000]
    decoder.buffers()[0][: len(first)] = first
    assert decoder.came(len(first), 10) == []
    rest, scratch = decoder.buffers()
    whole = rest.obj
    left = len(frame(content)) - 9000
    assert (len(rest), len(scratch)) == (left, SCRATCH_BYTES)
    rest[:] = content[-left:]
    scratch[:3] = frame(b"x")
    large, small = decoder.came(left + 3, 10)
    assert large[0] is whole
    assert (large[0], small) == (content, [b"x"])


def test_of_a_large_frame_no_more_comes_at_once_than_was_asked_for() -> None:
    decoder = Heard(HELLO + frame(bytes(90_000))[:9000]).decoder
    left = len(frame(bytes(90_000))) - 9000
    while left > 5000:
        (part,) = decoder.buffers(5000)
        assert len(part) == 5000
        part[:] = bytes(5000)
        assert decoder.came(5000, 10) == []
        left -= 5000
    rest, _ = decoder.buffers(5000)
    assert len(rest) == left
    rest[:] = bytes(left)
    assert decoder.came(left, 10) == [[bytes(90_000)]]


def test_a_header_and_a_little_more_set_nothing_aside() -> None:
    heard = Heard(HELLO + frame(bytes(90_000))[:8000])
    assert len(heard.decoder.buffers()) == 1


def test_a_ping_is_answered_wherever_it_comes() -> None:
    heard = Heard(HELLO + PING + frame(b"one", more=True) + PING + frame(b"two"))
    pong = frame(b"\x04PONGctx", command=True)
    assert heard.said == ([[b"one", b"two"]], "", [READY, pong, pong])


def test_a_pong_is_not_answered() -> None:
    heard = Heard(HELLO + frame(b"\x04PONG", command=True) + frame(b"x"))
    assert heard.said == ([[b"x"]], "", [READY])


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"GET / HTTP/1.1\r\n", "not_zmtp"),
        (b"\x01\x00\x06\x00hello", "not_zmtp"),
        (b"\xff" + bytes(9), "not_zmtp"),
        (GREETING[:10] + b"\x01", "old_protocol"),
        (GREETING.replace(b"NULL", b"NULLS")[:64], "other_mechanism"),
        (GREETING + frame(b"hello"), "bad_handshake"),
        (GREETING + frame(b"\x05HELLO", command=True), "bad_handshake"),
        (
            GREETING + frame(b"\x05READY\x0bSocket-Type\x00\x00\x00\x99DEALER", command=True),
            "bad_handshake",
        ),
        (GREETING + frame(b"\x05READY\x0bSock", command=True), "bad_handshake"),
        (GREETING + frame(b"\x05READY", command=True), "wrong_socket_type"),
        (GREETING + ready(b"SUB"), "wrong_socket_type"),
        (GREETING + b"\x06" + (5000).to_bytes(8, "big"), "bad_command"),
        (HELLO + frame(b"\x09SUBSCRIBEx", command=True), "bad_command"),
        (HELLO + frame(b"\x04PING\x00", command=True), "bad_command"),
        (HELLO + frame(b"\x04PING\x00\x00" + bytes(17), command=True), "bad_command"),
        (HELLO + ready(), "bad_command"),
        (HELLO + b"\x05\x01x", "bad_command"),
        (HELLO + b"\x08\x00", "bad_frame"),
        (HELLO + header(100_001), "frame_too_large"),
        (HELLO + b"\x02" + b"\xff" * 8, "frame_too_large"),
        (HELLO + frame(b"", more=True) * 4 + frame(b""), "too_many_frames"),
        (HELLO + frame(bytes(80_000), more=True) * 2, "message_too_large"),
    ],
)
@pytest.mark.parametrize("size", [1, 10_000])
def test_what_is_not_allowed(data: bytes, fault: str, size: int) -> None:
    heard = Heard(data, [size])
    assert heard.decoder.fault == fault
    assert heard.messages == []


def test_what_came_before_a_fault_is_good() -> None:
    heard = Heard(HELLO + frame(b"good") + b"\xff\xff" + frame(b"never"))
    assert heard.said[:2] == ([[b"good"]], "bad_command")


def test_a_frame_alone_may_be_as_large_as_a_frame() -> None:
    limits = Limits(frame_bytes=100_000, credit_bytes=1000)
    assert Heard(HELLO + frame(bytes(100_000)), limits=limits).messages == [[bytes(100_000)]]


def test_a_name_is_not_looked_at() -> None:
    heard = Heard(GREETING + ready(routing_id=b"me") + frame(b"x"))
    assert heard.said == ([[b"x"]], "", [READY])


def test_commands_count_as_work() -> None:
    heard = Heard(HELLO + PING * 50 + frame(b"x"), most=10)
    assert len(heard.per_call) == 6
    assert heard.decoder.seen == 52


def test_an_answer_is_a_pong() -> None:
    assert answer(b"\x04PING\x00\x00") == command(b"PONG", b"")


def test_what_is_held_is_counted_until_it_is_handed_up() -> None:
    decoder = Decoder(memoryview(bytearray(SCRATCH_BYTES)), LIMITS)

    def hear(data: bytes) -> None:
        at = 0
        for buffer in decoder.buffers():
            size = min(len(buffer), len(data) - at)
            buffer[:size] = data[at : at + size]
            at += size
        decoder.came(at, 100)

    hear(HELLO)
    assert (decoder.holds, decoder.held_bytes) == (False, 0)
    hear(frame(b"begun", more=True) + b"\x00")
    assert (decoder.holds, decoder.held_bytes) == (True, 6)
    hear(b"\x00")
    assert (decoder.holds, decoder.held_bytes) == (False, 0)
    large = frame(bytes(50_000))
    hear(large[:10_000])
    assert (decoder.holds, decoder.held_bytes) == (True, 50_000)
    hear(large[10_000:])
    assert (decoder.holds, decoder.held_bytes) == (False, 0)
    hear(frame(b"x"))
    assert not decoder.holds


# --- received by the module in C ---------------------------------------------------------------


class Received:
    """The same by way of a socket: where `receive` is no help, by `buffers` and `came`."""

    def __init__(self, data: bytes, most: int, in_c: bool) -> None:
        self.messages: list[list[bytes]] = []
        self.by_itself = 0
        scratch = memoryview(bytearray(2 * DIRECT_FROM_BYTES))
        self.decoder = decoder = Decoder(scratch, LIMITS)
        for piece in (HELLO, data):
            sender, receiver = socket.socketpair()
            with sender, receiver:
                receiver.setblocking(False)
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
                sender.sendall(piece)
                sender.close()
                self._drain(receiver, most, in_c)
        self.said = self.messages, decoder.fault, decoder.replies, decoder.seen, decoder.holds

    def _drain(self, receiver: socket.socket, most: int, in_c: bool) -> None:
        decoder = self.decoder
        while not decoder.fault:
            while decoder.pending:
                self._keep(decoder.more(most))
            if in_c and decoder.receives:
                found = decoder.receive(receiver.fileno(), most)
                if found is None or not found[-1]:
                    break
                self.by_itself += 1
                self._keep(decoder.received(found, most))
                continue
            size = receiver.recvmsg_into(decoder.buffers())[0]
            if not size:
                break
            self._keep(decoder.came(size, most))

    def _keep(self, messages: Sequence[Sequence[Buffer]]) -> None:
        self.messages.extend([bytes(part) for part in parts] for parts in messages)


in_c = pytest.mark.skipif(not native.loaded, reason="without the module in C")


@in_c
@settings(deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(SIZES[:9]), min_size=1, max_size=6), max_size=6),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=2),
    st.integers(1, 12),
)
def test_what_c_receives_is_the_same(
    parts: list[list[int]], changes: list[tuple[int, int]], most: int
) -> None:
    data = bytearray(b"".join(message([CONTENTS[size] for size in each]) for each in parts))
    for place, value in changes if data else []:
        data[place % len(data)] = value
    assert Received(bytes(data), most, True).said == Received(bytes(data), most, False).said


@in_c
def test_nothing_is_received_after_a_fault() -> None:
    decoder = Heard(HELLO + b"\x08\x00").decoder
    assert decoder.fault
    assert not decoder.receives


@in_c
def test_whole_messages_are_received_in_one_call() -> None:
    received = Received(message([b"one"]) + message([b"a", b"b" * 300]) + message([b""]), 100, True)
    assert received.messages == [[b"one"], [b"a", b"b" * 300], [b""]]
    assert received.by_itself == 1


@in_c
def test_the_end_of_a_connection_and_nothing_yet_are_told_apart() -> None:
    assert native.receive is not None
    near, far = socket.socketpair()
    buffer = memoryview(bytearray(100))
    with near, far:
        assert native.receive(near.fileno(), buffer, 9, 9, 9, 9) is None
        far.close()
        assert native.receive(near.fileno(), buffer, 9, 9, 9, 9) == ([], 0, 0, 0)
    assert native.receive(-1, buffer, 9, 9, 9, 9) == ([], 0, 0, 0)
