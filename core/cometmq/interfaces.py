"""The small Protocols between the core and its plugins: what a slot or contribution returns.

Read this file with `hookspecs.py`: a hook says when the core asks, this file says what it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from cometmq.answers import Answer as Answer
from cometmq.answers import Delay as Delay
from cometmq.answers import Pass as Pass
from cometmq.answers import Refuse as Refuse
from cometmq.answers import Replace as Replace
from cometmq.batch.compression import Codec as Codec
from cometmq.environment import Buffer, Environment

if TYPE_CHECKING:
    from cometmq.batch import Batch

Level = Literal["memory", "disk", "quorum"]
LEVELS: tuple[Level, ...] = ("memory", "disk", "quorum")
"""Ack levels from weak to strong; each names the position that the reply waits for."""


# --- storage (slot) ---------------------------------------------------------------------------


BASE_MAX = 1 << 63
"""Behind this base there may be a log of any length before positions, of 64 bits, end."""


class Segment(msgspec.Struct, frozen=True):
    """One file of the log as it lies there."""

    base: int
    """Position of its first byte; also its name."""
    size: int
    """Bytes of the file as found, prepared zeros included."""
    name: str
    """Path or name to show to people."""


class Storage(Protocol):
    """Segments and files: append, read, sync, cut, trim, scan, and named side files.

    It knows no batch: positions and bytes only. Segments are contiguous: each base is the end of
    the one before. Exactly the last one, once `begin` was called, is *active* and writable.
    All methods are called from the broker's loop thread; only `sync`, `read` may wait.
    """

    persistent: bool
    """False: nothing survives the process."""

    def open(self, *, read_only: bool = False) -> list[Segment]:
        """Take the folder's lock and list the segments, oldest first. Raises LogLocked, LogError.
        `read_only` takes no lock and never writes."""

    def segments(self) -> Sequence[Segment]:
        """Oldest first, the active one last, sizes as they are now."""

    def begin(self, base: int) -> None:
        """Start a new active segment at `base` (the end of what is there). Takes the reserve if
        the disk is full. Raises NoSpace, or DiskRefused when no new file can be made; then
        what was active still is."""

    def allocate(self, end: int, *, urgent: bool = False) -> None:
        """Make sure that space up to position `end` of the active segment is really there, in
        steps. `urgent` (control batches) may take the reserve. Raises NoSpace, or OSError when the
        file system refuses it for another reason; nothing changed."""

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """One gathered write at `position`, the end of what was written so far. Raises OSError."""

    def seal(self, end: int) -> None:
        """The active segment ends at `end`: prepared space behind it is cut off."""

    def read(self, position: int, size: int) -> bytes:
        """Bytes from one segment: shorter at that segment's end, empty beyond. May block."""

    def read_now(self, position: int, size: int) -> bytes | bytearray | None:
        """The same if the page cache has it, else None."""

    async def sync(self) -> float:
        """All that was written or begun before this call is on disk: the active segment, a sealed
        one not yet synced, the folder. Returns the seconds that the disk took, without the way to
        a thread and back. Raises OSError: then the log must stop for good."""

    def sync_blocking(self) -> float:
        """The same in the calling thread."""

    def rewrite(self, position: int, end: int) -> None:
        """Read [position, end), write it over itself and sync, folder too: afterwards the disk
        holds what the page cache holds."""

    def cut(self, position: int) -> str:
        """Remove everything from `position` on, after keeping a copy; later segments go newest
        first. Returns where the bytes were kept. Raises LogError if they can't be kept."""

    def trim(self, position: int) -> list[Segment]:
        """Unlink the segments that end at or below `position`, oldest first, with their side
        files. Never the active one. Returns what went. What could not be unlinked is tried again
        first by the next call. Raises DiskRefused if a file can't be unlinked: then all segments
        have left `segments`, younger files stay, and what went is returned by the next call."""

    async def trim_in_thread(self, position: int) -> list[Segment]:
        """The same without blocking the loop: the segments leave `segments` at once, their files
        are unlinked in a thread."""

    def write_side(self, base: int, suffix: str, chunks: Sequence[Buffer]) -> None:
        """Write the named side file of a segment whole (derived data: need not be durable)."""

    def read_side(self, base: int, suffix: str) -> bytes | None:
        """The side file of a segment, or None."""

    def remove_side(self, base: int, suffix: str) -> None:
        """Forget a side file; no error if there is none."""

    def node_id(self) -> bytes | None:
        """The 8-byte id of this folder's node, None when it is missing. Raises LogError if it is
        damaged."""

    def keep_node_id(self, node: bytes) -> None:
        """Let these 8 bytes be the id from now on."""

    def usage(self) -> dict[str, int]:
        """bytes_used, bytes_total, bytes_free of the file system that holds the log."""

    def close(self) -> None:
        """Release files and the lock."""


