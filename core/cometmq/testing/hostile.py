"""What a hostile client might say, made from a seed: headers at every edge, and byte streams.

`python -m cometmq.testing.hostile ADDRESS SEED SECONDS` is such a client; it never stops by itself
before its time, whatever the broker answers.
"""

from __future__ import annotations

import random
import sys
import time
import types
import typing
from pathlib import Path
from typing import Any

import msgspec

from cometmq import protocol
from cometmq.batch import RecordTuple, encode_messages
from cometmq.protocol import Hello, Operation, Send
from cometmq.testing.zmtp import GREETING, ZmtpPeer, frame, message, ready, request

NUMBERS = [0, 1, 2, 3, 4, 255, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1]
WRONG_NUMBERS = [-1, -(1 << 63), 1 << 63, (1 << 64) - 1]
TEXTS = ["", "victim", "victim", "victim2", "g", "g", "m", "latest", "earliest", "offset", "*"]
NASTY_TEXTS = [
    *["a/b", "../../etc/passwd", "a\x00b", "a\nb", "\u202eevil", "\x1b[2J", "ä" * 200, "%RETRY%g"],
    *["x" * 65536, "a || b", "a ||", "𝕏", "\ud7ff", " ", ".", "CON", "1e999", "NaN", "{}%s"],
]
TIMES_MS = [0, 1, 1_750_000_000_000, 4_102_444_800_000, (1 << 63) - 1]
"""1970, today, 2100 and the end of time."""
OPERATIONS = [*protocol.REQUESTS, 0, 5, 999, 1000, 65535]
STAGES = ("tcp", "handshake", "session")
"""What a stream begins after: a connect, a handshake, a good hello."""


