"""A broker that answers as a test says, without a log or a loop: for tests of clients.

`ScriptedBroker` is what a client's `connect=` wants. Left alone it behaves like a small broker in
memory. A test holds answers back, gives other ones, breaks the connection, or refuses it, and
looks at what was asked. Time is the client's: nothing happens here but within its calls.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from cometmq import protocol
from cometmq.batch import parse, seed, stamp, verify_producer
from cometmq.environment import Buffer
from cometmq.interfaces import ChannelEvent, Limits
from cometmq.protocol import Status

LOG_ID = bytes(range(8))
EPOCH = 1


class Answer(msgspec.Struct):
    """What a request is answered with."""

    header: msgspec.Struct
    status: int = Status.OK
    body: list[Buffer] = []


class Request(msgspec.Struct):
    """One request as the broker got it."""

    id: int
    operation: int
    header: msgspec.Struct
    batches: list[memoryview]
    channel: ScriptedChannel

    def answer(self, answer: Answer) -> None:
        """Answer it now; into the void if its channel is gone."""
        self.channel.deliver(protocol.pack(self.id, answer.status, answer.header, answer.body))

    def fail(self, status: int, detail: str = "because", retry_after_ms: int = 0) -> None:
        """Answer with a failure."""
        self.answer(Answer(protocol.Failure(detail, retry_after_ms), status))


Handler = Callable[[Request], Answer | None]
"""None: the test answers later, by `Request.answer`."""


class ScriptedChannel:
    """The client's end of one connection to a `ScriptedBroker`."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.closed = False
        self.happened: list[tuple[ChannelEvent, str]] = []
        self._broker = broker
        self._inbox: deque[list[Buffer]] = deque()
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def send(self, frames: Sequence[Buffer]) -> bool:
        return not self.happened and self._broker.receive(self, frames)

    def receive(self, max_messages: int = 256) -> list[Sequence[Buffer]]:
        self._reset()
        messages: list[Sequence[Buffer]] = []
        while self._inbox and len(messages) < max_messages:
            messages.append(self._inbox.popleft())
        return messages

    def events(self) -> list[tuple[ChannelEvent, str]]:
        happened, self.happened = self.happened, []
        return happened

    def fileno(self) -> int:
        return self._event_fd

    def wait(self, timeout_s: float, wake_fd: int = -1) -> None:
        poll = select.poll()
        for descriptor in (self._event_fd, wake_fd):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        poll.poll(timeout_s * 1000)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._event_fd)

    def deliver(self, frames: list[Buffer]) -> None:
        """Put one message where the client finds it."""
        if not self.closed:
            self._inbox.append(frames)
            os.eventfd_write(self._event_fd, 1)

    def end(self, event: ChannelEvent, detail: str) -> None:
        """Something ended the connection."""
        if not self.closed:
            self.happened.append((event, detail))
            os.eventfd_write(self._event_fd, 1)

    def _reset(self) -> None:
        try:
            os.eventfd_read(self._event_fd)
        except BlockingIOError:
            pass  # nothing was written since