# --- flush policy (slot) ----------------------------------------------------------------------


class Syncer(Protocol):
    """What the core gives to a flush policy: it decides when and where, the core does it."""

    environment: Environment

    @property
    def appended(self) -> int:
        """The position up to which bytes are in the page cache."""

    @property
    def synced(self) -> int:
        """The position up to which bytes are on disk."""

    async def sync(self) -> float:
        """Sync in a thread; moves `synced` to what was appended when it was called. One at a time:
        a second caller waits for one that started after its call. Returns the seconds that the
        disk took. After a failure the log is stopped and this raises LogStopped."""

    def sync_blocking(self) -> float:
        """The same in the loop's thread, for a lone waiter on a fast disk."""


class FlushPolicy(Protocol):
    """Decides when and where to sync. The waiting for positions is the core's."""

    default_level: Level
    """`disk` or `memory`: the broker's default level when nobody configured one."""

    interval_ms: int
    """What nobody awaits is synced within this time."""

    def start(self, syncer: Syncer) -> None:
        """Called once, when the log is open."""

    def appended(self, awaited: bool, alone: bool) -> None:
        """A drain was written. `awaited`: somebody waits for `synced` at this position or below;
        `alone`: exactly one waiter, and nothing else came in this drain."""

    def demand(self) -> None:
        """Somebody began to wait for a position that is appended but not synced (a parked fetch,
        a stronger level)."""

    async def stop(self) -> None:
        """Sync what is left and end."""


# --- state views ------------------------------------------------------------------------------


class StateView(Protocol):
    """State derived from the log: in memory, persisted by checkpoint slices only.

    The contract (proven by `cometmq.testing.StateViewContract`): `apply` is a function of state
    and batch alone (time is the batch's store time); it never decides and never fails; it is
    total on any state; per key it overwrites or joins (set, delete, maximum), never adds up.
    """

    name: str
    kinds: Sequence[str]
    """Names of the batch kinds it wants to see (`messages` among them, if it does)."""

    def apply(self, batch: Batch) -> None:
        """Take one stamped batch into the state."""

    def slices(self) -> Iterator[bytes]:
        """Small shards of the state, each encoded when it is asked for; the state may change
        between two shards."""

    def load(self, data: bytes) -> None:
        """Join one shard into the state."""

    def reset(self) -> None:
        """Back to the empty state."""


# --- transports (contribution) ----------------------------------------------------------------


class Peer(Protocol):
    """One connected client as the transport sees it; usable as a dictionary key."""

    name: str
    """Address or the like, for people."""

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send one message without ever blocking. False: the peer is gone or its queue is full
        beyond its credit, and it will be closed."""

    def close(self) -> None:
        """Drop the peer."""


class Receiver(Protocol):
    """The broker as a transport sees it. Called on the loop's thread."""

    def received(self, drain: Sequence[tuple[Peer, Sequence[Buffer]]]) -> None:
        """All messages of one drain, in order. Frames may be memoryviews of the transport's own
        buffers that stay valid as long as they are referenced."""

    def lost(self, peer: Peer) -> None:
        """The transport knows that this peer is gone (not all transports can)."""


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """What a peer may do; told in hello and checked at the client first."""

    batch_bytes: int = 1 << 20
    """A batch, header included."""
    frame_bytes: int = (1 << 20) + (64 << 10)
    frames: int = 16
    """Frames of one message."""
    credit_bytes: int = 32 << 20
    """Unanswered requests (bytes and 1 KiB each), or unread reply bytes, of one connection."""
    connections: int = 10_000
    properties: int = 128
    header_bytes: int = 32 << 10
    """Tag, keys and properties of one message together."""
    parked: int = 100_000
    """Requests parked at the broker, all connections together."""
    held_bytes: int = 1 << 30
    """Unfinished messages and unread replies, all connections of a listener together; as much may
    unanswered requests have, and again those that wait for a plugin or a read with what they may
    bring, all connections of the broker together."""


