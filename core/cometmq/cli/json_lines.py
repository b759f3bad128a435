"""One message a line as JSON: what `mq produce --format json` reads and `mq consume` writes.

A body that is UTF-8 stands under `body`, any other under `body_base64`.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec

from cometmq.errors import Refused
from cometmq.message import Message, ReceivedMessage


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """The keys that a line may have; those that only a received message has are ignored, so that
    the output of one topic can be the input of another."""

    body: str | None = None
    body_base64: str | None = None
    tag: str = ""
    key: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}
    sharding_key: str | None = None
    topic: str | None = None
    queue: int | None = None
    offset: int | None = None
    born_time: int | None = None
    store_time: int | None = None


_decoder = msgspec.json.Decoder(Line)


def parse_line(topic: str, line: bytes) -> Message:
    """The message of one JSON line. Raises Refused that says what is wrong with it."""
    try:
        given = _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(f"this is not a message in JSON: {error}", code="BAD_LINE") from None
    if (given.body is None) == (given.body_base64 is None):
        raise Refused("exactly one of body and body_base64 is needed", code="BAD_LINE")
    if given.body is not None:
        body = given.body.encode()
    else:
        try:
            body = base64.b64decode(given.body_base64 or "", validate=True)
        except ValueError as error:
            raise Refused(f"body_base64: {error}", code="BAD_LINE") from None
    keys = ([given.key] if given.key is not None else []) + given.keys
    return Message(
        topic,
        body,
        tag=given.tag,
        keys=keys,
        properties=given.properties,
        sharding_key=given.sharding_key,
    )


def format_line(message: ReceivedMessage) -> bytes:
    """One received message as a JSON line, without the newline."""
    out: dict[str, Any] = {
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        "born_time": message.born_time,
        "store_time": message.store_time,
    }
    try:
        out["body"] = message.body.decode()
    except UnicodeDecodeError:
        out["body_base64"] = base64.b64encode(message.body).decode()
    if message.tag:
        out["tag"] = message.tag
    if message.keys:
        out["keys"] = list(message.keys)
    if message.properties:
        out["properties"] = dict(message.properties)
    return json.dumps(out, ensure_ascii=False).encode()
