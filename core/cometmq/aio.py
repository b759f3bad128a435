"""The awaitable face: `Producer`, the consumers and `Admin` for one asyncio event loop.

The same names, arguments and promises as in `cometmq`; what waits there is awaited here, and no
thread is used: the running loop watches the connection. `send_soon` returns a receipt as soon as
the message is buffered, and awaiting the receipt gives the result:

    receipt = await producer.send_soon(Message("orders", b"body"))
    result = await receipt
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from typing import Literal, TypeVar

import msgspec

from cometmq.client.administration import Administration
from cometmq.client.aio_consumer import Consumer
from cometmq.client.aio_driver import AioDriver
from cometmq.client.arguments import milliseconds
from cometmq.client.assignment import TopicQueue
from cometmq.client.batching import Batch, Outcome, Receipt, SendResult
from cometmq.client.connection import NEVER
from cometmq.client.consumer import assign, assign_first
from cometmq.client.faces import AioFace, make_engine
from cometmq.client.fetcher import ExpiredPolicy, FetchOptions
from cometmq.client.flows import log
from cometmq.client.handout import HeldMessage
from cometmq.client.offsets import Start
from cometmq.client.producer_options import ProducerOptions
from cometmq.client.producing import Accumulator
from cometmq.client.reading import Reader, Taken
from cometmq.client.taking import UnreadablePolicy
from cometmq.environment import Environment
from cometmq.errors import Closed, CometError, OutcomeUnknown
from cometmq.interfaces import Connect, Level
from cometmq.message import Message, ReceivedMessage
from cometmq.protocol import (
    BrokerInfoReply,
    GroupDescription,
    GroupResetPart,
    GroupSummary,
    OffsetsPart,
    Retention,
    TopicDescription,
    TopicInfo,
)

__all__ = [
    "Admin",
    "Consumer",
    "HeldMessage",
    "Message",
    "Producer",
    "PullConsumer",
    "Receipt",
    "SendResult",
]

S = TypeVar("S", bound=msgspec.Struct)


class Producer(AioFace):
    """See `cometmq.Producer`."""

    def __init__(
        self,
        address: str | None = None,
        *,
        level: Level | None = None,
        linger_ms: float = 5,
        batch_bytes: int = 256 << 10,
        buffer_bytes: int = 32 << 20,
        when_full: Literal["block", "raise"] = "block",
        send_timeout: float = 30.0,
        compression: str | None = None,
        compression_level: int | None = None,
        client_id: str | None = None,
        credentials: dict[str, str] | None = None,
        environment: Environment | None = None,
        connect: Connect | None = None,
    ) -> None:
        options = ProducerOptions(
            level,
            linger_ms,
            batch_bytes,
            buffer_bytes,
            when_full,
            send_timeout,
            compression,
            compression_level,
        )
        self._pid = os.getpid()
        self._engine = make_engine(address, client_id, credentials, environment, connect)
        self._driver = AioDriver(self._engine)
        self._accumulator = Accumulator(self._engine, options, self, nullcontext())
        atexit.register(self._at_exit)

    async def send(self, message: Message, level: Level | None = None) -> SendResult:
        """See `cometmq.Producer.send`."""
        accumulator = self._accumulator
        receipt = accumulator.append_fast(message, level)
        if receipt is None:
            return await self._driver.run(accumulator.send(message, level))
        return await receipt

    async def send_soon(self, message: Message, level: Level | None = None) -> Receipt:
        """See `cometmq.Producer.send_soon`; await the receipt for the result."""
        accumulator = self._accumulator
        receipt = accumulator.append_fast(message, level)
        if receipt is None:
            # Those of one turn of the loop travel together.
            receipt = await self._driver.run(accumulator.append(message, level, moment_s=NEVER))
            if accumulator.may_close(receipt.batch):
                self._driver.soon(partial(accumulator.close_if_idle, receipt.batch))
        return receipt

    async def send_many(
        self, messages: Sequence[Message], level: Level | None = None
    ) -> list[Outcome]:
        """See `cometmq.Producer.send_many`."""
        return await self._driver.run(self._accumulator.send_many(messages, level))

    async def send_one_way(self, message: Message) -> None:
        """See `cometmq.Producer.send_one_way`."""
        await self._driver.run(self._accumulator.send_one_way(message))

    async def flush(self, timeout: float | None = None) -> None:
        """See `cometmq.Producer.flush`."""
        left = await self._driver.run(self._accumulator.flush(timeout))
        if left:
            raise OutcomeUnknown(
                f"{left} batches are not acknowledged after {timeout} s; they are still being sent"
            )

    async def close(self, timeout: float | None = None) -> None:
        """See `cometmq.Producer.close`."""
        if self._engine.closed is not None:
            return
        left = 0
        if not self._driver.is_orphaned():
            left = await self._driver.run(self._accumulator.flush(timeout))
        atexit.unregister(self._at_exit)
        closed = Closed("the producer was closed before this was sent; nothing is stored")
        self._accumulator.close(closed)
        self._driver.close()
        if left:
            raise OutcomeUnknown(f"{left} batches were not acknowledged within {timeout} s")

    def wait(self, batch: Batch, timeout_s: float | None) -> object:
        """Used by receipts: nobody may block the loop. Raises RuntimeError."""
        raise RuntimeError("this receipt belongs to an event loop: await it instead of result()")

    def when_done(self, batch: Batch, callback: Callable[[], object]) -> None:
        """Used by receipts: `callback` runs in the event loop, or at once if the batch is done."""
        if batch.done:
            callback()
            return
        batch.add_waiter(lambda: self._engine.deferred.append(callback))
        self._driver.do(partial(self._accumulator.close_if_idle, batch))

    def _at_exit(self) -> None:
        """Without its event loop nothing can be sent any more, but it can be said."""
        left = self._accumulator.unacknowledged()
        if left and os.getpid() == self._pid:
            log.warning(
                "at exit: %d messages were not acknowledged; await the producer's close(), or use "
                "it with `async with`",
                left,
            )


class PullConsumer(AioFace):
    """See `cometmq.PullConsumer`."""

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
        self._driver = AioDriver(engine)
        atexit.register(self._at_exit)

    def assign(
        self, queues: Sequence[int | TopicQueue] | None = None, topic: str | None = None
    ) -> None:
        """See `cometmq.PullConsumer.assign`."""
        self._driver.check()
        assign(self._reader, queues, topic)

    async def poll(self, max_messages: int = 500, timeout: float = 1.0) -> list[ReceivedMessage]:
        """See `cometmq.PullConsumer.poll`."""
        taken: Taken = {}
        try:
            return await self._driver.run(self._reader.poll(max_messages, timeout, taken))
        except CometError:
            raise
        except BaseException:  # cancelled, when it had just found something
            self._reader.put_back(taken)
            raise

    async def commit(self, wait: bool = True) -> None:
        """See `cometmq.PullConsumer.commit`."""
        if wait:
            await self._driver.run(self._reader.commit())
        else:
            self._driver.do(self._reader.commit_soon)

    async def committed(self) -> dict[TopicQueue, int | None]:
        """See `cometmq.PullConsumer.committed`."""
        return await self._driver.run(self._reader.committed())

    async def position(self, queue: int | None = None, topic: str | None = None) -> int:
        """See `cometmq.PullConsumer.position`."""
        return await self._driver.run(self._reader.position(queue, topic))

    async def seek(self, offset: int, queue: int | None = None, topic: str | None = None) -> None:
        """See `cometmq.PullConsumer.seek`."""
        await self._driver.run(self._reader.seek(offset, queue, topic))

    async def seek_to_earliest(self, queue: int | None = None, topic: str | None = None) -> None:
        """See `cometmq.PullConsumer.seek_to_earliest`."""
        await self._driver.run(self._reader.seek_to("earliest", queue, topic))

    async def seek_to_latest(self, queue: int | None = None, topic: str | None = None) -> None:
        """See `cometmq.PullConsumer.seek_to_latest`."""
        await self._driver.run(self._reader.seek_to("latest", queue, topic))

    async def seek_to_time(
        self, time: datetime, queue: int | None = None, topic: str | None = None
    ) -> None:
        """See `cometmq.PullConsumer.seek_to_time`."""
        await self._driver.run(self._reader.seek_to(time, queue, topic))

    async def close(self) -> None:
        """See `cometmq.PullConsumer.close`."""
        atexit.unregister(self._at_exit)
        try:
            if self._reader.unfinished and self._driver.engine.closed is None:
                await self._driver.run(self._reader.farewell())
        finally:
            self._driver.close()

    def _at_exit(self) -> None:
        """Without its event loop nothing can be sent any more, but it can be said."""
        if self._reader.unfinished and self._driver.is_here():
            log.warning(
                "at exit: commits in the background, or reports of damage, did not arrive; await "
                "the consumer's close(), or use it with `async with`"
            )


class Admin(AioFace):
    """See `cometmq.Admin`."""

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout: float = 30.0,
        client_id: str | None = None,
        credentials: dict[str, str] | None = None,
        environment: Environment | None = None,
        connect: Connect | None = None,
    ) -> None:
        engine = make_engine(address, client_id, credentials, environment, connect)
        self._flows = Administration(engine, timeout)
        self._driver = AioDriver(engine)

    async def create_topic(
        self, name: str, queues: int = 4, readable: bool = True, writable: bool = True
    ) -> TopicDescription:
        """See `cometmq.Admin.create_topic`."""
        return await self._driver.run(self._flows.create_topic(name, queues, readable, writable))

    async def alter_topic(
        self,
        name: str,
        queues: int | None = None,
        readable: bool | None = None,
        writable: bool | None = None,
        retention: Retention | None = None,
    ) -> TopicDescription:
        """See `cometmq.Admin.alter_topic`."""
        return await self._driver.run(
            self._flows.alter_topic(name, queues, readable, writable, retention)
        )

    async def delete_topic(self, name: str) -> None:
        """See `cometmq.Admin.delete_topic`."""
        await self._driver.run(self._flows.delete_topic(name))

    async def list_topics(self, prefix: str = "") -> list[TopicInfo]:
        """See `cometmq.Admin.list_topics`."""
        return await self._driver.run(self._flows.list_topics(prefix))

    async def describe_topic(self, name: str, usage: bool = False) -> TopicDescription:
        """See `cometmq.Admin.describe_topic`."""
        return await self._driver.run(self._flows.describe_topic(name, usage))

    async def broker_info(self) -> BrokerInfoReply:
        """See `cometmq.Admin.broker_info`."""
        return await self._driver.run(self._flows.broker_info())

    async def offsets(self, topic: str) -> dict[int, OffsetsPart]:
        """See `cometmq.Admin.offsets`."""
        return await self._driver.run(self._flows.offsets(topic))

    async def committed(self, group: str, topic: str) -> dict[int, int | None]:
        """See `cometmq.Admin.committed`."""
        return await self._driver.run(self._flows.committed(group, topic))

    async def reset_offsets(
        self, group: str, topic: str, to: Start, queue: int | None = None
    ) -> dict[int, int]:
        """See `cometmq.Admin.reset_offsets`."""
        return await self._driver.run(self._flows.reset_offsets(group, topic, to, queue))

    async def list_groups(self, prefix: str = "") -> list[GroupSummary]:
        """See `cometmq.Admin.list_groups`."""
        return await self._driver.run(self._flows.list_groups(prefix))

    async def describe_group(self, name: str) -> GroupDescription:
        """See `cometmq.Admin.describe_group`."""
        return await self._driver.run(self._flows.describe_group(name))

    async def reset_group(
        self,
        name: str,
        to: Start,
        topic: str | None = None,
        queues: Sequence[int] = (),
        dry_run: bool = False,
        force: bool = False,
    ) -> list[GroupResetPart]:
        """See `cometmq.Admin.reset_group`."""
        flow = self._flows.reset_group(name, to, topic, queues, dry_run, force)
        return await self._driver.run(flow)

    async def delete_group(self, name: str, force: bool = False) -> None:
        """See `cometmq.Admin.delete_group`."""
        await self._driver.run(self._flows.delete_group(name, force))

    async def call(self, operation: int, header: msgspec.Struct, reply_type: type[S]) -> S:
        """See `cometmq.Admin.call`."""
        return await self._driver.run(self._flows.call(operation, header, reply_type))

    async def close(self) -> None:
        """See `cometmq.Admin.close`."""
        self._driver.close()