class Listener(Protocol):
    """A bound address."""

    address: str
    """With the real port, when port 0 was asked for."""

    async def close(self) -> None:
        """Stop, drop all peers; what was handed to `send` before is flushed for a short while."""


class Transport(Protocol):
    """The broker's side of a transport."""

    schemes: Sequence[str]

    async def listen(
        self, address: str, receiver: Receiver, limits: Limits, environment: Environment
    ) -> Listener:
        """Bind and deliver to `receiver`. Raises ConfigError (address not usable, next step)."""


ChannelEvent = Literal["connected", "disconnected", "handshake_failed", "refused", "unknown_host"]


class Channel(Protocol):
    """The client's side: exactly one connection, never reconnecting by itself. Not thread safe:
    one thread at a time, whoever holds the client connection's lock.

    Found by the scheme of an address in the entry-point group `cometmq.transports`, as a function
    `connect(address: str, limits: Limits) -> Channel`; it returns at once, `events` tells the rest.
    """

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Hand one message over without blocking; False: not now (or no connection yet). What
        does not leave at once may need the calls of `receive` that follow."""

    def receive(self, max_messages: int = 256) -> list[Sequence[Buffer]]:
        """Messages that are there now, each a list of frames."""

    def events(self) -> list[tuple[ChannelEvent, str]]:
        """What happened to the connection since the last call, with a sentence."""

    def fileno(self) -> int:
        """A descriptor that turns readable when something came (edge-triggered: call `receive`
        and `events` after each `send` too, until both are empty)."""

    def wait(self, timeout_s: float, wake_fd: int = -1) -> None:
        """Block until something came, `wake_fd` is readable, or the time is over."""

    def close(self) -> None:
        """Close at once."""


Connect = Callable[[str, Limits], Channel]


# --- message path -----------------------------------------------------------------------------


class SessionInfo(Protocol):
    """What a hook may know of the session that a request came in."""

    id: int
    client_id: str
    principal: str | None
    peer_name: str


class Job(msgspec.Struct, frozen=True):
    """Housekeeping for the scheduler: exactly one of `interval_s` and `cron`."""

    name: str
    run: Callable[[], Any]
    """Called on the loop; may return an awaitable."""
    interval_s: float | None = None
    """Reckoned by monotonic time."""
    cron: str | None = None
    """Five fields, by wall time."""
    jitter_s: float = 0.0
    timezone: str = "UTC"
    """Whose wall time `cron` means: a name as in `Europe/Berlin`, or `local` for the machine's. A
    time that a night of the clock change leaves out is the first minute after the gap; one that
    it has twice is the first of the two."""


class PluginOperation(msgspec.Struct, frozen=True):
    """A request that a plugin answers."""

    number: int
    """1000 or above, and used by no other plugin."""
    name: str
    """What the hooks `authorize` (with an empty resource) and `admit` hear, as in `DOOR_OPEN`."""
    header: type[msgspec.Struct]
    """The request's struct, `array_like`, fields only added at the end."""
    handle: Callable[[SessionInfo, Any], Any]
    """Called with session and header; returns the reply's struct, or an awaitable of it. Raises
    Refused or Retryable for what its sender has to hear."""


class DiskPressure(msgspec.Struct, frozen=True):
    """How full the file system of the log is, when a mark was passed in either direction."""

    mark: str
    """The highest mark that is passed now, in the words of whoever watches; empty: none is."""
    used_ratio: float
    """0 to 1."""
    bytes_free: int
    full_in_s: float | None = None
    """At the rate of late; None while it does not fill."""


class ParkedFetch(Protocol):
    """A fetch that found nothing, as `fetch_wait` sees it."""

    queues: Sequence[tuple[int, int]]
    """(incarnation, queue) of everything it asked for."""
    wait_ms: int
    """How long the client is ready to wait; 0 = not at all."""

    def retry(self) -> bool:
        """Look again: True if it was answered (then forget it)."""

    def answer_empty(self) -> None:
        """Answer that nothing came."""


class Metric(msgspec.Struct, frozen=True):
    """One number for people and machines, read when asked."""

    name: str
    help: str
    kind: Literal["counter", "gauge"]
    value: float
    labels: Mapping[str, str] = {}
