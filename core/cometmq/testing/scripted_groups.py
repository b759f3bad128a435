"""Groups for a `ScriptedBroker`: a coordinator and claims that do as a test says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from cometmq import protocol
from cometmq.protocol import Operation, Status
from cometmq.testing.scripted_broker import Answer, Request, ScriptedBroker

T = TypeVar("T")
Key = tuple[str, int]


class ScriptedGroups:
    """Left alone it advises nothing; claims are accepted, releases and commits kept."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.generation = 0
        self.advised: list[Key] = []
        self.winning: list[protocol.Subscription] = []
        self.warnings: list[str] = []
        self.tokens: dict[Key, protocol.Token] = {}
        """The claims that stand."""
        self.refusals: dict[Key, protocol.ClaimResultPart] = {}
        """What a claim is answered with instead."""
        self.kept = False
        """Whether a token that is presented is called kept."""
        self.silent = False
        """Whether heartbeats get no answer at all."""
        self._tokens_made = 0
        self._parked: list[Request] = []
        broker.on[Operation.GROUP_HEARTBEAT] = self._beat
        broker.on[Operation.CLAIM] = self._claim
        broker.on[Operation.RELEASE] = self._release
        broker.on[Operation.COMMIT] = self._commit

    def advise(self, *queues: Key) -> None:
        """Tell every member to hold these queues, at once."""
        self.advised = [*queues]
        self.generation += 1
        parked, self._parked = self._parked, []
        for request in parked:
            request.answer(self._advice())

    def void(self) -> None:
        """No token is good any more, as after a reset."""
        self.tokens.clear()

    def heartbeats(self) -> list[protocol.GroupHeartbeat]:
        """What members said, in order."""
        return _headers(self.broker.asked(Operation.GROUP_HEARTBEAT), protocol.GroupHeartbeat)

    def claims(self) -> list[protocol.Claim]:
        """The claims asked for, in order."""
        return _headers(self.broker.asked(Operation.CLAIM), protocol.Claim)

    def releases(self) -> list[protocol.ReleasePart]:
        """What was given back, in order."""
        found = _headers(self.broker.asked(Operation.RELEASE), protocol.Release)
        return [part for release in found for part in release.parts]

    def committed(self, group: str, topic: str, queue: int) -> int | None:
        """What the group has committed of a queue."""
        part = self.broker.committed.get((group, topic, queue))
        return None if part is None else part.offset

    def _advice(self) -> Answer:
        queues = [protocol.HeldQueue(*key) for key in self.advised]
        return Answer(protocol.GroupAdvice(self.generation, queues, self.winning, 1, self.warnings))

    def _beat(self, request: Request) -> Answer | None:
        header = request.header
        assert isinstance(header, protocol.GroupHeartbeat)
        if self.silent:
            return None
        if header.known != self.generation or not header.wait_ms:
            return self._advice()
        self._parked.append(request)
        return None

    def _claim(self, request: Request) -> Answer:
        header = request.header
        assert isinstance(header, protocol.Claim)
        parts = []
        for part in header.parts:
            key = part.topic, part.queue
            if key in self.refusals:
                parts.append(self.refusals[key])
                continue
            self._tokens_made += 1
            token = self.tokens[key] = protocol.Token(1, self._tokens_made)
            known = self.broker.committed.get((header.group, *key))
            offset, epoch = (known.offset, known.epoch) if known else (0, 0)
            kept = self.kept and part.token is not None
            parts.append(protocol.ClaimResultPart(0, token, offset, epoch, 1, kept=kept))
        return Answer(protocol.ClaimReply(parts))

    def _release(self, request: Request) -> Answer:
        header = request.header
        assert isinstance(header, protocol.Release)
        parts = []
        for part in header.parts:
            key = part.topic, part.queue
            if self.tokens.get(key) != part.token:
                parts.append(protocol.PartStatus(Status.FENCED))
                continue
            del self.tokens[key]
            if part.offset is not None:
                self.broker.committed[header.group, part.topic, part.queue] = protocol.CommitPart(
                    part.topic, part.queue, part.offset, part.epoch
                )
            parts.append(protocol.PartStatus(0))
        return Answer(protocol.CommitReply(parts))

    def _commit(self, request: Request) -> Answer:
        header = request.header
        assert isinstance(header, protocol.Commit)
        parts = []
        for part in header.parts:
            if self.tokens.get((part.topic, part.queue)) != part.token:
                parts.append(protocol.PartStatus(Status.FENCED, "an old token"))
                continue
            self.broker.committed[header.group, part.topic, part.queue] = part
            parts.append(protocol.PartStatus(0))
        return Answer(protocol.CommitReply(parts))


def _headers(requests: Sequence[Request], kind: type[T]) -> list[T]:
    return [request.header for request in requests if isinstance(request.header, kind)]
