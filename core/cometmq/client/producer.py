"""The producer, sync face."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from cometmq.client.batching import Batch, Outcome, Receipt, SendResult
from cometmq.client.closing import MOMENT_S
from cometmq.client.driver import Driver
from cometmq.client.faces import Face, make_engine
from cometmq.client.flows import log
from cometmq.client.producer_options import ProducerOptions
from cometmq.client.producing import Accumulator
from cometmq.environment import Environment
from cometmq.errors import Closed, CometError, OutcomeUnknown
from cometmq.interfaces import Connect, Level
from cometmq.message import Message

EXIT_TIMEOUT_S = 10.0


class Producer(Face):
    """Sends messages to topics; one for a process is enough, all threads may use it.

    A message whose answer was lost with a connection is sent again; a broker that tells the
    feature `sequences` stores it once, another may store it twice. Messages of one queue keep
    their order (without a sharding key, consecutive messages go to one queue until their batch
    closes). Messages are batched without being asked: one that is alone goes at once, what a thread
    hands over by `send_soon` as soon as the thread pauses.

    `address` is the broker's (None: `MQ_CONNECT`). `level` is the ack level of all sends that
    name none (None: the broker's default). `buffer_bytes` bounds what is on its way; when it is
    full, `when_full` says whether a send waits ("block") or raises BufferFull ("raise"). A message
    that is not acknowledged `send_timeout` seconds after its batch was begun ends as Retryable,
    or as OutcomeUnknown when it may be stored. `compression` ("zstd" or "lz4", each with the extra
    of its name; None: none) makes batches smaller for network and disk at the price of CPU time
    here and at the consumers; `compression_level` is the codec's own. The other options rarely
    need a change.
    """

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
        engine = make_engine(address, client_id, credentials, environment, connect)
        self._driver = Driver(engine, self._at_exit)
        self._accumulator = Accumulator(engine, options, self, self._driver.lock)
        self._driver.on_forked = self._forked

    def send(self, message: Message, level: Level | None = None) -> SendResult:
        """Send a message and wait until it is acknowledged at `level`.

        Raises Refused and Retryable (nothing is stored), OutcomeUnknown (it may be), Closed.
        """
        accumulator = self._accumulator
        receipt = accumulator.append_fast(message, level) if accumulator.open else None
        if receipt is None:
            lone = self._driver.run_lone(accumulator.begin_lone, message, level)
            if lone is None:
                return self._driver.run(accumulator.send(message, level))
            stored = lone.result()
            return SendResult(stored.base_offset, stored)
        return receipt.result()

    def send_soon(self, message: Message, level: Level | None = None) -> Receipt:
        """Put a message into a batch and return a receipt, usually without waiting.

        It waits for the topic's route at first, and for room in the buffer. Raises Refused for a
        message that can't be sent, BufferFull, Retryable without a route, Closed.
        """
        accumulator = self._accumulator
        receipt = accumulator.append_fast(message, level)
        if receipt is not None:
            return receipt
        if accumulator.knows(message):
            append = partial(accumulator.append_now, message, level, moment_s=MOMENT_S)
            receipt = self._driver.do(append, stays=False, quick=True)
            if receipt is not None:
                return receipt
        return self._driver.run(accumulator.append(message, level, moment_s=MOMENT_S))

    def send_many(self, messages: Sequence[Message], level: Level | None = None) -> list[Outcome]:
        """Send messages, wait for all, and return for each, in its place, its SendResult or the
        error it ended with (as `send` would raise it). Raises Refused for a level that is none or
        messages that are no sequence, and Closed."""
        return self._driver.run(self._accumulator.send_many(messages, level))

    def send_one_way(self, message: Message) -> None:
        """Hand a message to the transport and forget it: no ack, no repeat, *at most* once.

        Raises Refused for a message that can't be sent, Retryable if there is no connection.
        """
        self._driver.run(self._accumulator.send_one_way(message))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was handed over before is done: acknowledged or failed.

        What became of a message, its receipt says. Raises OutcomeUnknown when `timeout` seconds
        were not enough (the rest is still being sent), Closed.
        """
        left = self._driver.run(self._accumulator.flush(timeout))
        if left:
            raise OutcomeUnknown(
                f"{left} batches are not acknowledged after {timeout} s; they are still being sent"
            )

    def close(self, timeout: float | None = None) -> None:
        """Flush, then end the connection. What `timeout` seconds were not enough for ends as
        Closed (not sent) or OutcomeUnknown, and OutcomeUnknown is raised."""
        if self._driver.is_over():
            return
        left = self._driver.run(self._accumulator.flush(timeout))
        closed = Closed("the producer was closed before this was sent; nothing is stored")
        self._driver.do(lambda: self._accumulator.close(closed))
        self._driver.close()
        if left:
            raise OutcomeUnknown(f"{left} batches were not acknowledged within {timeout} s")

    # --- as the owner of batches --------------------------------------------------------------

    def wait(self, batch: Batch, timeout_s: float | None) -> object:
        """Used by receipts: drive the connection in this thread meanwhile."""
        self._hurry(batch)
        return self._driver.wait(batch, timeout_s)

    def when_done(self, batch: Batch, callback: Callable[[], object]) -> None:
        """Used by receipts: `callback` runs in the thread that learns the outcome, or here."""
        self._driver.when_done(batch, callback)

    # --- inside -------------------------------------------------------------------------------

    def _hurry(self, batch: Batch) -> None:
        """Have it sent now if it may close early: somebody waits for it."""
        if not batch.topic.in_flight and self._accumulator.may_close(batch):
            self._driver.do(partial(self._accumulator.close_if_idle, batch))

    def _forked(self) -> None:
        self._accumulator.sticky.clear()
        self._accumulator.topics.clear()

    def _at_exit(self) -> None:
        """What is still buffered when the interpreter ends is sent, or at least reported."""
        try:
            self.close(EXIT_TIMEOUT_S)
        except CometError as error:
            log.warning("at exit: %s", error)
