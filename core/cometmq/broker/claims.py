"""Who holds which queue for which group: a view of the claims in the log.

A claim's *token* is epoch and position of the batch that made it. Whatever changes a claim is a
later batch, so an old token can't come to life again, whoever still believes in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec

from cometmq.batch import Batch, Kind
from cometmq.broker.topics import KIND as TOPIC_KIND
from cometmq.log.records import TopicChange, read_records

KIND = "claim"
GROUP_KIND = "group-change"
MODE = "claims"
"""The mode of a group whose members claim whole queues."""
_SHARD = 1000

K = TypeVar("K")
ClaimKey = tuple[str, int, int]
"""Group, topic incarnation, queue."""


class ClaimChange(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A record of the kind `claim`: what becomes of a queue in a group, in one step."""

    group: str
    incarnation: int
    queue: int
    member: str | None = None
    """Who holds the queue from here on; empty: nobody; None: that stays as it was."""
    timeout_ms: int = 0
    """How long the member may be silent."""
    offset: int | None = None
    """Committed in the same step; None: nothing is."""
    epoch: int = 0
    """The epoch valid for `offset`."""
    undo_offset: int | None = None
    """In a reset: what was committed before."""
    undo_epoch: int = 0
    kept: bool = False
    """The member held the queue already, and goes on where it is."""


class GroupChange(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A record of the kind `group-change`: the mode of a group, or that it is gone with all that
    it committed and claimed."""

    group: str
    mode: str = MODE
    deleted: bool = False


class Holder(NamedTuple):
    """A claim: who holds the queue, the token, and how long they may be silent."""

    member: str
    epoch: int
    position: int
    timeout_ms: int
    since: tuple[int, int] | None = None
    """The first token under which the member holds the queue without a break; None: this one."""

    @property
    def token(self) -> tuple[int, int]:
        """Epoch and position of the batch that made the claim."""
        return self.epoch, self.position

    @property
    def first(self) -> tuple[int, int]:
        """`since`; a checkpoint from before there was one has None."""
        return self.since or self.token


class Undo(NamedTuple):
    """What a reset replaced."""

    position: int
    """Of the reset's batch."""
    offset: int
    epoch: int


class _Shard(msgspec.Struct, array_like=True):
    """A slice of the view."""

    claims: list[tuple[ClaimKey, Holder]] = []
    undos: list[tuple[ClaimKey, Undo]] = []
    modes: list[tuple[str, str]] = []


_changes = msgspec.msgpack.Decoder(list[ClaimChange])
_groups = msgspec.msgpack.Decoder(list[GroupChange])
_shards = msgspec.msgpack.Decoder(_Shard)
_encoder = msgspec.msgpack.Encoder()


def read_claims(batch: Batch) -> list[ClaimChange]:
    """The records of a batch of the kind `claim`."""
    return _changes.decode(batch.records)


def read_groups(batch: Batch) -> list[GroupChange]:
    """The records of a batch of the kind `group-change`."""
    return _groups.decode(batch.records)


class Claims:
    """Claims and the last reset of every (group, incarnation, queue), and the groups' modes.
    Changed by `apply` only."""

    name = "claims"
    kinds: Sequence[str] = (KIND, GROUP_KIND, TOPIC_KIND)

    def __init__(self) -> None:
        self._claims: dict[ClaimKey, Holder] = {}
        self._held: dict[str, dict[str, dict[ClaimKey, None]]] = {}
        """The keys of `_claims`, by group and member."""
        self._undos: dict[ClaimKey, Undo] = {}
        self._modes: dict[str, str] = {}
        self.resets = 0
        """How often all was forgotten, to be read again."""

    def __len__(self) -> int:
        return len(self._claims)

    def get(self, key: ClaimKey) -> Holder | None:
        """The claim on a queue in a group."""
        return self._claims.get(key)

    def undo(self, key: ClaimKey) -> Undo | None:
        """What the last reset of a queue replaced."""
        return self._undos.get(key)

    def mode(self, group: str) -> str:
        """How the group consumes; empty: nobody has claimed anything yet."""
        return self._modes.get(group, "")

    def items(self) -> list[tuple[ClaimKey, Holder]]:
        """All claims."""
        return list(self._claims.items())

    def held(self, group: str, member: str = "") -> list[ClaimKey]:
        """The claims of a group, or of one member of it."""
        members = self._held.get(group, {})
        if member:
            return list(members.get(member, ()))
        return [key for keys in members.values() for key in keys]

    def groups(self) -> list[str]:
        """Groups that have a mode."""
        return list(self._modes)

    def apply(self, batch: Batch) -> None:
        if batch.kind == Kind.CLAIM:
            for change in read_claims(batch):
                self._change(change, batch)
        elif batch.kind == Kind.GROUP_CHANGE:
            for group in read_groups(batch):
                self._change_group(group)
        else:
            gone = {each.incarnation for each in read_records(TopicChange, batch) if each.deleted}
            if gone:
                self._forget(lambda key: key[1] in gone)

    def slices(self) -> Iterator[bytes]:
        for keys in _chunks(list(self._claims)):
            found = [(key, self._claims[key]) for key in keys if key in self._claims]
            yield _encoder.encode(_Shard(claims=found))
        for keys in _chunks(list(self._undos)):
            undone = [(key, self._undos[key]) for key in keys if key in self._undos]
            yield _encoder.encode(_Shard(undos=undone))
        for names in _chunks(list(self._modes)):
            modes = [(name, self._modes[name]) for name in names if name in self._modes]
            yield _encoder.encode(_Shard(modes=modes))

    def load(self, data: bytes) -> None:
        shard = _shards.decode(data)
        for key, holder in shard.claims:
            self._put(key, holder)
        self._undos.update(shard.undos)
        self._modes.update(shard.modes)

    def reset(self) -> None:
        self.resets += 1
        self._claims.clear()
        self._held.clear()
        self._undos.clear()
        self._modes.clear()

    def _change(self, change: ClaimChange, batch: Batch) -> None:
        key = change.group, change.incarnation, change.queue
        if change.member:
            token = batch.epoch, batch.position
            before = self._claims.get(key)
            since = before.first if change.kept and before is not None else token
            self._put(key, Holder(change.member, *token, change.timeout_ms, since))
        elif change.member is not None:
            self._drop(key)
        if change.undo_offset is not None:
            self._undos[key] = Undo(batch.position, change.undo_offset, change.undo_epoch)

    def _put(self, key: ClaimKey, holder: Holder) -> None:
        self._drop(key)
        self._claims[key] = holder
        self._held.setdefault(key[0], {}).setdefault(holder.member, {})[key] = None

    def _drop(self, key: ClaimKey) -> None:
        holder = self._claims.pop(key, None)
        if holder is None:
            return
        members = self._held[key[0]]
        keys = members[holder.member]
        del keys[key]
        if not keys:
            del members[holder.member]
        if not members:
            del self._held[key[0]]

    def _change_group(self, change: GroupChange) -> None:
        if change.deleted:
            self._modes.pop(change.group, None)
            self._forget(lambda key: key[0] == change.group)
        else:
            self._modes[change.group] = change.mode

    def _forget(self, gone: Callable[[ClaimKey], bool]) -> None:
        for key in [key for key in self._claims if gone(key)]:
            self._drop(key)
        for key in [key for key in self._undos if gone(key)]:
            del self._undos[key]


def _chunks(keys: Sequence[K]) -> Iterator[list[K]]:
    left = iter(keys)
    while chunk := list(islice(left, _SHARD)):
        yield chunk