class Hostile:
    """An endless source of bad things, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def header(self, operation: int) -> msgspec.Struct | Any:
        """What an operation's header could be: of the right types mostly, at every edge."""
        kind = protocol.REQUESTS.get(operation, Hello)
        return self._value(kind)

    def batch(self) -> bytearray:
        """A batch that is good mostly, of a client with a strange clock."""
        dice = self.dice
        born_ms = dice.choice(TIMES_MS)
        records: list[RecordTuple] = [
            (born_ms, dice.randbytes(dice.choice([0, 1, 100, 5000])), self.text(), (), {})
            for _ in range(dice.choice([1, 1, 2, 50]))
        ]
        topic = dice.choice(["victim", "victim2"])
        good = encode_messages(topic, dice.choice([0, 1, 3, 4, 65535]), records)
        return good if dice.random() < 0.5 else bytearray(self.damaged(good))

    def text(self) -> str:
        """A name, an expression, a tag."""
        source = TEXTS if self.dice.random() < 0.8 else NASTY_TEXTS
        return self.dice.choice(source)

    def damaged(self, data: bytes | bytearray) -> bytes:
        """The same with some bits flipped, cut off, repeated or put in."""
        dice, changed = self.dice, bytearray(data)
        for _ in range(dice.choice([1, 1, 2, 8])):
            at = dice.randrange(len(changed) + 1)
            what = dice.randrange(4)
            if what == 0 and at < len(changed):
                changed[at] ^= 1 << dice.randrange(8)
            elif what == 1:
                del changed[at:]
            elif what == 2:
                changed[at:at] = changed[max(0, at - 20) : at]
            else:
                changed[at:at] = dice.randbytes(dice.choice([1, 4, 30]))
        return bytes(changed)

    def request(self) -> bytes:
        """One request on the wire; its header fits its operation mostly."""
        dice = self.dice
        operation = dice.choice(OPERATIONS)
        body: list[bytes | bytearray] = []
        header = self.header(operation)
        if operation == Operation.SEND and dice.random() < 0.8:
            body = [self.batch() for _ in range(dice.choice([1, 1, 3, 20]))]
            sizes = [len(batch) for batch in body]
            header = Send(sizes, [0] * len(body), one_way=dice.random() < 0.2)
        if operation == Operation.HELLO and dice.random() < 0.8:
            header = Hello(1, 1, f"fuzz-{dice.randrange(1 << 30)}")
        return request(dice.choice([0, 1, 2, (1 << 64) - 1]), operation, header, *body)

    def stream(self, stage: str) -> bytes:
        """All that one connection says after a stage."""
        dice = self.dice
        if stage == "tcp":
            whole = GREETING + ready(dice.choice([b"DEALER", b"REQ", b"PUB", b"\xff" * 200]))
            starts = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", self.damaged(whole)]
            return dice.choice([*starts, whole[: dice.randrange(len(whole))]]) + self._noise()
        said = [dice.choice((self.request, self.request, self._frames))() for _ in range(20)]
        if dice.random() < 0.3:
            said += dice.sample(said, 5)
            dice.shuffle(said)
        joined = b"".join(said)
        return self.damaged(joined) if dice.random() < 0.3 else joined

    def _noise(self) -> bytes:
        return self.dice.randbytes(self.dice.choice([0, 1, 100, 10_000]))

    def _frames(self) -> bytes:
        """Frames that are no request. With the transport `zeromq` the pings may abort the broker,
        which is known and told in docs/reliability.md."""
        dice = self.dice
        choices = [
            lambda: frame(b"") * dice.choice([1, 1000]),
            lambda: frame(b"", more=True) * dice.choice([1, 17, 1000]),
            lambda: frame(dice.randbytes(dice.choice([1, 13, 14, 300])), more=dice.random() < 0.2),
            lambda: frame(b"\x05ERROR" + self._noise()[:100], command=True),
            lambda: (
                frame(b"\x04PING" + bytes(2) + self._noise()[:20], command=True)
                * dice.choice([1, 1000])
            ),
            lambda: frame(bytes(1 << 20), more=True) * dice.choice([1, 3, 20]),
            lambda: message([dice.randbytes(20), *[b"x"] * dice.choice([1, 15, 16, 40])]),
            lambda: b"\x02" + dice.choice([b"\xff" * 8, bytes(7) + b"\x01", b"\x00\x00\x7f"]),
        ]
        return dice.choice(choices)()

    def _value(self, kind: Any) -> Any:
        """Something of a type, at an edge of it; now and then of another type."""
        dice = self.dice
        if dice.random() < 0.01:
            return dice.choice([None, -1, 1 << 63, "x", b"\xff", [], {}, 1.5, float("nan")])
        origin = typing.get_origin(kind)
        if origin is typing.Annotated:
            return self._value(typing.get_args(kind)[0])
        if origin in (typing.Union, types.UnionType, typing.Literal):
            chosen = dice.choice(typing.get_args(kind))
            return chosen if origin is typing.Literal else self._value(chosen)
        if origin in (list, tuple):
            count = dice.choice([0, 1, 1, 2, 5])
            return [self._value(typing.get_args(kind)[0]) for _ in range(count)]
        if origin is dict:
            return {self.text(): self.text() for _ in range(dice.choice([0, 1, 3]))}
        if kind is bool:
            return dice.random() < 0.5
        if kind is int:
            return dice.choice(NUMBERS if dice.random() < 0.97 else WRONG_NUMBERS)
        if kind is str:
            return self.text()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            hints = typing.get_type_hints(kind, include_extras=True)
            return kind(*(self._value(hints[name]) for name in kind.__struct_fields__))
        return None


def play(address: str, stage: str, stream: bytes, patience_s: float = 0.05) -> None:
    """Say this to a broker, read a little of what it answers, and leave. That it closes on us, or
    stops reading, is its right. Raises ConnectionRefusedError if nobody listens there."""
    try:
        with ZmtpPeer(address, 5.0) as peer:
            if stage != "tcp":
                peer.shake_hands()
            if stage == "session":
                peer.say_hello()
            peer.send(stream)
            peer.drain(patience_s)
    except ConnectionRefusedError:
        raise
    except (ConnectionError, TimeoutError):
        return


def main(address: str, seed: int, seconds: float, keep: str = "") -> None:
    """Play streams until the time is over. Once nobody listens any more it ends, and writes the
    stream before, which may have brought down the broker, to the file `keep`; to write each would
    busy the disk that the broker waits for."""
    hostile = Hostile(seed)
    until_s = time.monotonic() + seconds
    before = b""
    while time.monotonic() < until_s:
        stage = hostile.dice.choice(STAGES)
        stream = hostile.stream(stage)
        try:
            play(address, stage, stream)
        except ConnectionRefusedError:
            if keep:
                Path(keep).write_bytes(before)
            raise SystemExit(f"nobody listens at {address} any more") from None
        before = stream


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
