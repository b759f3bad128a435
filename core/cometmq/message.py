"""What users hold: the `Message` they give to a producer and the `ReceivedMessage` they get.

A received message is decoded straight from the bytes of its batch (a record is the msgpack array
of the fields of `Record`, in their order); what all messages of a batch share sits once in an
`Origin`. These classes hold no reference cycles, so the garbage collector need not track them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Never

import msgspec


class _NoProperties(dict[str, str]):
    """Those of every message that is made without: an empty dict for each would cost half as much
    as the message itself."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> Never:
        raise TypeError("a message gets its properties when it is made: properties={...}")

    __setitem__ = setdefault = update = __ior__ = _refuse


class Message(msgspec.Struct, gc=False):
    """A message to send.

    `topic` names where it goes, `body` is opaque bytes. `tag` is one word that consumers can
    filter by, `keys` are texts to find the message by (they never route), `properties` are texts
    by name. Messages of one `sharding_key` go to one queue and keep their order.
    """

    topic: str
    body: bytes
    tag: str = ""
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = _NoProperties()
    sharding_key: str | None = None


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Where a batch lies: shared by all messages that were read from it."""

    topic: str
    queue: int
    store_time: int
    """When the broker appended the batch, in ms since 1970."""
    position: int
    """First byte of the batch in the log."""
    epoch: int
    """The reign of the master that appended it."""
    incarnation: int
    """Which life of the topic, counted per log."""
    log_id: bytes
    """The 8 bytes that name the log."""

    def __repr__(self) -> str:
        """The log's id as people know it."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        values["log_id"] = self.log_id.hex()
        return f"Origin({', '.join(f'{name}={value!r}' for name, value in values.items())})"


NOWHERE = Origin("", 0, 0, 0, 0, 0, b"")
"""The origin of a message that was not read from a log."""


class Record(msgspec.Struct, array_like=True, gc=False):
    """What a batch stores of one message; the order of the fields is the format."""

    born_time: int
    """When the producer was given the message, in ms since 1970; in a large batch, when it was
    given one of the 15 before it; with `send_many`, when that began."""
    body: bytes
    tag: str
    keys: tuple[str, ...]
    properties: dict[str, str]


class ReceivedMessage(Record, array_like=True, gc=False):
    """A message as a consumer gets it: the record, its offset in its queue, and its origin."""

    # Not stored: the decoder sets both, whatever a record claims in their place.
    offset: int = -1
    origin: Origin = NOWHERE

    @property
    def topic(self) -> str:
        """The topic it was read from."""
        return self.origin.topic

    @property
    def queue(self) -> int:
        """The number of its queue in the topic."""
        return self.origin.queue

    @property
    def store_time(self) -> int:
        """When the broker appended it, in ms since 1970."""
        return self.origin.store_time

    @property
    def message_id(self) -> str:
        """The name of this one message: log id, topic incarnation, queue and offset."""
        return message_id(self.origin, self.offset)


class UnreadableMessage(msgspec.Struct, gc=False):
    """Stands where a message should be whose record can't be decoded; its batch is undamaged."""

    offset: int
    origin: Origin
    reason: str
    """What is wrong with the record, as the decoder says it."""

    @property
    def topic(self) -> str:
        """The topic it was read from."""
        return self.origin.topic

    @property
    def queue(self) -> int:
        """The number of its queue in the topic."""
        return self.origin.queue

    @property
    def position(self) -> int:
        """First byte, in the log, of the batch that holds the record."""
        return self.origin.position

    @property
    def message_id(self) -> str:
        """The name that the message would have, for tools that look at its bytes."""
        return message_id(self.origin, self.offset)


def message_id(origin: Origin, offset: int) -> str:
    """`logid-incarnation-queue-offset` as text; derived, so no bytes are stored for it."""
    return f"{origin.log_id.hex()}-{origin.incarnation}-{origin.queue}-{offset}"
