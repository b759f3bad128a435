"""Which open batches close before they are full, and when.

A batch whose topic has nothing on its way closes *early*, so a lone message does not wait, or for a
moment if more may follow it. But a batch of one message costs nearly what a full one does. So few
early ones are on their way at once. Where many batches are open, they fill while a request is on
its way; when none is, the oldest go, but whoever goes on to fill them has time for it in between.
Whatever is behind its `linger_ms` goes with the next request, if others go anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from cometmq.client.batching import Batch
from cometmq.client.connection import NEVER
from cometmq.client.engine import Engine, Timer
from cometmq.client.producer_options import ProducerOptions
from cometmq.client.sender import REQUEST_BYTES, WINDOW, Sender

EARLY_MAX = 2
"""So many early ones are on their way: more would keep client and broker busy with themselves."""
MOMENT_S = 20e-6
"""The first message of several waits so long for the others; whoever sends them has gone to sleep
then, or goes on for as long as the interpreter lets him."""
CROWD = 16
"""More open batches than this are many."""
PARTIAL_MAX = 8
"""So many go together although they are not full, or there would be no time to fill the others."""
AGAIN_S = 0.001
"""What is due and can't go is looked at again so much later at the earliest, also without
`linger_ms`; the answer that makes room for it has it looked at anyway."""
REST = 3
"""After these the caller gets so many times as long as it took to close them, and whoever began no
batch for as long has paused. So a client that is slow for any reason does not find the line free
at each message and remain slow with batches of one."""


class Closing:
    """See the module. `open` are all open batches, the oldest first; `close` closes one. Needs the
    driver's lock."""

    def __init__(
        self,
        engine: Engine,
        options: ProducerOptions,
        sender: Sender,
        open: dict[Batch, None],
        close: Callable[[Batch], None],
    ) -> None:
        self._engine = engine
        self._linger_s = options.linger_ms / 1000
        self._sender = sender
        self._open = open
        self._close = close
        self._early = 0
        self._held_back = 0
        self._expected_s = 0.0
        self._rest_s = 0.0
        self._rested_s = 0.0
        self._timer: Timer | None = None
        self._at_s = NEVER

    @property
    def crowded(self) -> bool:
        """Whether many are open."""
        return len(self._open) > CROWD

    def may_close(self, batch: Batch) -> bool:
        """Whether it may close early. Without the lock it is only a guess."""
        if batch.topic.in_flight or batch.closed:
            return False
        requests = self._sender.requests
        if not requests:
            return True
        return requests < WINDOW and self._early < EARLY_MAX and not self.crowded

    def close_early(self, batch: Batch) -> None:
        """Close one that may."""
        batch.early = True
        self._early += 1
        self._close(batch)

    def opened(self, batch: Batch) -> None:
        """A batch begins."""
        batch.due_s = self._engine.now_s() + self._linger_s

    def expect_more(self) -> None:
        """A caller who did not wait for the outcome began a batch, and may go on."""
        self._expected_s = self._engine.now_s()

    def left_open(self, batch: Batch, moment_s: float) -> None:
        """It did not close at once: look after it when it is due, or after `moment_s` if it may
        close early, unless others are due before."""
        within_s = moment_s if self.may_close(batch) else NEVER
        self._arm(min(batch.due_s, self._engine.now_s() + within_s))

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """While a caller waits to hand over more, what is open goes no sooner than it is due."""
        self._held_back += 1
        try:
            yield
        finally:
            self._held_back -= 1

    def ended(self, batch: Batch) -> None:
        """A batch is done. What waited for it in its topic closes, if few are open."""
        if batch.early:
            self._early -= 1
        topic = batch.topic
        if topic.open and not (topic.in_flight or self.crowded):
            for waiting in list(topic.open.values()):
                self._close(waiting)

    def before_request(self, line_free: bool, others_wait: bool) -> None:
        """A request can be made. `line_free`: none is on its way and nothing closed waits to go;
        `others_wait`: something closed does."""
        if not self._open:
            return
        if line_free:
            self._line_is_free()
        elif others_wait or not self.crowded:
            now_s = self._engine.now_s()
            for batch in list(islice(self._open, PARTIAL_MAX)):
                if batch.due_s <= now_s:
                    self._close(batch)
                elif self.may_close(batch):
                    self.close_early(batch)

    def _line_is_free(self) -> None:
        now_s = self._engine.now_s()
        wait_s = self._wait_s(now_s)
        if wait_s > 0:
            self._arm(now_s + wait_s)
            return
        self.close_oldest()
        behind_s = self._engine.now_s()
        self._rest_s = min(REST * (behind_s - now_s), self._linger_s)
        self._rested_s = behind_s + self._rest_s

    def _wait_s(self, now_s: float) -> float:
        """How long batches are left to fill although the line is free: as long as somebody has
        more for them, but where they are many no longer than until the oldest is due."""
        due_s = next(iter(self._open)).due_s
        if self._held_back:
            return due_s - now_s
        rested_s = max(due_s, self._rested_s) if self.crowded else self._rested_s
        return min(self._expected_s + self._rest_s, rested_s) - now_s

    def close_oldest(self) -> None:
        """Close the oldest, up to a request's worth."""
        size_bytes = 0
        for batch in list(islice(self._open, PARTIAL_MAX)):
            if size_bytes >= REQUEST_BYTES:
                break
            size_bytes += batch.size_bytes
            self._close(batch)

    def _arm(self, at_s: float) -> None:
        if at_s < self._at_s:
            if self._timer is not None:
                self._timer.cancel()
            self._at_s = at_s
            self._timer = self._engine.at(at_s, self._linger_over)

    def _linger_over(self) -> None:
        self._timer, self._at_s = None, NEVER
        self._sender.pump()
        oldest = next(iter(self._open), None)
        if oldest is not None:
            now_s = self._engine.now_s()
            again_s = now_s + max(self._linger_s, AGAIN_S)
            self._arm(oldest.due_s if oldest.due_s > now_s else again_s)
