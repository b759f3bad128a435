"""The pull consumer, sync face."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from cometmq.client.arguments import milliseconds
from cometmq.client.assignment import TopicQueue
from cometmq.client.driver import Driver
from cometmq.client.faces import Face, make_engine
from cometmq.client.fetcher import ExpiredPolicy, FetchOptions
from cometmq.client.offsets import Start
from cometmq.client.reading import Reader, Taken
from cometmq.client.taking import UnreadablePolicy
from cometmq.environment import Environment
from cometmq.errors import CometError, Refused
from cometmq.interfaces import Connect
from cometmq.message import ReceivedMessage


class PullConsumer(Face):
    """Reads queues at its own pace and commits, for a group, how far it came.

    Delivery is *at least once*: after a crash reading goes on at the last commit, and what was
    polled since then comes again. Within a queue messages come in order, between queues in none.

    `topic` (or several) is read with all its queues, or with `queues` only; `assign` changes that.
    Reading starts at what `group` has committed, else at `start`: "earliest", "latest", an offset,
    or a datetime (the first message stored since then). `unreadable` says what happens to a stored
    record that can't be decoded: "skip" logs its position and goes on, "raise" stops its queue
    with Unreadable, a function is called with the UnreadableMessage. `on_expired` says where a
    queue goes on whose next messages were deleted by retention, after Expired was raised once:
    "earliest", at the first one left; "latest", behind the last; "stop", nowhere until a `seek`.
    `fetch_wait` is how long, in seconds, a request may wait at the broker for messages; with 0 it
    does not, and an idle queue is asked again every 5 to 200 ms. `fetch_bytes` are asked for at a
    time, up to `read_ahead_bytes` wait here; `timeout` is for all that is no poll.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        group: str | None = None,
        topic: str | Sequence[str] | None = None,
        queues: Sequence[int] | None = None,
        start: Start = "earliest",
        unreadable: UnreadablePolicy = "skip",
        on_expired: ExpiredPolicy = "earliest",
        fetch_bytes: int = 1 << 20,
        read_ahead_bytes: int = 4 << 20,
        fetch_wait: float = 20.0,
        timeout: float = 30.0,
        client_id: str | None = None,
        credentials: dict[str, str] | None = None,
        environment: Environment | None = None,
        connect: Connect | None = None,
    ) -> None:
        engine = make_engine(address, client_id, credentials, environment, connect)
        wait_ms = milliseconds("fetch_wait", fetch_wait)
        options = FetchOptions(group or "", fetch_bytes, read_ahead_bytes, wait_ms, on_expired)
        self._reader = Reader(
            engine, options, start=start, unreadable=unreadable, timeout_s=timeout
        )
        assign_first(self._reader, topic, queues)
        self._driver = Driver(engine, self.close)

    def assign(
        self, queues: Sequence[int | TopicQueue] | None = None, topic: str | None = None
    ) -> None:
        """Read these queues from now on, instead of what was read before.

        A queue is a number in `topic`, or a (topic, number); no queues: all of `topic`.
        Raises Refused for a bad name.
        """
        self._driver.do(lambda: assign(self._reader, queues, topic))

    def poll(self, max_messages: int = 500, timeout: float = 1.0) -> list[ReceivedMessage]:
        """Up to `max_messages`, as soon as there are any; an empty list after `timeout` seconds.

        It ends early once compressed batches have grown by `read_ahead_bytes`.

        What concerns one queue is raised once everything before it was returned; the other queues
        go on with the next call. Truncated and Expired: that queue goes on at `next_offset` by
        itself (Expired not with `on_expired="stop"`). Damaged, Unreadable, Refused (say, the topic
        is gone): it stands still, and the error is raised again by every poll that would return
        nothing, until a `seek` (which goes on in the new life of a topic that was deleted and made
        again).
        Raises Retryable when the broker can't be reached to begin with, Closed.
        """
        taken: Taken = {}
        try:
            return self._driver.run(self._reader.poll(max_messages, timeout, taken), stays=True)
        except CometError:
            raise
        except BaseException:  # a ctrl-C, or what the handler of another signal raises
            self._driver.put_right(partial(self._reader.put_back, taken))
            raise

    def commit(self, wait: bool = True) -> None:
        """Store, for the group, the places behind what was polled, or sought.

        With `wait=False` it happens in the background, a few milliseconds later if this is done
        often, and a failure is only logged. `close` sends what is left of it. Raises
        Refused, Retryable, OutcomeUnknown, Closed.
        """
        if wait:
            self._driver.run(self._reader.commit())
        else:
            self._driver.do(self._reader.commit_soon, later=True)

    def committed(self) -> dict[TopicQueue, int | None]:
        """What the group has committed, by (topic, queue): the next offset to read, or None."""
        return self._driver.run(self._reader.committed())

    def position(self, queue: int | None = None, topic: str | None = None) -> int:
        """The offset of the next message that a poll returns from this queue. Raises Retryable for
        one that its topic just got."""
        return self._driver.run(self._reader.position(queue, topic))

    def seek(self, offset: int, queue: int | None = None, topic: str | None = None) -> None:
        """Go on at `offset` of a queue. It need not be named when only one can be meant: the only
        one that is read, or the only one that stands still with an error."""
        self._driver.run(self._reader.seek(offset, queue, topic))

    def seek_to_earliest(self, queue: int | None = None, topic: str | None = None) -> None:
        """Go on at the first message that is there, of one queue or of all."""
        self._driver.run(self._reader.seek_to("earliest", queue, topic))

    def seek_to_latest(self, queue: int | None = None, topic: str | None = None) -> None:
        """Go on behind the last message that is readable now, of one queue or of all."""
        self._driver.run(self._reader.seek_to("latest", queue, topic))

    def seek_to_time(
        self, time: datetime, queue: int | None = None, topic: str | None = None
    ) -> None:
        """Go on at the first message stored at or after `time`, of one queue or of all."""
        self._driver.run(self._reader.seek_to(time, queue, topic))

    def close(self) -> None:
        """End the connection. Nothing is committed by closing; what `commit(wait=False)` was given
        gets up to a second to arrive."""
        try:
            if self._reader.unfinished and not self._driver.is_over():
                self._driver.run(self._reader.farewell())
        finally:
            self._driver.close()


def assign_first(
    reader: Reader, topic: str | Sequence[str] | None, queues: Sequence[int] | None
) -> None:
    """The assignment that a constructor's arguments ask for, if any. Raises Refused."""
    if isinstance(topic, str):
        assign(reader, queues, topic)
    elif topic and queues is None:
        reader.assignment.assign_topics(topic)
    elif queues is not None:
        raise Refused("queues=... needs exactly one topic=...; see assign(...) for several")


def assign(reader: Reader, queues: Sequence[int | TopicQueue] | None, topic: str | None) -> None:
    """See `PullConsumer.assign`."""
    reader.send_commits()
    if queues is None:
        if topic is None:
            raise Refused("assign(...) needs queues, a topic, or both")
        reader.assignment.assign_topics([topic])
        return
    wanted: list[TopicQueue] = []
    for queue in queues:
        if isinstance(queue, tuple):
            wanted.append(queue)
        elif topic is None:
            raise Refused(f"assign({queue}): a number needs a topic=..., or use (topic, number)")
        else:
            wanted.append((topic, queue))
    reader.assignment.assign_queues(wanted)