class ScriptedBroker:
    """See the module. `on` maps an operation to what answers it instead of the default."""

    def __init__(self, *, queues: int = 4, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.queues = queues
        self.heartbeat_ms = 10_000
        self.session_timeout_ms = 30_000
        self.features: list[str] = []
        """What hello tells; to do it is up to the test."""
        self.in_doubt = ""
        """So is this."""
        self.on: dict[int, Handler] = {}
        self.requests: list[Request] = []
        """Everything that was asked, in order."""
        self.channels: list[ScriptedChannel] = []
        self.stored: dict[tuple[str, int], list[bytearray]] = {}
        """Stamped batches, by topic and queue."""
        self.committed: dict[tuple[str, str, int], protocol.CommitPart] = {}
        self.down: tuple[ChannelEvent, str] | None = None
        """What meets a client that connects now, instead of a connection."""
        self.full = False
        """Whether channels take nothing for now."""
        self._position = 0

    def connect(self, address: str, limits: Limits) -> ScriptedChannel:
        """A `Connect`: what a client takes as `connect=`."""
        channel = ScriptedChannel(self)
        self.channels.append(channel)
        if self.down is not None:
            channel.end(*self.down)
        return channel

    def asked(self, operation: int) -> list[Request]:
        """The requests of one operation, in order."""
        return [request for request in self.requests if request.operation == operation]

    def hold(self, operation: int) -> None:
        """Don't answer this operation; the test will, by `Request.answer`, or never."""
        self.on[operation] = lambda request: None

    def answer_once(self, operation: int, answer: Answer) -> None:
        """Answer the next request of this operation so, then as before."""
        before = self.on.get(operation)

        def once(request: Request) -> Answer:
            self.on.pop(operation)
            if before is not None:
                self.on[operation] = before
            return answer

        self.on[operation] = once

    def break_connection(self) -> None:
        """The connection ends; what was answered and not yet received is lost with it."""
        self.channels[-1].receive()
        self.channels[-1].end("disconnected", "the connection was broken")

    def receive(self, channel: ScriptedChannel, frames: Sequence[Buffer]) -> bool:
        """Take one message from a client. False: not now."""
        if self.full:
            return False
        request_id, operation, raw, body = protocol.unpack([bytes(frame) for frame in frames])
        header = protocol.decode(protocol.REQUESTS[operation], raw)
        batches = protocol.split(body, header.sizes) if isinstance(header, protocol.Send) else []
        request = Request(request_id, operation, header, batches, channel)
        self.requests.append(request)
        answer = self.on.get(operation, self.default)(request)
        if answer is not None:
            request.answer(answer)
        return True

    def default(self, request: Request) -> Answer | None:
        """The answer of a small broker in memory."""
        match request.header:
            case protocol.Hello():
                return Answer(self._hello())
            case protocol.TopicDescribe(topic) | protocol.TopicCreate(topic):
                info = protocol.TopicInfo(topic, 1, self.queues, True, True, 0)
                return Answer(protocol.TopicDescription(info))
            case protocol.TopicList():
                return Answer(protocol.TopicListing([]))
            case protocol.Send(one_way=one_way):
                reply = self.store(request)
                return None if one_way else Answer(reply)
            case protocol.Fetch() as fetch:
                return self._fetch(fetch)
            case protocol.Offsets(queues) | protocol.OffsetByTime(queues):
                return Answer(protocol.OffsetsReply([self._bounds(ref) for ref in queues]))
            case protocol.Committed(group, queues):
                return Answer(protocol.OffsetsReply([self._known(group, ref) for ref in queues]))
            case protocol.Commit(group, parts):
                for part in parts:
                    self.committed[group, part.topic, part.queue] = part
                return Answer(protocol.CommitReply([protocol.PartStatus(0) for _ in parts]))
            case _:
                return Answer(protocol.Empty())

    def store(self, request: Request) -> protocol.SendReply:
        """Store the batches of a send and say where."""
        results = []
        for view in request.batches:
            batch = parse(bytes(view))
            verify_producer(batch)
            offset = self.put(batch.topic, batch.queue_claim, bytearray(view))
            results.append(
                protocol.SendResultPart(Status.OK, batch.queue_claim, offset, 1, EPOCH, 1000)
            )
        assert isinstance(request.header, protocol.Send)
        return protocol.SendReply(results, request.header.level or "disk")

    def put(
        self, topic: str, queue: int, batch: bytearray, *, offset: int = -1, epoch: int = EPOCH
    ) -> int:
        """Stamp a batch and keep it behind what its queue holds, or at `offset`."""
        kept = self.stored.setdefault((topic, queue), [])
        if offset < 0:
            offset = parse(kept[-1]).next_offset if kept else 0
        stamp(
            batch,
            log_id_seed=seed(LOG_ID),
            position=self._position,
            epoch=epoch,
            synced_before=0,
            base_offset=offset,
            store_time=1000,
            incarnation=1,
            queue=queue,
        )
        self._position += len(batch)
        kept.append(batch)
        return offset

    def _hello(self) -> protocol.HelloReply:
        return protocol.HelloReply(
            1,
            len(self.channels),
            "scripted",
            LOG_ID.hex(),
            EPOCH,
            self.session_timeout_ms,
            self.heartbeat_ms,
            self.limits,
            "disk",
            features=self.features,
            in_doubt=self.in_doubt,
        )

    def _fetch(self, fetch: protocol.Fetch) -> Answer | None:
        """What lies at the offsets asked for; parked for ever when there is nothing."""
        results, sizes, body = [], [], []
        for place, part in enumerate(fetch.parts):
            batches = [
                batch
                for batch in self.stored.get((part.topic, part.queue), [])
                if parse(batch).next_offset > part.offset
            ]
            if batches:
                last = parse(batches[-1])
                sizes += [len(batch) for batch in batches]
                body += batches
                results.append(
                    protocol.FetchResultPart(
                        place, 0, last.next_offset, last.epoch, 0, 0, len(batches), 1
                    )
                )
        if not results and fetch.wait_ms:
            return None
        return Answer(protocol.FetchReply(results, sizes), body=[*body])

    def _bounds(self, ref: protocol.QueueRef) -> protocol.OffsetsPart:
        kept = self.stored.get((ref.topic, ref.queue), [])
        low, high = (parse(kept[0]).base_offset, parse(kept[-1]).next_offset) if kept else (0, 0)
        return protocol.OffsetsPart(0, low, high, low, EPOCH, 1)

    def _known(self, group: str, ref: protocol.QueueRef) -> protocol.OffsetsPart:
        part = self.committed.get((group, ref.topic, ref.queue))
        if part is None:
            return protocol.OffsetsPart(0, found=False)
        return protocol.OffsetsPart(0, offset=part.offset, epoch=part.epoch, incarnation=1)
