"""What a broker would refuse is refused here first, by name, before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from cometmq.batch import NO_PROPERTIES, RecordTuple, text_hash
from cometmq.errors import Refused
from cometmq.interfaces import LEVELS, Limits
from cometmq.message import Message
from cometmq.names import NAME_PATTERN, NAME_RULE
from cometmq.tags import check_tag

_NAME = re.compile(NAME_PATTERN + r"|%[A-Z]+%[A-Za-z0-9_.%-]{1,200}")
RECORD_BYTES = 40
"""More than what a record takes besides its body and texts: array, times, lengths, table."""
TEXT_BYTES = 5
"""More than what each text takes besides its own bytes."""
BATCH_OVERHEAD_BYTES = 512
"""More than what a batch of one takes besides its record, the topic's name included."""


def check_name(kind: str, name: object) -> None:
    """Raises Refused unless `name` can name a topic or a group (`kind`)."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Refused(
            f"{kind} name {name!r}: {NAME_RULE} are allowed",
            "BAD_NAME",
        )


def check_level(level: object) -> None:
    """Raises Refused unless `level` is an ack level or None."""
    if level is not None and level not in LEVELS:
        raise Refused(
            f"level {level!r}: choose one of {', '.join(LEVELS)}, or None for the broker's own",
            "LEVEL_NOT_AVAILABLE",
        )


def check_messages(messages: object) -> None:
    """Raises Refused unless these can be counted and gone through."""
    if not isinstance(messages, Collection):
        raise Refused(
            f"{type(messages).__name__} is no sequence of messages: give a list of them",
            "BAD_REQUEST",
        )


def header_bytes(message: Message, limits: Limits) -> int:
    """Upper bound of what tag, keys and properties take in the batch, in bytes.

    Raises Refused when one of them is not text, the tag is none that can be subscribed, or they
    are more than `limits` allow.
    """
    keys, properties = message.keys or (), message.properties or {}
    if not isinstance(properties, Mapping):
        raise Refused(
            f"properties={properties!r}: texts by name are wanted, as in {{'city': 'Ulm'}}",
            "BAD_REQUEST",
        )
    if len(properties) > limits.properties:
        raise Refused(
            f"a message for {message.topic} has {len(properties)} properties; "
            f"at most {limits.properties} are allowed",
            "TOO_LARGE",
        )
    if isinstance(keys, str) or not isinstance(keys, Collection):
        raise Refused(
            f"keys={keys!r}: a sequence of texts is wanted, as in keys=[{str(keys)!r}]",
            "BAD_REQUEST",
        )
    tag = message.tag or ""
    total = _text_bytes("tag", tag)
    check_tag(tag)
    for key in keys:
        total += _text_bytes("key", key)
    for name, value in properties.items():
        total += _text_bytes("property name", name) + _text_bytes("property", value, name)
    if total > limits.header_bytes:
        raise Refused(
            f"a message for {message.topic} has {total:,} bytes of tag, keys and properties; "
            f"at most {limits.header_bytes:,} are allowed: put more into the body",
            "TOO_LARGE",
        )
    return total


def measure(message: Message, limits: Limits) -> tuple[bytes, int]:
    """The body as bytes that nobody can change any more, and an upper bound of what the message
    takes in a batch.

    Raises Refused for what no broker with these limits would take: no bytes, too many, texts that
    are none, or no Message at all.
    """
    if not isinstance(message, Message):
        raise Refused(
            f"{type(message).__name__} is no message: send Message(topic, body)", "BAD_REQUEST"
        )
    if type(message.topic) is not str:  # before anybody looks it up, which needs a hash
        check_name("topic", message.topic)
    body = message.body
    if type(body) is not bytes:
        body = _as_bytes(message.topic, body)
    size_bytes = len(body)
    if size_bytes > limits.batch_bytes - BATCH_OVERHEAD_BYTES:
        raise Refused(
            f"a body of {size_bytes:,} bytes for {message.topic}; this broker takes at most "
            f"{limits.batch_bytes - BATCH_OVERHEAD_BYTES:,}: split it, or raise "
            "limits.batch_bytes at the broker",
            "TOO_LARGE",
        )
    size_bytes += RECORD_BYTES
    if message.tag or message.keys or message.properties:
        size_bytes += header_bytes(message, limits)
    return body, size_bytes


def _as_bytes(topic: str, body: object) -> bytes:
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    if not isinstance(body, bytes):
        raise Refused(
            f"the body of a message for {topic} is {type(body).__name__}; "
            "bytes are wanted, as from text.encode()",
            "BAD_REQUEST",
        )
    return body


def record_of(born_ms: int, body: bytes, message: Message) -> RecordTuple:
    """What is stored of a message: copies, so that its maker may use his own for the next one."""
    keys, properties = message.keys, message.properties
    return (
        born_ms,
        body,
        message.tag or "",
        tuple(keys) if keys else (),
        dict(properties) if properties else NO_PROPERTIES,
    )


def entry_of(born_ms: int, body: bytes, message: Message) -> bytes | RecordTuple:
    """What a batch is given of a message: one with nothing but a body is that."""
    if message.tag or message.keys or message.properties:
        return record_of(born_ms, body, message)
    return body


def queue_of_key(key: str, queues: int) -> int:
    """The queue of a sharding key. Raises Refused for one that is no text."""
    try:
        return text_hash(key) % queues
    except (AttributeError, TypeError, UnicodeEncodeError):
        raise Refused(f"sharding key {key!r}: a text is wanted", "BAD_REQUEST") from None


def unencodable(error: Exception) -> Refused:
    """What messages end as that could not be made a batch."""
    why = str(error) or type(error).__name__
    return Refused(f"messages that can't be encoded: {why}", "BAD_BATCH")


def _text_bytes(what: str, text: object, name: str | None = None) -> int:
    """`name`: which one of several it is."""
    if not isinstance(text, str):
        which = what if name is None else f"{what} {name!r}:"
        raise Refused(f"{which} {text!r} is {type(text).__name__}; text is wanted", "BAD_REQUEST")
    try:
        return len(text.encode()) + TEXT_BYTES
    except UnicodeEncodeError:
        raise Refused(f"{what} {text!r} has no UTF-8 form", "BAD_REQUEST") from None
