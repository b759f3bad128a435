#!/usr/bin/env python3
"""Print a segment of a CometMQ log: `python read_log.py [--messages] FILE...`

It stands alone (nothing but what comes with Python) and was written from format.md: whoever
holds only a file and that page can get the messages out. One line a batch, or with `--messages`
one JSON line a message. The exit code is 0 only when every byte is accounted for.
"""

import argparse
import base64
import json
import struct
import sys

HEADER = struct.Struct("<3sBIIQQQQqQHBBQIHHIIqIB")
KINDS = (
    "messages segment-start epoch-start checkpoint-slice checkpoint-end mark trim kind-name"
    " topic-change offset-commit min-offset claim group-change clock-ahead"
).split()
CODECS = ["none", "zstd", "lz4"]


class Bad(Exception):
    """Bytes that are not what the format says."""


CRC_TABLE = list(range(256))
for _ in range(8):
    CRC_TABLE = [value >> 1 ^ (0x82F63B78 if value & 1 else 0) for value in CRC_TABLE]


def crc32c(data, value=0):
    """CRC-32C of `data`, going on from the CRC `value` of what stands before it."""
    value ^= 0xFFFFFFFF
    for byte in data:
        value = CRC_TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


# msgpack, by the first byte of a value.
CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
NUMBERS = dict(zip(range(0xCA, 0xD4), "fdBHIQbhiq", strict=True))
SIZED = {
    "bin": {0xC4: "B", 0xC5: "H", 0xC6: "I"},
    "str": {0xD9: "B", 0xDA: "H", 0xDB: "I"},
    "array": {0xDC: "H", 0xDD: "I"},
    "map": {0xDE: "H", 0xDF: "I"},
}
SHORT = {0x80: "map", 0x90: "array", 0xA0: "str", 0xB0: "str"}


def number(code, data, at):
    """A big-endian number by its struct code, and where it ends."""
    return struct.unpack_from(">" + code, data, at)[0], at + struct.calcsize(">" + code)


def unpack(data, at):
    """One msgpack value at `at`, and where it ends."""
    first = data[at]
    at += 1
    if first < 0x80 or first >= 0xE0:
        return first - (256 if first >= 0xE0 else 0), at
    if first in CONSTANTS:
        return CONSTANTS[first], at
    if first in NUMBERS:
        return number(NUMBERS[first], data, at)
    if first < 0xC0:
        kind = SHORT[first & 0xF0]
        return _unpack_sized(kind, first & (0x1F if kind == "str" else 0x0F), data, at)
    for kind, codes in SIZED.items():
        if first in codes:
            size, at = number(codes[first], data, at)
            return _unpack_sized(kind, size, data, at)
    raise Bad(f"msgpack type {first:#x} is not used by records")


def _unpack_sized(kind, size, data, at):
    if at + size > len(data):
        raise Bad(f"a {kind} of {size} at byte {at} ends behind the batch")
    if kind == "bin":
        return data[at : at + size], at + size
    if kind == "str":
        return data[at : at + size].decode(), at + size
    values = []
    for _ in range(size if kind == "array" else 2 * size):
        value, at = unpack(data, at)
        values.append(value)
    if kind == "map":
        return dict(zip(values[::2], values[1::2], strict=True)), at
    return values, at


