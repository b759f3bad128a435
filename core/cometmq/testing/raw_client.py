"""A broker and a client in one event loop, without sockets and on virtual time.

The client speaks the wire's structs and nothing more: no retries, no batching, no threads. So a
test sees each reply as the broker sent it, and can send what no real client would.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from typing import Any

import msgspec

from cometmq import protocol
from cometmq.batch import RecordTuple, encode_messages
from cometmq.broker import Broker
from cometmq.config import load_config
from cometmq.environment import Buffer
from cometmq.interfaces import Channel, Limits
from cometmq.plugins import compose
from cometmq.protocol import (
    Failure,
    Fetch,
    FetchPart,
    Hello,
    HelloReply,
    Operation,
    Send,
    SendReply,
    SendResultPart,
    Status,
)
from cometmq.testing.environment import VirtualEnvironment

TURNS = 500
"""Of the event loop: more than any answer takes that waits for nothing."""

_names = itertools.count(1)


def batch_of(topic: str, queue: int, *bodies: bytes) -> bytearray:
    """A sealed batch of plain messages."""
    records: list[RecordTuple] = [(1_750_000_000_000, body, "", (), {}) for body in bodies]
    return encode_messages(topic, queue, records)


class Answer(msgspec.Struct):
    """One reply."""

    status: Status
    header: Any
    """The reply's struct; a Failure unless the status is OK."""
    body: list[memoryview]


class RawClient:
    """One connection; use it on the broker's own loop."""

    def __init__(self, address: str) -> None:
        scheme = address.partition("://")[0]
        (found,) = entry_points(group="cometmq.transports", name=scheme)
        self.channel: Channel = found.load()(address, Limits())
        self._ids = itertools.count(1)
        self._operations: dict[int, int] = {}
        self._answers: dict[int, Answer] = {}
        self.unasked: list[Answer] = []
        """Replies to no request of ours, as for garbage."""

    async def hello(self, client_id: str = "", client_epoch: int = 0, **fields: Any) -> HelloReply:
        """Say hello and return the welcome."""
        answer = await self.ask(
            Operation.HELLO,
            Hello(
                protocol_min=protocol.PROTOCOL_MIN,
                protocol_max=protocol.PROTOCOL_MAX,
                client_id=client_id or f"client-{next(_names)}",
                client_epoch=client_epoch,
                **fields,
            ),
        )
        assert isinstance(answer.header, HelloReply), answer
        return answer.header

    def post(self, operation: int, header: msgspec.Struct, body: Sequence[Buffer] = ()) -> int:
        """Send a request; its id, for `answer`."""
        request_id = next(self._ids)
        self._operations[request_id] = operation
        self.post_raw(protocol.pack(request_id, operation, header, body))
        return request_id

    def post_raw(self, frames: Sequence[Buffer]) -> None:
        """Send these frames, whatever they are."""
        assert self.channel.send(frames), "the channel takes nothing"

    async def ask(
        self, operation: int, header: msgspec.Struct, body: Sequence[Buffer] = ()
    ) -> Answer:
        """Send a request and wait for its reply."""
        return await self.answer(self.post(operation, header, body))

    async def answer(self, request_id: int) -> Answer:
        """Wait for a reply. Raises AssertionError if none comes while time stands still."""
        answer = await self.answer_if_any(request_id)
        assert answer is not None, f"request {request_id} was not answered"
        return answer

    async def answer_if_any(self, request_id: int) -> Answer | None:
        """The reply, or None if none comes while time stands still."""
        for _ in range(TURNS):
            self._receive()
            if request_id in self._answers:
                return self._answers.pop(request_id)
            await asyncio.sleep(0)
        return None

    def post_send(self, *batches: Buffer, **fields: Any) -> int:
        """Send these batches in one request; its id. `fields` are those of `Send`."""
        fields.setdefault("incarnations", [0] * len(batches))
        header = Send(sizes=[len(batch) for batch in batches], **fields)
        return self.post(Operation.SEND, header, batches)

    async def send(self, *batches: Buffer, **fields: Any) -> list[SendResultPart]:
        """The same, and wait: one result per batch."""
        answer = await self.answer(self.post_send(*batches, **fields))
        assert isinstance(answer.header, SendReply), answer
        return answer.header.results

    async def fetch(self, *parts: FetchPart, **fields: Any) -> Answer:
        """Fetch these queues. `fields` are those of `Fetch`."""
        return await self.ask(Operation.FETCH, Fetch(list(parts), **fields))

    def close(self) -> None:
        """Leave without a word."""
        self.channel.close()

    def _receive(self) -> None:
        for frames in self.channel.receive():
            request_id, code, header, body = protocol.unpack(frames)
            operation = self._operations.pop(request_id, 0)
            kind = Failure if code != Status.OK else protocol.REPLIES[operation]
            answer = Answer(Status(code), protocol.decode(kind, header), body)
            if operation:
                self._answers[request_id] = answer
            else:
                self.unasked.append(answer)


class Rig:
    """A running broker, its environment, and as many clients as a test wants."""

    def __init__(self, broker: Broker, environment: VirtualEnvironment) -> None:
        self.broker = broker
        self.environment = environment
        self.clients: list[RawClient] = []

    def stranger(self) -> RawClient:
        """A connection that has not said hello."""
        client = RawClient(self.broker.addresses[0])
        self.clients.append(client)
        return client

    async def client(self, client_id: str = "", **fields: Any) -> RawClient:
        """A connection with a session."""
        client = self.stranger()
        await client.hello(client_id, **fields)
        return client

    async def settle(self) -> None:
        """Let everything happen that waits for nothing."""
        for _ in range(TURNS):
            await asyncio.sleep(0)


@asynccontextmanager
async def running_broker(
    settings: Mapping[str, object] | None = None,
    *,
    environment: VirtualEnvironment | None = None,
    plugins: Sequence[str] = (),
    extra_plugins: Mapping[str, object] | None = None,
) -> AsyncIterator[Rig]:
    """A broker on the running loop, by default with its log in the environment's files.

    `settings` are dotted config keys, `plugins` names as on the command line, `extra_plugins`
    plugin classes or objects by name, enabled too.
    """
    environment = environment or VirtualEnvironment()
    names = [*plugins, *(extra_plugins or {})]
    overrides: dict[str, object] = {
        "broker.listen": [f"inproc://rig-{next(_names)}"],
        "broker.data": "/mq-data",
        "broker.malloc_tuning": False,
        **(settings or {}),
    }
    if names:
        overrides["plugins"] = ",".join(names)
    config = load_config(None, {}, overrides)
    broker = Broker(config, environment, compose(config, extra_plugins=extra_plugins or {}))
    await broker.start()
    rig = Rig(broker, environment)
    try:
        yield rig
    finally:
        for client in rig.clients:
            client.close()
        await broker.stop()


Scenario = Callable[[Rig, RawClient], Awaitable[None]]


def play(scenario: Scenario, settings: Mapping[str, object] | None = None) -> None:
    """Run a scenario with a broker of its own and one client that said hello."""

    async def run() -> None:
        async with running_broker(settings) as rig:
            await scenario(rig, await rig.client())

    asyncio.run(run())
