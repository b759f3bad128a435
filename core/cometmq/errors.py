"""Every exception that a user of CometMQ can meet, named for what the caller can do about it.

`CometError` is the root. The families, by what to do next:

- *refused*: nothing is in the log; repeating the same call gives the same answer (`Refused` and
  its children) or may succeed after a while (`Retryable`).
- *unknown*: the outcome can't be known (`OutcomeUnknown`); the message may be stored or not.
- *position*: the place asked for is not there (`Truncated`, `Expired`, `Damaged`); each carries
  `next_offset`, the place to go on from.
- *data*: bytes that are not what they claim (`BatchError`, `Unreadable`).
- *set-up*: a config file, plugin or folder that can't be used (`ConfigError`, `PluginError`,
  `LogError`).
"""

from __future__ import annotations


class CometError(Exception):
    """The root of all errors of CometMQ."""


FAILURES = (Exception, SystemExit, KeyboardInterrupt)
"""What a plugin's code fails by. It runs in the middle of what others asked for, so that it can't
end the process: asyncio would let these two go through everything, and stop the loop."""


def tellable(words: str) -> str:
    """What a plugin said, as it can be told to anybody: it may hold what UTF-8 has no bytes for."""
    return words if words.isascii() else words.encode(errors="backslashreplace").decode()


# --- what a client can meet -------------------------------------------------------------------


class Refused(CometError):
    """The broker said no and nothing is in the log; the same call would be refused again.

    `code` is the stable name of the reason (see `cometmq.protocol.Status`).
    """

    def __init__(self, message: str, code: str = "REFUSED") -> None:
        super().__init__(message)
        self.code = code


class NotAvailable(Refused):
    """This broker can't give what was asked for (an ack level, an operation), ever."""


class Fenced(Refused):
    """Somebody newer owns this: a claim token, a producer epoch or a broker epoch is old."""


class Retryable(CometError):
    """Nothing is in the log now, but the same call may succeed after `after_ms` milliseconds."""

    def __init__(self, message: str, after_ms: int = 0, code: str = "RETRYABLE") -> None:
        super().__init__(message)
        self.after_ms = after_ms
        self.code = code


class BufferFull(Retryable):
    """The producer's bounded buffer is full and it was told to raise instead of to wait."""


class OutcomeUnknown(CometError):
    """Time or the connection ran out before the answer came: stored, or not, can't be known."""


class Closed(CometError):
    """The producer, consumer, connection or broker is closed (or belongs to a forked parent)."""


class PositionError(CometError):
    """A place in a queue that can't be read. `next_offset` is where reading may go on."""

    def __init__(self, message: str, *, topic: str, queue: int, next_offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.queue = queue
        self.next_offset = next_offset


class Truncated(PositionError):
    """The queue was cut below the consumer's offset; go on at `next_offset`."""


class Expired(PositionError):
    """The offset is below the queue's min offset: deleted by retention."""


class Damaged(PositionError):
    """The bytes of these offsets are damaged on disk; only a seek goes past them."""


class Unreadable(PositionError):
    """A stored record that can't be decoded, and a consumer that was told to stop at it; only a
    seek goes past it."""


# --- data -------------------------------------------------------------------------------------


class BatchError(CometError):
    """Bytes that are not a well-formed record batch. Names the field, its value and the rule."""


class ProtocolError(CometError):
    """A peer sent something that is not the protocol. Names what was expected."""


# --- set-up -----------------------------------------------------------------------------------


class ConfigError(CometError):
    """A setting that can't be used: names file, line, key and what is allowed."""


class PluginError(CometError):
    """A plugin that can't be used or failed: plugin, distribution, version, hook, next step."""


class PluginFailure(PluginError):
    """A plugin raised inside a hook while the broker ran; what it raised is the `__cause__`."""

    def __init__(self, message: str, *, plugin: str, hook: str) -> None:
        super().__init__(message)
        self.plugin = plugin
        self.hook = hook


class LogError(CometError):
    """The data folder can't be used as it is: names file, position and what to do."""


class LogLocked(LogError):
    """Another process holds the data folder."""


class LogInDoubt(LogError):
    """The state can't be proven; the broker stays read-only until the folder is repaired."""


class NoSpace(LogError):
    """The disk has no room for what was to be written; nothing was written."""


class DiskRefused(LogError):
    """The file system refuses what was to be written, though not for being full (it is read-only,
    the file system is broken, no descriptor is left); nothing was written, and it may work later.
    """


class LogStopped(LogError):
    """The log accepts nothing more until the broker is started again: a sync failed, a cut could
    not be made, or what was written can't be relied on for another reason that it names."""
