"""Sends: each batch is checked, offered to the plugins, given its queue and appended.

Batches are decided one by one, so a bad one is refused alone, and each is applied before the
next is looked at. The request is answered once all that were appended have its level.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cometmq import native, protocol
from cometmq.batch import Batch, parse, verify_producer, verify_unstamped
from cometmq.broker.catalog import Catalog
from cometmq.broker.gate import Gate
from cometmq.broker.names import shown
from cometmq.broker.park import Park
from cometmq.broker.refusals import (
    Rejected,
    hook_refusal,
    internal_refusal,
    log_refusal,
    wrong_answer,
)
from cometmq.broker.requests import Body, Request
from cometmq.broker.waits import NOT_WRITTEN
from cometmq.errors import BatchError, LogError
from cometmq.interfaces import LEVELS, Answer, Level, Limits, Pass, Refuse, Replace, SessionInfo
from cometmq.log import LEVELS_HERE, Log, Outcome, QueueKey
from cometmq.log.records import TopicChange
from cometmq.protocol import Send, SendReply, SendResultPart, Status

BATCHES_MAX = 4096
"""In one request: the loop serves nobody else while it goes through them."""

_OK = int(Status.OK)
_prove = native.prove
BeforeAppend = Callable[[SessionInfo, Batch], Pass | Replace | Refuse | Answer | None]


class Sends:
    """Handler of the operation SEND."""

    def __init__(
        self,
        log: Log,
        catalog: Catalog,
        gate: Gate,
        park: Park,
        limits: Limits,
        before_append: tuple[BeforeAppend, ...],
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._topics = catalog.topics
        self._gate = gate
        self._park = park
        self._limits = limits
        self._before_append = before_append
        self._default = default = log.default_level
        self._weaker: dict[Level | None, bool] = {None: False}
        """Whether a level says less than the default one, for the levels of this broker."""
        for level in LEVELS_HERE:
            self._weaker[level] = LEVELS.index(level) < LEVELS.index(default)

    def send(self, request: Request, header: Send, body: Body) -> None:
        weaker = self._weaker.get(header.level)
        if weaker is None:
            raise Rejected(
                Status.LEVEL_NOT_AVAILABLE,
                f"level {header.level} needs replication, which no plugin of this broker brings: "
                f"send with level {' or '.join(LEVELS_HERE)}, or enable a replication plugin",
            )
        sizes, incarnations = header.sizes, header.incarnations
        if not len(sizes) == len(incarnations) <= BATCHES_MAX:
            raise Rejected(
                Status.BAD_REQUEST,
                f"a send of {len(sizes)} sizes and {len(incarnations)} "
                f"incarnations: give one of each per batch, at most {BATCHES_MAX} batches",
            )
        pending = _Pending(self._log, request, header.level or self._default)
        for piece, incarnation in zip(protocol.split(body, sizes), incarnations, strict=True):
            key = self._append(request, piece, incarnation, pending)
            if weaker and key is not None and self._park.waiting(key):
                pending.is_awaited = True
        pending.wait()

    def _append(
        self, request: Request, piece: memoryview, incarnation: int, pending: _Pending
    ) -> QueueKey | None:
        """Append one batch and note its result; its queue, or None if nothing was appended."""
        name = ""
        try:
            batch = self._checked(piece)
            name = batch.topic
            topic = self._destination(request, batch, incarnation)
            offered = self._offered(request, batch) if self._before_append else batch
            if isinstance(offered, Answer):
                pending.accept(offered.end, _repeated(batch, offered))
                return None
            appended = self._log.append(
                offered,
                incarnation=topic.incarnation,
                queue=batch.queue_claim,
                amended=offered is not batch,
            )
        except Rejected as error:
            pending.refuse(error)
        except BatchError as error:
            pending.refuse(Rejected(Status.BAD_BATCH, str(error)))
        except LogError as error:
            pending.refuse(log_refusal(error))
        except Exception as error:
            # Batches before this one are in the log: they must not hear that they failed.
            pending.refuse(internal_refusal(error, f"the batch for topic {shown(name)}"))
        else:
            pending.ends.append(appended.end)
            pending.results.append(
                SendResultPart(
                    status=_OK,
                    queue=batch.queue_claim,
                    base_offset=appended.base_offset,
                    incarnation=topic.incarnation,
                    epoch=self._log.epoch,
                    store_time=appended.store_time,
                ),
            )
            return topic.incarnation, batch.queue_claim
        return None

    def _checked(self, piece: memoryview) -> Batch:
        """Prove the bytes. Raises BatchError, Rejected."""
        if _prove is not None:
            plain = _prove(piece, self._limits.batch_bytes, Batch)
            if plain is not None:
                return plain
        if len(piece) > self._limits.batch_bytes:
            raise Rejected(
                Status.TOO_LARGE,
                f"a batch of {len(piece)} bytes, {self._limits.batch_bytes} are allowed: send "
                "smaller messages, or raise limits.batch_bytes",
            )
        batch = parse(piece, limit=self._limits.batch_bytes)
        if batch.length != len(piece):
            raise BatchError(
                f"a batch of {batch.length} bytes in a piece of {len(piece)}: one per piece"
            )
        verify_unstamped(batch)
        verify_producer(batch)
        if batch.kind:
            raise BatchError(f"a batch of kind {batch.kind}: only messages (kind 0) can be sent")
        return batch

    def _destination(self, request: Request, batch: Batch, incarnation: int) -> TopicChange:
        """The topic that its sender may write to; made if it is missing and may be."""
        name, gate = batch.topic, self._gate
        if gate.asks:
            gate.check(request.session, "SEND", name)
        topic = self._topics.get(name)
        if topic is None or batch.queue_claim >= topic.queues or incarnation != topic.incarnation:
            catalog = self._catalog
            if catalog.creatable(name, incarnation):
                gate.check(request.session, "TOPIC_CREATE", name)
                catalog.create(name)
            topic = catalog.find_queue(name, batch.queue_claim, incarnation)
        if not topic.writable:
            raise Rejected(
                Status.NOT_WRITABLE,
                f"topic {shown(name)} takes no messages: "
                "allow it with `mq topic alter`, or send to another topic",
            )
        return topic

    def _offered(self, request: Request, batch: Batch) -> Batch | Answer:
        """What the plugins make of a batch, or where it is already. Raises Rejected if one refuses
        it, PluginFailure if one gives back what is no answer."""
        for hook in self._before_append:
            answer = hook(request.session, batch)
            if answer is None:
                continue
            if isinstance(answer, Refuse):
                raise hook_refusal(hook, answer)
            if isinstance(answer, Answer):
                if not _can_be_told(answer):
                    raise wrong_answer(hook, answer, "Answer of whole numbers from 0 up")
                return answer
            if isinstance(answer, Replace):
                try:
                    batch = self._replaced(batch, answer)
                except (BatchError, TypeError) as error:
                    why = f"Replace by a sealed batch for the same queue ({error})"
                    raise wrong_answer(hook, answer, why) from error
            elif not isinstance(answer, Pass):
                raise wrong_answer(hook, answer, "Pass, Replace, Refuse, Answer or None")
        return batch

    def _replaced(self, batch: Batch, answer: Replace) -> Batch:
        replacement = parse(memoryview(answer.batch), limit=self._limits.batch_bytes)
        verify_producer(replacement)
        same = (batch.topic, batch.queue_claim, batch.count, batch.kind)
        if (
            replacement.topic,
            replacement.queue_claim,
            replacement.count,
            replacement.kind,
        ) != same:
            raise BatchError(
                f"a plugin replaced a batch for queue {batch.queue_claim} of topic "
                f"{shown(batch.topic)} by one of other topic, queue or count: make it with "
                "cometmq.batch.amend"
            )
        return replacement


def _repeated(batch: Batch, answer: Answer) -> SendResultPart:
    """What the sender of the first copy heard, or will hear."""
    return SendResultPart(
        status=Status.OK,
        queue=batch.queue_claim,
        base_offset=answer.base_offset,
        incarnation=answer.incarnation,
        epoch=answer.epoch,
        store_time=answer.store_time,
    )


class _Pending(msgspec.Struct, eq=False):
    """A send on its way: one result per batch, and how far the log has to get for each."""

    log: Log
    request: Request
    level: Level
    results: list[SendResultPart] = []
    ends: list[int] = []
    """By result: position behind the batch, or -1 when it is not in the log."""
    is_awaited: bool = False
    """Somebody waits to read it, and this level starts no sync that makes it readable."""

    def accept(self, end: int, result: SendResultPart) -> None:
        self.ends.append(end)
        self.results.append(result)

    def refuse(self, error: Rejected) -> None:
        self.accept(
            -1,
            SendResultPart(
                status=error.status, detail=error.detail, retry_after_ms=error.retry_after_ms
            ),
        )

    def wait(self) -> None:
        """Answer once everything has its level; positions are reached in order, so one wait for
        the highest of them is enough."""
        ends = self.ends
        end = ends[0] if len(ends) == 1 else max(ends, default=-1)
        if end >= 0:
            self.log.wait(self.level, end, self._done)
        else:
            self.request.answer(SendReply(self.results))

    def _done(self, outcome: Outcome) -> None:
        if outcome is Outcome.REACHED:
            self.request.answer(SendReply(self.results, self.level))
            if self.is_awaited:
                self.log.demand(max(self.ends))
        elif outcome is Outcome.NOT_WRITTEN:
            self._write_failed()
        else:
            # Cut away after it was written: nobody can know who saw it.
            self.request.drop()

    def _write_failed(self) -> None:
        """A drain is one write, so all that was appended is taken back together. What repeats an
        earlier drain's is in the log all the same."""
        failed = SendResultPart(status=Status.RETRY, detail=NOT_WRITTEN)
        written = self.log.appended
        for place, end in enumerate(self.ends):
            if end > written:
                self.results[place], self.ends[place] = failed, -1
        self.wait()


def _can_be_told(answer: Answer) -> bool:
    numbers = msgspec.structs.astuple(answer)
    return all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)
