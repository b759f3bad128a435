"""The batches of one queue of one topic on their way to the broker, in their order."""

from __future__ import annotations

from collections import deque

from cometmq.batch import renumber
from cometmq.client.batching import Batch
from cometmq.client.calls import Call
from cometmq.client.numbering import IN_FLIGHT, Numbering
from cometmq.protocol import SendReply


class SendLane:
    """One batch is out at a time, or up to five when all of them are numbered.

    After any failure the lane is *careful*: what is out comes back first, then one goes alone. A
    batch that ended without being stored leaves the row of numbers *broken*: what waits is numbered
    anew, once nothing under the old numbers is out or may be stored.
    """

    __slots__ = ("broken", "careful", "key", "listed", "out", "pauses", "waiting")

    def __init__(self, topic: str, queue: int) -> None:
        self.key = topic, queue
        self.waiting: deque[Batch] = deque()
        self.out: dict[Batch, Call[SendReply] | None] = {}
        """On their way and not answered, in their order, and what each is in."""
        self.pauses = 0
        """How many of its batches wait before their next try."""
        self.careful = False
        self.broken = False
        self.listed = False
        """Whether its sender has it among those that may send."""

    def may_send(self) -> bool:
        """Whether the first of `waiting` may go now."""
        if self.pauses or not self.waiting:
            return False
        if not self.out:
            return True
        if self.careful or self.broken or len(self.out) >= IN_FLIGHT:
            return False
        last = next(reversed(self.out))
        return self.waiting[0].number is not None and last.number is not None

    def goes(self) -> None:
        """The first of `waiting` is put into a request."""
        self.out[self.waiting.popleft()] = None

    def comes_back(self, batch: Batch) -> None:
        """A try failed: the batch stands at its old place again."""
        self.out.pop(batch, None)
        self.careful = True
        before = sum(other.order < batch.order for other in self.waiting)
        self.waiting.insert(before, batch)

    def stored(self, batch: Batch) -> None:
        """The batch ended well."""
        self._drop(batch)
        if not self.out:
            self.careful = False

    def lost(self, batch: Batch) -> None:
        """The batch ended without success."""
        self._drop(batch)
        if batch.number is not None:
            self.broken = self.careful = True

    def is_first(self, batch: Batch) -> bool:
        """Whether nothing that was to come before it is undecided."""
        before = [it for it in self.out if it.order < batch.order]
        return not before and (not self.waiting or self.waiting[0].order >= batch.order)

    def mend(self, numbering: Numbering) -> None:
        """Begin a new epoch, if one is due and nothing of the old one is undecided."""
        if not self.broken or self.out or (self.waiting and self.waiting[0].maybe_stored):
            return
        topic, queue = self.key
        numbering.end_epoch(topic, queue)
        self.broken = False
        for batch in self.waiting:
            if batch.number is not None and batch.buffer is not None:
                incarnation = batch.topic.route.incarnation
                batch.number = numbering.next(topic, incarnation, queue)
                batch.buffer = renumber(batch.buffer, batch.number)
                batch.maybe_stored = False  # the first was not, so none behind it was
                numbering.took(topic, queue, batch.count)

    def _drop(self, batch: Batch) -> None:
        if batch in self.out:
            del self.out[batch]
        else:
            self.waiting.remove(batch)