class Batch:
    """One batch of `data` at `at`; raises Bad unless its structure and CRCs are right."""

    def __init__(self, data, at, seed=None):
        if len(data) - at < HEADER.size:
            raise Bad(f"only {len(data) - at} bytes are left")
        (magic, version, broker_crc, length, self.position, self.epoch, _, self.base_offset,
         self.store_time, self.incarnation, self.queue, self.origin, self.flags, _,
         producer_crc, attributes, _, self.count, size, _, _,
         topic_length) = HEADER.unpack_from(data, at)  # fmt: skip
        if magic != b"CMB" or version != 1:
            raise Bad("no magic of a version 1 batch")
        self.bytes = data[at : at + length]
        if len(self.bytes) != length or crc32c(self.bytes[76:]) != producer_crc:
            raise Bad("the producer's CRC or the length is wrong")
        self.kind, self.codec = attributes >> 8, attributes & 15
        if self.codec >= len(CODECS) or attributes & 0x80:
            raise Bad(f"attributes {attributes:#06x} are not known")
        end = 101 + topic_length
        self.topic = self.bytes[101:end].decode()
        end += (24 if attributes & 0x10 else 0) + (8 if attributes & 0x20 else 0)
        if attributes & 0x40:
            end += 2 + 4 * struct.unpack_from("<H", self.bytes, end)[0]
        columns = 3 if self.flags & 1 else 2
        table = struct.unpack_from(f"<{columns * self.count}I", self.bytes, end)
        self.records = self.bytes[end + 4 * len(table) :]
        if sum(table[: self.count]) + 5 != size:
            raise Bad("the table and the uncompressed size differ")
        self.deltas = table[2 * self.count :] or range(self.count)
        if seed is None and self.kind == 1:
            seed = crc32c(self.values()[0][0])
        if seed is None or crc32c(self.bytes[8:76], seed) != broker_crc:
            raise Bad("the broker's CRC is wrong, or this is a batch of another log")
        self.seed, self.length = seed, length

    def values(self):
        """The records, decoded."""
        values, end = unpack(self.records, 0)
        if end != len(self.records) or len(values) != self.count:
            raise Bad("the records are not one array of as many records as counted")
        return values

    def line(self):
        """What the header says, for people."""
        kind = KINDS[self.kind] if self.kind < len(KINDS) else f"kind {self.kind}"
        text = f"{self.position} {kind} count={self.count} bytes={self.length} epoch={self.epoch}"
        if self.kind == 0:
            offset = self.base_offset + self.deltas[0]
            text += f" {self.topic}/{self.queue} offset={offset} codec={CODECS[self.codec]}"
        return text

    def messages(self):
        """The messages, as JSON lines."""
        if self.codec:
            raise Bad(f"compressed by {CODECS[self.codec]}, which is not read here")
        for delta, record in zip(self.deltas, self.values(), strict=True):
            body = record[1]
            if not isinstance(body, bytes):
                raise Bad("a body that is not bytes")
            message = {"topic": self.topic, "queue": self.queue, "offset": self.base_offset + delta}
            message |= zip(
                ("born_time", "tag", "keys", "properties"), record[:1] + record[2:5], strict=True
            )
            message["store_time"] = self.store_time
            try:
                message["body"] = body.decode()
            except UnicodeDecodeError:
                message["body_base64"] = base64.b64encode(body).decode()
            yield json.dumps(message)


def read(path, messages):
    """Print one segment; returns what is wrong with it, or None."""
    with open(path, "rb") as file:
        data = file.read()
    at, seed = 0, None
    while at < len(data) and data[at : at + 4] != bytes(4):
        try:
            batch = Batch(data, at, seed)
            if not messages:
                print(batch.line())
            elif batch.kind == 0:
                print("\n".join(batch.messages()))
        except (Bad, ValueError, TypeError, LookupError, RecursionError, struct.error) as error:
            return f"{path}: byte {at}: {error}"
        at, seed = at + batch.length, batch.seed
    if data[at:].strip(b"\0"):
        return f"{path}: byte {at}: zeros with other bytes behind them"
    if not messages and at < len(data):
        print(f"{len(data) - at} bytes of prepared space")
    return None


def main():
    parser = argparse.ArgumentParser(description="Print segments of a CometMQ log.")
    parser.add_argument("--messages", action="store_true", help="one JSON line a message")
    parser.add_argument("files", nargs="+", metavar="FILE")
    options = parser.parse_args()
    problems = [read(path, options.messages) for path in options.files]
    for problem in filter(None, problems):
        print(problem, file=sys.stderr)
    return 1 if any(problems) else 0


if __name__ == "__main__":
    sys.exit(main())
